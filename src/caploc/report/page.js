"use strict";
// What a reader must know is on the page without this script. It adds notes at the pointer, and
// arrow keys on the map.

const tip = document.getElementById("tip");

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
  let current = cells[0];

  function neighbour(cell, down, right) {
    const row = map.tBodies[0].rows[cell.parentNode.sectionRowIndex + down];
    const next = row && row.cells[cell.cellIndex + right];
    return next && next.dataset.note ? next : null;
  }

  map.addEventListener("pointerover", (event) => showTip(event.target.closest("td[data-note]")));
  map.addEventListener("pointerleave", () => showTip(null));
  map.addEventListener("focusin", (event) => {
    const cell = event.target.closest("td[data-note]");
    if (!cell) return;
    current.tabIndex = -1;
    current = cell;
    cell.tabIndex = 0;
    cell.setAttribute("aria-label", cell.dataset.note);
    showTip(cell);
  });
  map.addEventListener("focusout", () => showTip(null));
  map.addEventListener("keydown", (event) => {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const cell = event.target.closest("td[data-note]");
    if (!cell || !moves[event.key]) return;
    event.preventDefault();
    const next = neighbour(cell, ...moves[event.key]);
    if (next) next.focus();
  });
}

document.querySelectorAll("table.map").forEach(enliven);
