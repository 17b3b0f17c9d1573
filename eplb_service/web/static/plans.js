// The table of plans, and what one of them moves.
import { byId, bytes, count, text, when } from "./words.js";

const MARKS = { done: "\u2713", running: "\u25b6", stopped: "\u25a0", rejected: "\u2715", drafted: "\u25cb", admitted: "\u25cb", expired: "\u2013" };
let chosen = "";
let shown = "";

function cell(content, kind = "") {
  const td = document.createElement("td");
  td.className = kind;
  td.append(content);
  return td;
}

function line(plan) {
  const row = document.createElement("tr");
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = plan.id;
  button.dataset.plan = plan.id;
  button.setAttribute("aria-pressed", String(plan.id === chosen));
  const phase = document.createElement("span");
  phase.className = "phase";
  phase.dataset.mark = MARKS[plan.phase] ?? "";
  phase.textContent = `${plan.phase}${plan.ending ? `: ${plan.ending}` : ""}`;
  row.append(
    cell(when(plan.at)), cell(button), cell(plan.who || "controller"), cell(plan.policy), cell(plan.reason), cell(phase),
    cell(`${text(plan.before, 2)} to ${text(plan.after, 2)}`, "num"), cell(count(plan.moves), "num"), cell(bytes(plan.bytes), "num"),
  );
  return row;
}

export function showPlans(plans, deployment) {
  const key = JSON.stringify([deployment, plans, chosen]);
  if (key === shown) return;
  shown = key;
  const held = document.activeElement?.dataset?.plan;
  const body = byId("plans").tBodies[0];
  body.replaceChildren(...plans.map(line));
  byId("no-plans").hidden = plans.length > 0;
  byId("plans").hidden = plans.length === 0;
  if (held) body.querySelector(`button[data-plan="${CSS.escape(held)}"]`)?.focus();
}

function slots(row, starts, moved) {
  const out = [];
  for (let rank = 0; rank + 1 < starts.length; rank++) {
    const box = document.createElement("div");
    box.className = "row";
    const label = document.createElement("b");
    label.textContent = `rank ${rank}`;
    box.append(label);
    for (let slot = starts[rank]; slot < starts[rank + 1]; slot++) {
      const one = document.createElement("i");
      one.textContent = row[slot] < 0 ? "\u00b7" : row[slot];
      one.className = moved.has(slot) ? "moved" : "";
      box.append(one);
    }
    out.push(box);
  }
  return out;
}

function rankOf(slot, starts) {
  let rank = 0;
  while (starts[rank + 1] <= slot) rank++;
  return `rank ${rank}, slot ${slot - starts[rank]}`;
}

function showLayer(plan, layer) {
  const at = plan.layers.indexOf(layer);
  const moves = plan.moves.filter((move) => move[0] === layer);
  const moved = new Set(moves.map((move) => move[3]));
  byId("before").replaceChildren(...slots(plan.before[at], plan.starts, moved));
  byId("after").replaceChildren(...slots(plan.after[at], plan.starts, moved));
  byId("moves").tBodies[0].replaceChildren(...moves.map(([, expert, from, to, wave]) => {
    const row = document.createElement("tr");
    row.append(cell(String(expert), "num"), cell(rankOf(from, plan.starts)), cell(rankOf(to, plan.starts)), cell(String(plan.before[at][to]), "num"), cell(String(wave + 1), "num"));
    return row;
  }));
}

export async function showPlan(deployment, id) {
  const answer = await fetch(`api/v1/plan?deployment=${encodeURIComponent(deployment)}&plan=${encodeURIComponent(id)}`);
  const plan = await answer.json();
  if (!answer.ok) throw new Error(plan.error);
  chosen = id;
  shown = "";
  for (const button of byId("plans").querySelectorAll("button")) button.setAttribute("aria-pressed", String(button.dataset.plan === id));
  byId("plan").hidden = false;
  byId("plan-ask").textContent = `Plan ${id}: ${plan.moves.length} moves in ${plan.layers.length} layers; slots that get another expert are framed.`;
  byId("verdict").replaceChildren(...plan.findings.map((said) => {
    const item = document.createElement("li");
    item.textContent = `${said.answer}: ${said.gate}: ${said.text}`;
    return item;
  }));
  const select = byId("plan-layer");
  select.replaceChildren(...plan.layers.map((layer) => new Option(`${layer} (model layer ${plan.modelLayers[layer]})`, layer)));
  select.onchange = () => showLayer(plan, Number(select.value));
  showLayer(plan, plan.layers[0]);
}
