// The page: one stream of states from the controller; heat and plans are fetched when they change.
import { drawLegend, heatScale, loadScale } from "./colours.js";
import { Matrix } from "./matrix.js";
import { showPlan, showPlans } from "./plans.js";
import { ago, byId, count, text, when } from "./words.js";

const page = { name: "", state: null, heat: null, heatKey: "", historyKey: "" };
const tip = byId("tip");

const experts = new Matrix(byId("experts"), {
  scale: heatScale, said: byId("experts-said"), tip,
  describe: (layer, expert) => {
    const { meta, tokens, ratios } = page.heat;
    const at = layer * meta.experts + expert;
    const ranks = ranksOf(layer, expert);
    return `layer ${layer} (model layer ${meta.modelLayers[layer]}), expert ${expert}\n`
      + `${count(tokens[at])} tokens, ${ratios[at].toFixed(2)} times the layer's mean\n`
      + `on rank ${ranks.join(", ")}${ranks.length > 1 ? ` (${ranks.length} replicas)` : " only"}`;
  },
});
const ranks = new Matrix(byId("ranks"), {
  scale: loadScale, said: byId("ranks-said"), tip,
  describe: (layer, rank) => {
    const { meta, load, loadRatios } = page.heat;
    const at = layer * meta.ranks + rank;
    const told = Number.isNaN(load[at]) ? "unknown: it has not reported"
      : `${count(load[at])} tokens, ${loadRatios[at].toFixed(2)} times the mean of the ranks`;
    return `layer ${layer} (model layer ${meta.modelLayers[layer]}), rank ${rank}\n${told}\n`
      + `imbalance of the layer ${text(meta.imbalance[layer], 2)}`;
  },
});
drawLegend(byId("experts-legend"), heatScale, "none", "8 times and more");
drawLegend(byId("ranks-legend"), loadScale, "none", "2 times and more");

function ranksOf(layer, expert) {
  const { meta, phy2log, slots } = page.heat;
  const found = [];
  for (let rank = 0; rank < meta.ranks; rank++) {
    for (let slot = meta.starts[rank]; slot < meta.starts[rank + 1]; slot++) {
      if (phy2log[layer * slots + slot] === expert) found.push(rank);
    }
  }
  return found;
}

function overMean(values, rows, columns) {
  const ratios = new Float32Array(values.length);
  for (let row = 0; row < rows; row++) {
    let sum = 0, known = 0;
    for (let i = row * columns; i < (row + 1) * columns; i++) {
      if (!Number.isNaN(values[i])) { sum += values[i]; known++; }
    }
    const mean = sum / known;
    for (let i = row * columns; i < (row + 1) * columns; i++) ratios[i] = mean > 0 ? values[i] / mean : 0 * values[i];
  }
  return ratios;
}

function read(buffer) {
  const size = new DataView(buffer).getUint32(0, true);
  const meta = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
  const from = 4 + size;
  const tokens = new Float32Array(buffer, from, meta.layers * meta.experts);
  const load = new Float32Array(buffer, from + tokens.byteLength, meta.layers * meta.ranks);
  const slots = meta.starts[meta.ranks];
  const phy2log = new Int32Array(buffer, from + tokens.byteLength + load.byteLength, meta.layers * slots);
  return { meta, tokens, load, phy2log, slots };
}

async function fetchHeat() {
  const answer = await fetch(`api/v1/heat?deployment=${encodeURIComponent(page.name)}`);
  if (answer.status === 204) {
    page.heat = null;
    byId("experts-said").textContent = "No load window yet: two common reports of all ranks make one.";
    return;
  }
  const heat = read(await answer.arrayBuffer());
  const { layers, experts: numExperts, ranks: numRanks } = heat.meta;
  const began = performance.now();
  heat.ratios = overMean(heat.tokens, layers, numExperts);
  heat.loadRatios = overMean(heat.load, layers, numRanks);
  page.heat = heat;
  experts.show(heat.ratios, layers, numExperts);
  ranks.show(heat.loadRatios, layers, numRanks);
  const took = performance.now() - began;
  byId("drawn").textContent = `Newest heat: ${layers} layers by ${numExperts} experts, drawn in ${took.toFixed(1)} ms.`;
  byId("drawn").dataset.ms = took.toFixed(2);
}

async function fetchHistory() {
  const answer = await fetch(`api/v1/history?deployment=${encodeURIComponent(page.name)}`);
  const { entries } = await answer.json();
  byId("history").replaceChildren(...entries.map((entry) => {
    const line = document.createElement("li");
    const time = document.createElement("time");
    time.textContent = when(entry.at);
    const kind = document.createElement("span");
    kind.className = "kind";
    kind.textContent = entry.kind;
    const who = document.createElement("span");
    who.className = "who";
    who.textContent = entry.who || "controller";
    line.append(time, kind, who, `epoch ${entry.epoch}: ${entry.text}`);
    return line;
  }));
}

function card(name, value, note = "") {
  const box = document.createElement("div");
  const dt = document.createElement("dt"), dd = document.createElement("dd");
  dt.textContent = name;
  dd.textContent = value;
  const small = document.createElement("small");
  small.textContent = note;
  dd.append(small);
  box.append(dt, dd);
  return box;
}

function showCards(d) {
  const away = d.ranks.filter((rank) => !rank.connected).map((rank) => rank.rank);
  const epochs = new Set(d.ranks.map((rank) => rank.epoch));
  const run = d.running;
  byId("cards").replaceChildren(
    card("Epoch", String(d.epoch), `settled ${ago(d.settledAge)}, generation ${d.generation}`),
    card("Imbalance, mean", text(d.imbalance.mean, 2), "peak over mean of the ranks' load"),
    card("Imbalance, worst", text(d.imbalance.worst, 2), d.imbalance.worst ? `layer ${d.imbalance.worstLayer}` : "no load yet"),
    card("Ranks", `${d.ranks.length - away.length} of ${d.ranks.length}`, away.length ? `away: ${away.join(", ")}` : epochs.size > 1 ? "at different epochs" : "all at one epoch"),
    card("Window", `${d.window.steps} steps`, `coverage ${text(d.window.coverage, 2)}, newest report ${ago(d.window.age)}`),
    card("Running", run ? `${run.phase}` : "nothing", run ? `plan ${run.plan}, wave ${run.wave} of ${run.waves}${run.wavePhase ? `, ${run.wavePhase}` : ""}` : "no plan ran yet"),
  );
  const told = [d.halt && `Halted: ${d.halt}`, d.freeze && `Frozen: ${d.freeze}`].filter(Boolean).join(". ");
  const notice = byId("notice");
  if (notice.textContent !== told) notice.textContent = told;
  notice.hidden = !told;
}

function choose(name) {
  Object.assign(page, { name, heatKey: "", historyKey: "", heat: null });
  byId("plan").hidden = true;
  location.hash = encodeURIComponent(name);
}

function show(state) {
  page.state = state;
  const names = state.deployments.map((d) => d.name);
  const select = byId("deployment");
  if (names.join("\n") !== [...select.options].map((o) => o.value).join("\n")) {
    select.replaceChildren(...names.map((name) => new Option(name, name)));
  }
  if (!names.includes(page.name)) {
    const wanted = decodeURIComponent(location.hash.slice(1));
    choose(names.includes(wanted) ? wanted : names[0] ?? "");
  }
  select.value = page.name;
  const d = state.deployments.find((one) => one.name === page.name);
  if (!d) return;
  showCards(d);
  showPlans(d.plans, page.name);
  if (d.heatKey !== page.heatKey) { page.heatKey = d.heatKey; run(fetchHeat); }
  const historyKey = JSON.stringify([d.epoch, d.plans, d.freeze, d.halt]);
  if (historyKey !== page.historyKey) { page.historyKey = historyKey; run(fetchHistory); }
}

function live(state, words) {
  byId("live").dataset.state = state;
  if (byId("live-text").textContent !== words) byId("live-text").textContent = words;
}

// What cannot be fetched now is fetched again with the next state.
function run(work) {
  work().catch((error) => {
    Object.assign(page, { heatKey: "", historyKey: "" });
    live("waiting", `waiting for the controller (${error.message})`);
  });
}

const stream = new EventSource("api/v1/events");
stream.addEventListener("state", (event) => { live("live", "live"); show(JSON.parse(event.data)); });
stream.addEventListener("error", () => live("waiting", "waiting for the controller"));
byId("deployment").addEventListener("change", (event) => { choose(event.target.value); show(page.state); });
byId("plans").addEventListener("click", (event) => {
  const plan = event.target.closest("button")?.dataset.plan;
  if (plan) run(() => showPlan(page.name, plan));
});
