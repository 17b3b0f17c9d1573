// Colour scales that people with any colour vision can read: lightness alone carries the order.

// Dark blue to yellow, by five stops of even lightness; for heat.
const HEAT = [[0, 34, 78], [67, 78, 108], [124, 123, 120], [187, 175, 111], [254, 232, 56]];
// Blue below, orange above, pale in the middle; for load around its mean.
const LOAD = [[33, 102, 172], [146, 197, 222], [247, 247, 247], [253, 184, 99], [179, 88, 6]];

const STEPS = 256;
export const UNKNOWN = 0xff9a9a9a;

function table(stops) {
  const packed = new Uint32Array(STEPS);
  for (let step = 0; step < STEPS; step++) {
    const at = (step / (STEPS - 1)) * (stops.length - 1);
    const low = Math.min(Math.floor(at), stops.length - 2);
    const part = at - low;
    const [r, g, b] = stops[low].map((c, i) => Math.round(c + (stops[low + 1][i] - c) * part));
    packed[step] = (255 << 24 | b << 16 | g << 8 | r) >>> 0;
  }
  return packed;
}

// A scale turns a ratio into a packed colour by one look into a table; `place` says where, 0 to 1.
const FINE = 4096;

function scale(stops, place, ticks) {
  const packed = table(stops);
  const top = ticks[ticks.length - 1];
  const looked = new Uint32Array(FINE + 1);
  for (let i = 0; i <= FINE; i++) looked[i] = packed[Math.round(Math.min(1, place(i / FINE * top)) * (STEPS - 1))];
  const step = FINE / top;
  const colour = (ratio) => ratio >= top ? looked[FINE] : ratio >= 0 ? looked[ratio * step | 0] : UNKNOWN;
  return { ticks, place, colour };
}

const LOG_TOP = Math.log2(1 + 8);
export const heatScale = scale(HEAT, (ratio) => Math.log2(1 + ratio) / LOG_TOP, [0, 1, 3, 8]);
export const loadScale = scale(LOAD, (ratio) => ratio / 2, [0, 0.5, 1, 1.5, 2]);

export function drawLegend(box, { ticks, place, colour }, less, more) {
  const width = 160, height = 12;
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `colour scale from ${less} to ${more}, at ${ticks.join(", ")} times the mean`);
  const paint = canvas.getContext("2d");
  const top = ticks[ticks.length - 1];
  for (let x = 0; x < width; x++) {
    let low = 0, high = top;
    for (let i = 0; i < 24; i++) {
      const middle = (low + high) / 2;
      if (place(middle) < x / (width - 1)) low = middle; else high = middle;
    }
    const packed = colour(low);
    paint.fillStyle = `rgb(${packed & 255} ${packed >> 8 & 255} ${packed >> 16 & 255})`;
    paint.fillRect(x, 0, 1, height);
  }
  box.replaceChildren(less, canvas, more);
}
