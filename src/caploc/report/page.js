"use strict";
// What a reader must know is on the page without this script. It adds notes at the pointer, arrow
// keys on the map, pinned heads, sorting and filtering of long lists, and buttons that copy.

const PAGE = 25;
const byId = (id) => document.getElementById(id);

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

for (const element of document.querySelectorAll(".live")) element.hidden = false;

// Notes at the pointer and at the focused cell.

const tip = byId("tip");

function showTip(mark) {
  const note = mark && mark.dataset.note;
  tip.hidden = !note;
  if (!note) return;
  tip.textContent = note;
  const place = mark.getBoundingClientRect();
  const width = document.documentElement.clientWidth;
  const left = Math.min(Math.max(8, place.left), width - tip.offsetWidth - 8);
  const above = place.top - tip.offsetHeight - 8;
  const top = above > 0 ? above : place.bottom + 8;
  tip.style.left = `${left + scrollX}px`;
  tip.style.top = `${top + scrollY}px`;
}

for (const chart of document.querySelectorAll(".chart")) {
  chart.addEventListener("pointerover", (event) => showTip(event.target.closest("[data-note]")));
  chart.addEventListener("pointerleave", () => showTip(null));
}
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") showTip(null);
});

// The map of heads.

const heads = new Map(); // name of a head -> its cell, on the page's own map

function enliven(map) {
  const cells = [...map.querySelectorAll("td[title]")];
  if (!cells.length) return;
  // Our note replaces the browser's own, which is slow and out of reach for the keyboard.
  for (const cell of cells) {
    cell.dataset.note = cell.title;
    cell.removeAttribute("title");
    cell.tabIndex = -1;
    if (map.id === "map") heads.set(cell.dataset.note.split(":")[0], cell);
  }
  cells[0].tabIndex = 0;
  map.setAttribute("role", "grid");
  const columnLabels = map.tHead.rows[0].cells;
  let current = cells[0];
  let lit = [];

  function light(cell) {
    for (const label of lit) label.classList.remove("on");
    lit = cell ? [cell.parentNode.cells[0], columnLabels[cell.cellIndex]] : [];
    for (const label of lit) label.classList.add("on");
    showTip(cell);
  }

  function neighbour(cell, down, right) {
    if (right) {
      const next = cell.parentNode.cells[cell.cellIndex + right];
      return next && next.dataset.note ? next : null;
    }
    const rows = map.tBodies[0].rows;
    for (let row = cell.parentNode.sectionRowIndex + down; rows[row]; row += down) {
      const found = [...rows[row].cells].filter((one) => one.dataset.note);
      if (found.length) return found[Math.min(cell.cellIndex, found.length) - 1];
    }
    return null;
  }

  function ends(cell, key) {
    const row = [...cell.parentNode.cells].filter((one) => one.dataset.note);
    return key === "Home" ? row[0] : row[row.length - 1];
  }

  map.addEventListener("pointerover", (event) => light(event.target.closest("td[data-note]")));
  map.addEventListener("pointerleave", () => light(null));
  map.addEventListener("focusin", (event) => {
    const cell = event.target.closest("td[data-note]");
    if (!cell) return;
    current.tabIndex = -1;
    current = cell;
    cell.tabIndex = 0;
    cell.setAttribute("aria-label", cell.dataset.note);
    light(cell);
  });
  map.addEventListener("focusout", () => light(null));
  map.addEventListener("keydown", (event) => {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const cell = event.target.closest("td[data-note]");
    if (!cell) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      pin(cell);
    }
    const far = event.key === "Home" || event.key === "End";
    if (!moves[event.key] && !far) return;
    event.preventDefault();
    const next = far ? ends(cell, event.key) : neighbour(cell, ...moves[event.key]);
    if (next) next.focus();
  });
  map.addEventListener("click", (event) => {
    const cell = event.target.closest("td[data-note]");
    if (cell) pin(cell);
  });
}

// Pinned heads: what is known of each stays in view, and the command line's words for them.

function pin(cell) {
  if (!byId("pins") || cell.closest("table").id !== "map") return;
  cell.setAttribute("aria-selected", cell.getAttribute("aria-selected") !== "true");
  showPins();
}

function showPins() {
  const pinned = [...heads].filter(([, cell]) => cell.getAttribute("aria-selected") === "true");
  const items = pinned.map(([name, cell]) => {
    const [first, ...rest] = cell.dataset.note.split("\n");
    const button = make("button", { type: "button", textContent: "Unpin" });
    button.setAttribute("aria-label", `Unpin ${name}`);
    button.addEventListener("click", () => {
      pin(cell);
      cell.focus();
    });
    const lines = rest.map((line) => make("span", { textContent: line }));
    return make("li", {}, make("strong", { textContent: first }), ...lines, button);
  });
  byId("pinned").replaceChildren(...items);
  byId("pinned-heads").textContent = `--heads ${pinned.map(([name]) => name).join(",")}`;
  byId("pins").hidden = !pinned.length;
  for (const button of document.querySelectorAll("button[data-pin]")) {
    const cell = heads.get(button.dataset.pin);
    button.setAttribute("aria-pressed", cell.getAttribute("aria-selected") === "true");
  }
}

// A long list, of which a page of rows at a time is in the document.

class List {
  constructor(name, table, form, rows, row) {
    Object.assign(this, { table, form, rows, row, wanted: () => true, order: null, first: 0 });
    this.earlier = byId(`${name}-earlier`);
    this.later = byId(`${name}-later`);
    this.place = byId(`${name}-place`);
    this.shown = byId(`${name}-shown`);
    this.earlier.addEventListener("click", () => this.turn(-PAGE));
    this.later.addEventListener("click", () => this.turn(PAGE));
    form.addEventListener("input", () => this.filter());
    form.addEventListener("submit", (event) => event.preventDefault());
  }

  filter() {
    const words = this.form.elements.text.value.toLowerCase();
    const chosen = this.rows.filter((row, index) => this.wanted(row, index));
    this.found = words ? chosen.filter((row) => textOf(row).includes(words)) : chosen;
    if (this.order) this.found.sort(this.order);
    this.first = 0;
    this.show();
  }

  turn(step) {
    this.first = Math.max(0, Math.min(this.first + step, this.found.length - 1));
    this.first -= this.first % PAGE;
    this.show();
    const box = this.table.getBoundingClientRect();
    if (box.top < 0) this.table.scrollIntoView();
  }

  show() {
    const last = Math.min(this.first + PAGE, this.found.length);
    const rows = this.found.slice(this.first, last).map(this.row);
    this.table.tBodies[0].replaceChildren(...rows);
    const count = this.found.length;
    const of = `${count.toLocaleString("en")} of ${this.rows.length.toLocaleString("en")}`;
    this.shown.textContent = count ? `${of} fit` : "Nothing fits.";
    const from = (this.first + 1).toLocaleString("en");
    this.place.textContent = count ? `${from}–${last.toLocaleString("en")}` : "";
    this.earlier.disabled = this.first === 0;
    this.later.disabled = last >= count;
    this.place.parentNode.hidden = count <= PAGE;
  }
}

const texts = new WeakMap(); // a row -> its text in small letters, made when it is first searched

function textOf(row) {
  if (!texts.has(row)) {
    texts.set(row, row.map((cell) => (Array.isArray(cell) ? cell.join("") : cell)).join("\n").toLowerCase());
  }
  return texts.get(row);
}

// The table of heads.

function headTable(form) {
  const table = byId("head-table");
  const { count, named, rows } = JSON.parse(byId("heads-data").textContent);
  const headings = [...table.tHead.rows[0].cells];
  const fields = headings.map((heading) => Number(heading.dataset.field));
  const list = new List("heads", table, form, rows, (row) => headRow(row, fields, headings, named));
  list.wanted = (row, index) => form.elements.kind.value === "all" || index < count;
  for (const heading of headings.filter((one) => one.dataset.sort)) sortable(heading, list, headings);
  list.filter();
}

function headRow(row, fields, headings, named) {
  const cells = fields.map((field, index) => {
    if (field === 1) {
      const name = make("th", { scope: "row" });
      name.append(heads.has(row[1]) ? pinButton(row[1]) : row[1]);
      return name;
    }
    return make("td", { textContent: row[field], className: headings[index].className });
  });
  return make("tr", { className: !named || row[7].startsWith("named") ? "" : "quiet" }, ...cells);
}

function pinButton(name) {
  const button = make("button", { type: "button", className: "pin", textContent: name });
  button.dataset.pin = name;
  button.title = "Pin this head";
  button.setAttribute("aria-pressed", heads.get(name).getAttribute("aria-selected") === "true");
  button.addEventListener("click", () => pin(heads.get(name)));
  button.addEventListener("pointerenter", () => heads.get(name).classList.add("hint"));
  button.addEventListener("pointerleave", () => heads.get(name).classList.remove("hint"));
  return button;
}

function sortable(heading, list, headings) {
  const field = Number(heading.dataset.sort);
  const button = make("button", { type: "button", className: "sort" }, ...heading.childNodes);
  heading.append(button);
  button.addEventListener("click", () => {
    const up = heading.getAttribute("aria-sort") !== "ascending";
    for (const one of headings) one.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", up ? "ascending" : "descending");
    list.order = (one, other) => compared(one[field], other[field], up ? 1 : -1);
    list.filter();
  });
}

// What is missing comes last, whichever way the rest is sorted.
function compared(one, other, sign) {
  const missing = [one, other].map((value) => value === null || value === "–");
  if (missing[0] || missing[1]) return missing[0] - missing[1];
  if (typeof one === "number") return sign * (one - other);
  return sign * one.localeCompare(other, "en", { numeric: true });
}

// The answers.

function answerTable(form) {
  const rows = JSON.parse(byId("answers-data").textContent);
  const list = new List("answers", byId("answer-table"), form, rows, answerRow);
  list.wanted = (row) => !form.elements.status.value || row[1] === form.elements.status.value;
  list.filter();
}

function answerRow([example, status, prompt, gold, intact, knockedOut, outcomes, kind]) {
  const label = make("b", { className: `badge ${status.replace(" ", "-")}`, textContent: status });
  const name = make("th", { scope: "row" }, make("span", { textContent: example }), " ", label);
  name.append(make("small", { textContent: `outcome ${outcomes}` }));
  if (kind) name.append(make("small", { textContent: kind }));
  const cells = [
    answerCell("Prompt", [prompt], "", "prompt"),
    answerCell("Right answer", gold === null ? null : [gold], "not given"),
    answerCell("Intact", intact, "not measured", "", "del"),
    answerCell("Knocked out", knockedOut, "not measured", "", "ins"),
  ];
  return make("tr", {}, name, ...cells);
}

function answerCell(label, parts, missing, className = "", tag = "") {
  const cell = make("td", { className });
  cell.dataset.label = label;
  if (parts === null) {
    cell.append(make("em", { textContent: missing }));
    return cell;
  }
  const pieces = parts.map((text, place) => (place % 2 ? make(tag, { textContent: text }) : text));
  cell.append(make("pre", { dir: "auto" }, ...pieces));
  return cell;
}

// Buttons that copy.

async function copy(button) {
  const source = byId(button.dataset.copy);
  const text = source.innerText.trim();
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(source);
    button.textContent = "Selected: press Ctrl+C";
  }
  setTimeout(() => (button.textContent = label), 2000);
}

document.querySelectorAll("table.map:not(.mini)").forEach(enliven);
if (byId("head-filters")) headTable(byId("head-filters"));
if (byId("filters")) answerTable(byId("filters"));
for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", () => copy(button));
}
if (byId("unpin")) {
  byId("unpin").addEventListener("click", () => {
    for (const cell of heads.values()) cell.setAttribute("aria-selected", "false");
    showPins();
  });
}
