"use strict";
// The page is complete without this script. It adds a note at the pointer, arrow keys on the map,
// a list of collected heads, and filtering of the answers.

for (const element of document.querySelectorAll(".live:not(#collected)")) element.hidden = false;

const tip = document.getElementById("tip");

function showTip(cell) {
  const note = cell.dataset.note;
  if (!note) return;
  tip.textContent = note;
  tip.hidden = false;
  const place = cell.getBoundingClientRect();
  const width = document.documentElement.clientWidth;
  const left = Math.min(Math.max(8, place.left), width - tip.offsetWidth - 8);
  const above = place.top - tip.offsetHeight - 8;
  const top = above > 0 ? above : place.bottom + 8;
  tip.style.left = `${left + scrollX}px`;
  tip.style.top = `${top + scrollY}px`;
}

function enliven(map) {
  const cells = [...map.querySelectorAll("td[title]")];
  if (!cells.length) return;
  // Our note replaces the browser's own, which is slow and out of reach for the keyboard.
  for (const cell of cells) {
    cell.dataset.note = cell.title;
    cell.removeAttribute("title");
    cell.tabIndex = -1;
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
    if (cell) showTip(cell);
    else tip.hidden = true;
  }

  function neighbour(cell, down, right) {
    if (right) {
      const next = cell.parentNode.cells[cell.cellIndex + right];
      return next && next.dataset.note ? next : null;
    }
    const rows = map.tBodies[0].rows;
    for (let row = cell.parentNode.sectionRowIndex + down; rows[row]; row += down) {
      const heads = [...rows[row].cells].filter((one) => one.dataset.note);
      if (heads.length) return heads[Math.min(cell.cellIndex, heads.length) - 1];
    }
    return null;
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
    if (event.key === "Escape") light(null);
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      collect(map, cell);
    }
    if (!moves[event.key]) return;
    event.preventDefault();
    const next = neighbour(cell, ...moves[event.key]);
    if (next) next.focus();
  });
  map.addEventListener("click", (event) => {
    const cell = event.target.closest("td[data-note]");
    if (cell) collect(map, cell);
  });
}

function collect(map, cell) {
  const shelf = document.getElementById("collected");
  if (!shelf || map.id !== "map") return;
  cell.setAttribute("aria-selected", cell.getAttribute("aria-selected") !== "true");
  const chosen = [...map.querySelectorAll('td[aria-selected="true"]')];
  const names = chosen.map((one) => one.dataset.note.split(":")[0]);
  const option = document.createElement("code");
  option.textContent = `--heads ${names.join(",")}`;
  shelf.replaceChildren("Collected: ", option);
  shelf.hidden = !names.length;
}

function filterAnswers(form) {
  const rows = [...document.getElementById("answer-table").tBodies[0].rows];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const more = document.getElementById("more");
  const page = 50;
  let limit = page;

  function update() {
    const status = form.elements.status.value;
    const wanted = form.elements.text.value.toLowerCase();
    let found = 0;
    rows.forEach((row, index) => {
      const fits = (!status || row.dataset.status === status) && texts[index].includes(wanted);
      if (fits) found += 1;
      row.hidden = !fits || found > limit;
    });
    document.getElementById("shown").textContent =
      found > limit ? `${limit} of ${found} shown` : found ? `${found} shown` : "No answer fits.";
    more.hidden = found <= limit;
  }

  form.addEventListener("input", () => {
    limit = page;
    update();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  more.addEventListener("click", () => {
    limit += page;
    update();
  });
  update();
}

document.querySelectorAll("table.map:not(.mini)").forEach(enliven);
const filters = document.getElementById("filters");
if (filters) filterAnswers(filters);
