// The matrix of prompts and rows on a canvas. Only what is in view is drawn, so thousands of both are fine.
import { address, by, element } from "./studio.js";

const UNKNOWN = 255;
const GUTTER = 10; // room at the left for the marks of texts that no prompt gets right
const TALLEST = 520;

function decode(cells) {
  const bytes = new Uint8Array(cells.length >> 1);
  for (let place = 0; place < bytes.length; place++) {
    const value = parseInt(cells.substr(2 * place, 2), 16);
    bytes[place] = Number.isNaN(value) ? UNKNOWN : value;
  }
  return bytes;
}

export class Matrix {
  constructor(run) {
    this.run = run;
    this.edition = "0";
    this.clock = 0;
    this.columns = [];
    this.rows = [];
    this.labels = [];
    this.cursor = null;
    this.frame = by("matrix-frame");
    this.canvas = by("matrix-canvas");
    this.room = by("matrix-room");
    this.frame.addEventListener("scroll", () => this.later(), { passive: true });
    this.frame.addEventListener("pointermove", (event) => this.point(event));
    this.frame.addEventListener("pointerdown", (event) => this.point(event));
    this.frame.addEventListener("keydown", (event) => this.key(event));
    by("matrix-columns").addEventListener("change", () => this.arrange());
    by("matrix-rows").addEventListener("change", () => this.arrange());
    new ResizeObserver(() => this.arrange()).observe(this.frame);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.later());
  }

  async update() {
    for (let more = true; more; ) {
      const query = `?since=${this.clock}&edition=${this.edition}`;
      const response = await fetch(address("matrix/" + this.run) + query, { headers: { accept: "application/json" } });
      if (!response.ok) return;
      const said = await response.json();
      if (said.rows) {
        this.columns = [];
        this.labels = said.labels;
        this.rows = said.rows.map((row) => ({ ...row, right: 0, known: 0 }));
      }
      this.edition = String(said.edition);
      this.clock = said.clock;
      for (const one of said.columns) {
        if (this.columns[one.at]) this.count(this.columns[one.at], -1);
        this.columns[one.at] = this.judge(one);
        this.count(this.columns[one.at], 1);
      }
      more = said.more;
    }
    const useful = this.rows.length && this.columns.some((column) => column?.bytes.length);
    by("matrix").hidden = !useful;
    if (useful) this.arrange();
  }

  count(column, sign) {
    this.rows.forEach((row, place) => {
      row.known += column.outcome[place] ? sign : 0;
      row.right += column.outcome[place] > 0 ? sign : 0;
    });
  }

  // Which rows a prompt gets right: the label with the largest value is what it predicts.
  judge(one) {
    const bytes = decode(one.cells);
    const classes = this.labels.length;
    const outcome = new Int16Array(this.rows.length); // predicted label + 1, negative where wrong, 0 where unknown
    this.rows.forEach((row, place) => {
      let best = -1;
      for (let label = 0; label < classes; label++) {
        const value = bytes[place * classes + label];
        if (value === undefined || value === UNKNOWN) return;
        if (best < 0 || value > bytes[place * classes + best]) best = label;
      }
      outcome[place] = best === row.label ? best + 1 : -best - 1;
    });
    return { ...one, bytes, outcome };
  }

  arrange() {
    if (by("matrix").hidden) return;
    const order = [...this.columns.keys()].filter((place) => this.columns[place]?.bytes.length);
    if (by("matrix-columns").value === "score") order.sort((a, b) => (this.columns[b].score ?? -Infinity) - (this.columns[a].score ?? -Infinity));
    const lines = [...this.rows.keys()].filter((place) => this.rows[place].known);
    const share = (place) => (this.rows[place].known ? this.rows[place].right / this.rows[place].known : 2);
    if (by("matrix-rows").value === "hard") lines.sort((a, b) => share(a) - share(b));
    this.order = order;
    this.lines = lines;
    const width = this.frame.clientWidth;
    this.cellWidth = Math.max(6, Math.min(26, Math.floor((width - GUTTER) / order.length)));
    this.cellHeight = Math.max(4, Math.min(15, Math.floor(TALLEST / lines.length)));
    const tall = this.cellHeight * lines.length;
    const height = Math.min(tall, TALLEST);
    this.frame.style.height = `${height + 2}px`;
    this.frame.style.overflowY = tall > height ? "auto" : "hidden";
    this.room.style.width = `${GUTTER + this.cellWidth * order.length}px`;
    this.room.style.height = `${tall}px`;
    const scale = window.devicePixelRatio || 1;
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    by("matrix-count").textContent = `${order.length.toLocaleString("en")} prompts, ${lines.length.toLocaleString("en")} texts`;
    this.showHard();
    this.later();
  }

  later() {
    if (this.asked) return;
    this.asked = requestAnimationFrame(() => {
      this.asked = 0;
      this.draw();
    });
  }

  draw() {
    if (!this.order) return;
    const style = getComputedStyle(document.documentElement);
    const hit = style.getPropertyValue("--hit");
    const miss = style.getPropertyValue("--miss");
    const context = this.canvas.getContext("2d");
    const scale = window.devicePixelRatio || 1;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    const { scrollLeft, scrollTop, clientWidth, clientHeight } = this.frame;
    const firstColumn = Math.max(0, Math.floor((scrollLeft - GUTTER) / this.cellWidth));
    const lastColumn = Math.min(this.order.length, Math.ceil((scrollLeft + clientWidth - GUTTER) / this.cellWidth));
    const firstLine = Math.floor(scrollTop / this.cellHeight);
    const lastLine = Math.min(this.lines.length, Math.ceil((scrollTop + clientHeight) / this.cellHeight));
    const classes = this.labels.length;
    for (let line = firstLine; line < lastLine; line++) {
      const place = this.lines[line];
      const top = line * this.cellHeight - scrollTop;
      for (let at = firstColumn; at < lastColumn; at++) {
        const column = this.columns[this.order[at]];
        const outcome = column.outcome[place];
        if (!outcome) continue;
        const sure = column.bytes[place * classes + Math.abs(outcome) - 1] / 254;
        const strength = 0.16 + 0.8 * Math.max(0, (sure - 1 / classes) / (1 - 1 / classes));
        context.fillStyle = `rgba(${outcome > 0 ? hit : miss}, ${strength.toFixed(2)})`;
        context.fillRect(GUTTER + at * this.cellWidth - scrollLeft, top, this.cellWidth - 1, this.cellHeight - 1);
      }
      const row = this.rows[place];
      if (row.known && !row.right) {
        context.fillStyle = `rgb(${miss})`;
        context.fillRect(0, top, GUTTER - 4, this.cellHeight - 1);
      }
    }
    if (this.cursor) {
      context.strokeStyle = style.getPropertyValue("--ink");
      context.lineWidth = 2;
      const left = GUTTER + this.cursor.at * this.cellWidth - scrollLeft;
      context.strokeRect(left, this.cursor.line * this.cellHeight - scrollTop, this.cellWidth - 1, this.cellHeight - 1);
    }
  }

  point(event) {
    if (!this.order) return;
    const box = this.frame.getBoundingClientRect();
    const at = Math.floor((event.clientX - box.left + this.frame.scrollLeft - GUTTER) / this.cellWidth);
    const line = Math.floor((event.clientY - box.top + this.frame.scrollTop) / this.cellHeight);
    if (at >= 0 && at < this.order.length && line >= 0 && line < this.lines.length) this.select(at, line);
  }

  key(event) {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], PageUp: [0, -10], PageDown: [0, 10], Home: [-Infinity, 0], End: [Infinity, 0] };
    const move = moves[event.key];
    if (!move || !this.order?.length) return;
    event.preventDefault();
    const now = this.cursor ?? { at: 0, line: 0 };
    const within = (value, most) => Math.max(0, Math.min(most - 1, value));
    const at = this.cursor ? within(now.at + move[0], this.order.length) : 0;
    const line = this.cursor ? within(now.line + move[1], this.lines.length) : 0;
    const left = GUTTER + at * this.cellWidth;
    if (left < this.frame.scrollLeft + GUTTER) this.frame.scrollLeft = left - GUTTER;
    if (left + this.cellWidth > this.frame.scrollLeft + this.frame.clientWidth) this.frame.scrollLeft = left + this.cellWidth - this.frame.clientWidth;
    const top = line * this.cellHeight;
    if (top < this.frame.scrollTop) this.frame.scrollTop = top;
    if (top + this.cellHeight > this.frame.scrollTop + this.frame.clientHeight) this.frame.scrollTop = top + this.cellHeight - this.frame.clientHeight;
    this.select(at, line);
  }

  select(at, line) {
    if (this.cursor && this.cursor.at === at && this.cursor.line === line) return;
    this.cursor = { at, line };
    const column = this.columns[this.order[at]];
    const place = this.lines[line];
    const row = this.rows[place];
    const outcome = column.outcome[place];
    const classes = this.labels.length;
    const word = outcome ? (outcome > 0 ? "right" : "wrong") : "not known";
    const odds = this.labels.map((label, number) => {
      const value = column.bytes[place * classes + number];
      return element("span", {}, `${label}: ${value === undefined || value === UNKNOWN ? "?" : Math.round((100 * value) / 254) + " %"}`);
    });
    by("matrix-cell").replaceChildren(
      element("p", {}, element("b", {}, column.prompt), ` · score ${column.score == null ? "–" : column.score.toPrecision(4)}`),
      element("p", {}, element("span", { class: outcome > 0 ? "right" : "wrong" }, word), ` · labelled ${this.labels[row.label] ?? "?"} · `, row.text),
      element("p", { class: "probabilities" }, ...odds),
    );
    this.later();
  }

  showHard() {
    const known = this.rows.filter((row) => row.known);
    const hardest = known.sort((a, b) => a.right / a.known - b.right / b.known).slice(0, 12);
    by("hard-rows").replaceChildren(
      ...hardest.map((row) => element("tr", {}, element("td", { class: "words" }, row.text), element("td", {}, this.labels[row.label] ?? "?"), element("td", { class: "num" }, `${row.right} of ${row.known}`))),
    );
  }
}
