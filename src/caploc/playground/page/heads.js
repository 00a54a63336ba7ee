// The map of heads: which are knocked out, by click, key, slider or chance.

import { drawShades, element } from "./words.js";

const DENSE = 24;

export class HeadMap {
  constructor(layers, groupSizes, changed) {
    this.layers = layers;
    this.groupSizes = groupSizes;
    this.changed = changed;
    this.chosen = new Set();
    this.picked = this.chosen; // what was chosen otherwise than by chance: controls stand in for it
    this.cells = new Map();
    this.run = null;
    this.build(document.getElementById("map-place"));
    drawShades(document.getElementById("shades"));
  }

  build(place) {
    const columns = Math.max(...this.layers);
    const tick = columns <= DENSE ? 1 : columns <= 48 ? 4 : 8;
    const top = element("tr", {}, element("td"));
    for (let index = 0; index < columns; index += 1) {
      const label = index % tick === 0 ? `H${index}` : element("span", { class: "hidden" }, `H${index}`);
      top.append(element("th", { scope: "col" }, label));
    }
    const body = element("tbody");
    this.layers.forEach((count, layer) => body.append(this.row(layer, count, columns)));
    const map = element(
      "table",
      {
        class: columns > DENSE ? "map dense" : "map",
        id: "map",
        role: "grid",
        "aria-multiselectable": "true",
        "aria-label": "Heads, a row for each layer",
        "aria-describedby": "map-help",
      },
      element("thead", {}, top),
      body,
    );
    map.style.minWidth = `${2 + columns * (columns > DENSE ? 0.62 : 1)}rem`;
    map.addEventListener("click", (event) => this.click(event.target.closest("td[data-head]")));
    map.addEventListener("keydown", (event) => this.key(event));
    place.replaceChildren(map);
    tips(map);
  }

  row(layer, count, columns) {
    const row = element("tr", {}, element("th", { scope: "row" }, `L${layer}`));
    const size = this.groupSizes[layer] || 1;
    for (let index = 0; index < count; index += 1) {
      const name = `L${layer}H${index}`;
      const starts = size > 1 && index > 0 && index % size === 0;
      const cell = element("td", {
        class: "u",
        role: "gridcell",
        "data-head": name,
        "data-group": starts ? "g" : "",
        tabindex: "-1",
        "aria-selected": "false",
      });
      if (starts) cell.classList.add("g");
      this.cells.set(name, cell);
      row.append(cell);
    }
    if (count < columns) row.append(element("td", { class: "gap", colspan: columns - count }));
    const first = this.cells.values().next().value;
    if (layer === this.layers.findIndex((n) => n > 0) && first) first.tabIndex = 0;
    return row;
  }

  // Colour the map by a run's effects, or by nothing.
  show(run) {
    this.run = run;
    for (const [name, cell] of this.cells) {
      const [layer, index] = place(name);
      const known = run?.cells[layer]?.[index];
      cell.className = known ? known.shade : "u";
      if (cell.dataset.group) cell.classList.add("g");
      cell.textContent = known ? known.text : "";
      cell.dataset.note = known ? known.note : name;
    }
    const legend = document.getElementById("legend");
    legend.hidden = !run || !run.legend.needed;
    if (run) {
      document.getElementById("legend-needed").textContent = `${run.legend.needed} needed`;
      document.getElementById("legend-helped").textContent = `${run.legend.helped} better without`;
    }
    this.draw();
  }

  choose(names) {
    this.picked = this.chosen = new Set(names);
    this.draw();
    this.changed();
  }

  toggle(name) {
    this.picked = this.chosen = new Set(this.chosen);
    if (!this.chosen.delete(name)) this.chosen.add(name);
    this.draw();
    this.changed();
  }

  names() {
    return [...this.chosen];
  }

  draw() {
    for (const [name, cell] of this.cells) {
      const on = this.chosen.has(name);
      cell.setAttribute("aria-selected", on);
      const effect = this.run ? `, effect ${cell.textContent}` : "";
      cell.setAttribute("aria-label", `${name}${effect}${on ? ", knocked out" : ""}`);
    }
  }

  // As many heads of each layer outside those picked, for a control; all where there are too few.
  random() {
    const drawn = [];
    this.layers.forEach((count, layer) => {
      const names = Array.from({ length: count }, (_, index) => `L${layer}H${index}`);
      const wanted = names.filter((name) => this.picked.has(name)).length;
      const others = names.filter((name) => !this.picked.has(name));
      for (let left = Math.min(wanted, others.length); left > 0; left -= 1) {
        drawn.push(...others.splice(Math.floor(Math.random() * others.length), 1));
      }
    });
    this.chosen = new Set(drawn);
    this.draw();
    this.changed();
  }

  click(cell) {
    if (!cell) return;
    this.move(cell);
    this.toggle(cell.dataset.head);
  }

  key(event) {
    const cell = event.target.closest("td[data-head]");
    if (!cell) return;
    if (event.key === " " || event.key === "Enter") {
      event.preventDefault();
      this.toggle(cell.dataset.head);
      return;
    }
    const [layer, index] = place(cell.dataset.head);
    const next = {
      ArrowLeft: () => this.cells.get(`L${layer}H${index - 1}`),
      ArrowRight: () => this.cells.get(`L${layer}H${index + 1}`),
      ArrowUp: () => this.neighbour(layer, index, -1),
      ArrowDown: () => this.neighbour(layer, index, 1),
      Home: () => this.cells.get(`L${layer}H0`),
      End: () => this.cells.get(`L${layer}H${this.layers[layer] - 1}`),
    }[event.key];
    if (!next) return;
    event.preventDefault();
    const target = next();
    if (target) this.focus(target);
  }

  // The cell above or below, in the next layer that has heads: its last where it has fewer.
  neighbour(layer, index, step) {
    for (let other = layer + step; other in this.layers; other += step) {
      const last = this.layers[other] - 1;
      if (last >= 0) return this.cells.get(`L${other}H${Math.min(index, last)}`);
    }
    return null;
  }

  focus(cell) {
    this.move(cell);
    cell.focus();
  }

  move(cell) {
    document.querySelector("#map td[tabindex='0']")?.setAttribute("tabindex", "-1");
    cell.tabIndex = 0;
  }
}

function place(name) {
  return name.slice(1).split("H").map(Number);
}

// The note of a cell beside it, for mouse and keyboard alike.
function tips(map) {
  const tip = document.getElementById("tip");
  const show = (event) => {
    const cell = event.target.closest("td[data-note]");
    tip.hidden = !cell;
    if (!cell) return;
    tip.textContent = cell.dataset.note;
    const box = cell.getBoundingClientRect();
    const left = Math.min(box.left, document.documentElement.clientWidth - tip.offsetWidth - 12);
    tip.style.left = `${Math.max(4, left) + scrollX}px`;
    tip.style.top = `${box.bottom + scrollY + 7}px`;
  };
  const hide = () => {
    tip.hidden = true;
  };
  map.addEventListener("pointerover", show);
  map.addEventListener("focusin", show);
  map.addEventListener("pointerleave", hide);
  map.addEventListener("focusout", hide);
  document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
}
