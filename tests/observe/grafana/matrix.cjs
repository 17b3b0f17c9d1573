// Runs Grafana's own groupingToMatrix over an instant vector, as the dashboard's matrix panel does.
// In: {options, rows: [{layer, rank, value}]} on stdin. Out: {fields: [{name, values}]} on stdout.
const { standardTransformers, standardTransformersRegistry, transformDataFrame, toDataFrame, FieldType } = require("@grafana/data");
const { firstValueFrom } = require("rxjs");
globalThis.window = {}; // where the package, once loaded, looks for a setting of its page

async function main() {
  let text = "";
  for await (const chunk of process.stdin) text += chunk;
  const { options, rows } = JSON.parse(text);
  const transformer = standardTransformers.groupingToMatrixTransformer;
  standardTransformersRegistry.setInit(() => [{ id: transformer.id, name: transformer.name, transformation: async () => transformer, editor: () => null }]);
  const frame = toDataFrame({
    fields: [
      { name: "layer", type: FieldType.string, values: rows.map((r) => r.layer) },
      { name: "rank", type: FieldType.string, values: rows.map((r) => r.rank) },
      { name: "Value", type: FieldType.number, values: rows.map((r) => r.value) },
    ],
  });
  const [made] = await firstValueFrom(transformDataFrame([{ id: "groupingToMatrix", options }], [frame]));
  process.stdout.write(JSON.stringify({ fields: made.fields.map((f) => ({ name: f.name, values: [...f.values] })) }));
}

main();
