// A matrix on a canvas: one pixel a cell in an image of its own, stretched to the width there is.
// Hovering and arrow keys choose a cell; what it says is shown beside it and read aloud.

export class Matrix {
  constructor(canvas, { scale, describe, said, tip }) {
    Object.assign(this, { canvas, scale, describe, said, tip });
    this.image = document.createElement("canvas");
    this.rows = this.columns = 0;
    this.cell = null;
    this.byKey = false;
    canvas.addEventListener("pointermove", (event) => this.point(event));
    canvas.addEventListener("pointerleave", () => this.leave());
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("focus", () => { this.byKey = true; this.choose(this.cell ?? [0, 0]); });
    canvas.addEventListener("blur", () => { this.byKey = false; this.leave(); });
    new ResizeObserver(() => this.paint()).observe(canvas.parentElement);
  }

  // ratios: Float32Array [rows * columns], NaN where unknown. Returns milliseconds that it took.
  show(ratios, rows, columns) {
    const began = performance.now();
    if (this.rows !== rows || this.columns !== columns) {
      Object.assign(this, { rows, columns, cell: null });
      this.image.width = columns;
      this.image.height = rows;
      this.pixels = new ImageData(columns, rows);
      this.packed = new Uint32Array(this.pixels.data.buffer);
    }
    const { packed, scale } = this;
    for (let i = 0; i < ratios.length; i++) packed[i] = scale.colour(ratios[i]);
    this.image.getContext("2d").putImageData(this.pixels, 0, 0);
    this.paint();
    const took = performance.now() - began;
    this.canvas.dataset.drawMs = took.toFixed(2);
    this.canvas.dataset.updates = String(Number(this.canvas.dataset.updates ?? 0) + 1);
    if (this.cell && this.byKey) this.tell();
    return took;
  }

  paint() {
    if (!this.rows) return;
    const width = this.canvas.parentElement.clientWidth;
    const height = Math.max(Math.min(this.rows * 16, 368), this.rows * 4);
    const dots = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * dots);
    this.canvas.height = Math.round(height * dots);
    this.canvas.style.height = `${height}px`;
    const paint = this.canvas.getContext("2d");
    paint.imageSmoothingEnabled = false;
    paint.drawImage(this.image, 0, 0, this.canvas.width, this.canvas.height);
    if (this.cell) this.frame(paint);
  }

  frame(paint) {
    const [row, column] = this.cell;
    const w = this.canvas.width / this.columns, h = this.canvas.height / this.rows;
    const box = [column * w - 2, row * h - 2, Math.max(w, 3) + 4, Math.max(h, 3) + 4];
    paint.lineWidth = 4;
    paint.strokeStyle = "#000";
    paint.strokeRect(...box);
    paint.lineWidth = 2;
    paint.strokeStyle = "#fff";
    paint.strokeRect(...box);
  }

  point(event) {
    if (!this.rows) return;
    const box = this.canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top) / box.height * this.rows);
    const column = Math.floor((event.clientX - box.left) / box.width * this.columns);
    this.choose([this.within(row, this.rows), this.within(column, this.columns)]);
  }

  within(index, count) { return Math.max(0, Math.min(count - 1, index)); }

  key(event) {
    if (!this.rows) return;
    const [row, column] = this.cell ?? [0, 0];
    const to = {
      ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1],
      ArrowUp: [row - 1, column], ArrowDown: [row + 1, column],
      Home: [row, 0], End: [row, this.columns - 1],
      PageUp: [row - 10, column], PageDown: [row + 10, column],
    }[event.key];
    if (event.key === "Escape") this.leave();
    if (!to) return;
    event.preventDefault();
    this.choose([this.within(to[0], this.rows), this.within(to[1], this.columns)]);
  }

  choose(cell) {
    if (!this.rows) return;
    this.cell = cell;
    this.paint();
    this.tell();
  }

  leave() {
    this.cell = this.byKey ? this.cell : null;
    this.tip.hidden = true;
    this.paint();
  }

  tell() {
    const [row, column] = this.cell;
    const text = this.describe(row, column);
    this.said.textContent = text.replaceAll("\n", "; ");
    this.tip.textContent = text;
    this.tip.hidden = false;
    const box = this.canvas.getBoundingClientRect();
    const x = box.left + (column + 0.5) / this.columns * box.width;
    const y = box.top + (row + 0.5) / this.rows * box.height;
    const { offsetWidth: w, offsetHeight: h } = this.tip;
    this.tip.style.left = `${Math.min(x + 14, window.innerWidth - w - 8)}px`;
    this.tip.style.top = `${y + 18 + h > window.innerHeight ? y - h - 14 : y + 18}px`;
  }
}
