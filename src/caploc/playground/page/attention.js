// Where a head looks: a heat map of tokens by tokens, and the text shaded by one token's weights.

import { element, inline, visible } from "./words.js";

const LABELLED = 72; // tokens up to which the map's sides are labelled
const [SMALLEST, LARGEST] = [2, 22]; // pixels of a cell
const ROOM = 58; // pixels of the labels

export class Attention {
  constructor() {
    this.canvas = document.getElementById("canvas");
    this.at = null;
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerdown", (event) => this.point(event));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    for (const query of ["(prefers-color-scheme: dark)", "(max-width: 44rem)"]) {
      matchMedia(query).addEventListener("change", () => this.draw());
    }
  }

  show(found, about) {
    this.tokens = found.tokens;
    this.weights = decoded(found.weights);
    this.size = found.tokens.length;
    this.at = [this.size - 1, 0];
    document.getElementById("pattern").hidden = false;
    this.canvas.setAttribute("aria-label", `Attention of ${found.head} over ${this.size} tokens, ${about}`);
    let most = 0;
    for (let key = 0; key < this.size; key += 1) {
      if (this.weight(this.size - 1, key) > this.weight(this.size - 1, most)) most = key;
    }
    this.at[1] = most;
    this.draw();
  }

  weight(query, key) {
    return this.weights[query * this.size + key];
  }

  draw() {
    if (!this.at) return;
    const room = this.size <= LABELLED ? ROOM : 4;
    const width = Math.min(640, document.getElementById("attention").clientWidth - 8);
    this.cell = Math.max(SMALLEST, Math.min(LARGEST, Math.floor((width - room) / this.size)));
    this.room = room;
    const side = room + this.cell * this.size + 2;
    const scale = devicePixelRatio || 1;
    Object.assign(this.canvas, { width: side * scale, height: side * scale });
    Object.assign(this.canvas.style, { width: `${side}px`, height: `${side}px` });
    const pen = this.canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    this.paint(pen);
    if (room === ROOM) this.label(pen);
    this.mark(pen);
    this.read();
  }

  paint(pen) {
    const colour = style("--attention");
    const gap = this.cell > 5 ? 1 : 0;
    for (let query = 0; query < this.size; query += 1) {
      for (let key = 0; key < this.size; key += 1) {
        const strength = Math.sqrt(this.weight(query, key));
        if (key > query && strength === 0) continue;
        pen.fillStyle = `rgba(${colour},${0.05 + 0.95 * strength})`;
        const [left, top] = this.corner(query, key);
        pen.fillRect(left, top, this.cell - gap, this.cell - gap);
      }
    }
  }

  corner(query, key) {
    return [this.room + key * this.cell, this.room + query * this.cell];
  }

  label(pen) {
    if (this.cell < 7) return;
    pen.font = `${Math.min(12, this.cell)}px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace`;
    pen.textBaseline = "middle";
    for (let number = 0; number < this.size; number += 1) {
      const text = short(this.tokens[number]);
      const middle = this.room + (number + 0.5) * this.cell;
      const on = number === this.at[0];
      pen.fillStyle = style(on ? "--ink" : "--quiet");
      pen.textAlign = "right";
      pen.fillText(text, this.room - 5, middle);
      pen.fillStyle = style(number === this.at[1] ? "--ink" : "--quiet");
      pen.save();
      pen.translate(middle, this.room - 5);
      pen.rotate(-Math.PI / 2);
      pen.textAlign = "left";
      pen.fillText(text, 0, 0);
      pen.restore();
    }
  }

  mark(pen) {
    pen.strokeStyle = style("--needed");
    pen.lineWidth = 2;
    const [left, top] = this.corner(...this.at);
    pen.strokeRect(left - 1, top - 1, this.cell + 1, this.cell + 1);
  }

  read() {
    const [query, key] = this.at;
    const weight = this.weight(query, key);
    document.getElementById("readout").replaceChildren(
      element("span", { class: "piece" }, inline(this.tokens[query])),
      ` (token ${query}) gives ${(100 * weight).toFixed(weight < 0.001 && weight > 0 ? 4 : 1)} % of its attention to `,
      element("span", { class: "piece" }, inline(this.tokens[key])),
      ` (token ${key})`,
    );
    const colour = style("--attention");
    const parts = this.tokens.map((text, number) => {
      const part = element("span", {}, visible(text) || "·");
      part.style.backgroundColor = `rgba(${colour},${0.7 * Math.sqrt(this.weight(query, number))})`;
      if (number === query) part.className = "looks";
      return part;
    });
    document.getElementById("strip").replaceChildren(...parts);
  }

  point(event) {
    if (!this.at) return;
    const box = this.canvas.getBoundingClientRect();
    const key = Math.floor((event.clientX - box.left - this.room) / this.cell);
    const query = Math.floor((event.clientY - box.top - this.room) / this.cell);
    this.move(query, key);
  }

  move(query, key) {
    const inside = (place) => place >= 0 && place < this.size;
    if (!inside(query) || !inside(key)) return;
    if (query === this.at[0] && key === this.at[1]) return;
    this.at = [query, key];
    this.draw();
  }

  key(event) {
    if (!this.at) return;
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    this.move(this.at[0] + step[0], this.at[1] + step[1]);
  }
}

function decoded(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}

function style(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function short(text) {
  const shown = inline(text).replaceAll(" ", "␣");
  return shown.length > 7 ? `${shown.slice(0, 6)}…` : shown;
}
