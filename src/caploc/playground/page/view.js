// All runs, and one run with its report and examples. Everything that a run says only ever becomes
// text nodes; reports are shown in a frame that has no origin.

import { element, inline, visible } from "./words.js";
import { get, said } from "./net.js";

const by = (id) => document.getElementById(id);
const OFTEN = 2000; // milliseconds between two looks at runs that go on
const SOON = 200; // milliseconds after the last key before a search

const when = (seconds) => new Date(seconds * 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
const count = (number) => number.toLocaleString("en");
const rowsOf = (run) => (run.rows === null ? "" : count(run.rows));
const damage = ({ scores: [before, after] }) => (before === null || after === null ? -Infinity : before - after);
const fewOf = (heads) => (heads.length > 6 ? `${heads.slice(0, 5).join(" ")} and ${heads.length - 5} more` : heads.join(" "));

// Title, what a cell shows, and what it is sorted by where that is another.
const COLUMNS = [
  { title: "Run", key: (run) => run.path },
  { title: "Model", key: (run) => run.model },
  { title: "Task", key: (run) => run.task },
  { title: "Method", text: (run) => run.method + (run.goal && run.goal !== "heads" ? `, ${run.goal}` : "") },
  { title: "Seed", text: (run) => run.seed ?? "" },
  { title: "Heads", text: (run) => fewOf(run.heads), key: (run) => run.heads.length },
  { title: "Intact → without", text: (run) => (run.shown_scores.some(Boolean) ? run.shown_scores.map((each) => each || "–").join(" → ") : ""), key: (run) => -damage(run), down: true },
  { title: "Rows", text: rowsOf, key: (run) => -(run.rows ?? -1), down: true },
  { title: "Date", text: (run) => when(run.date), key: (run) => -run.date, down: true },
  { title: "State", text: (run) => run.state },
];

function toggle(id, shown) {
  by(id).hidden = !shown;
}

async function trying(work) {
  toggle("failure", false);
  try {
    return await work();
  } catch (error) {
    by("failure").textContent = visible(said(error));
    toggle("failure", true);
    return null;
  }
}

// Look again and again while the page is in view; what stays the same is not drawn again.
async function watch(path, draw, goesOn) {
  let before = "";
  for (;;) {
    const found = document.hidden ? null : await trying(() => get(path));
    const text = JSON.stringify(found);
    if (found && text !== before) {
      before = text;
      draw(found);
    }
    if (found && !goesOn(found)) return;
    await new Promise((resolve) => setTimeout(resolve, OFTEN));
  }
}

function state(run) {
  return element("span", { class: `state ${run.state}` }, run.state);
}

class RunList {
  constructor() {
    this.runs = [];
    this.column = 8;
    toggle("list", true);
    by("sort").append(...COLUMNS.map(({ title }, n) => element("option", { value: n }, title.toLowerCase())));
    by("sort").value = this.column;
    by("sort").addEventListener("change", () => this.sortBy(Number(by("sort").value)));
    by("find").addEventListener("input", () => this.draw());
    const heads = COLUMNS.map(({ title }, n) => {
      const button = element("button", { type: "button" }, title);
      button.addEventListener("click", () => this.sortBy(n));
      return element("th", { scope: "col" }, button);
    });
    this.heads = heads;
    by("runs").tHead.append(element("tr", {}, ...heads));
    watch("/runs", (found) => this.take(found), () => true);
  }

  take({ root, runs }) {
    this.runs = runs;
    by("where").textContent = visible(root);
    document.title = `${root} · caploc runs`;
    this.draw();
  }

  sortBy(column) {
    this.turned = column === this.column ? !this.turned : false;
    this.column = column;
    by("sort").value = column;
    this.draw();
  }

  // What is typed, word by word, anywhere in what is shown of a run.
  wanted(run) {
    const text = `${run.verdict} ${run.kind} ${run.heads.join(" ")} ${COLUMNS.map((column) => (column.text ?? column.key)(run)).join(" ")}`.toLowerCase();
    return by("find").value.toLowerCase().split(/\s+/).every((word) => text.includes(word));
  }

  draw() {
    const { key, text } = COLUMNS[this.column];
    const value = key ?? text;
    const order = (one, other) => {
      const [a, b] = [value(one), value(other)];
      const found = typeof a === "number" && typeof b === "number" ? a - b : `${a}`.localeCompare(`${b}`, "en", { numeric: true });
      return this.turned ? -found : found;
    };
    const runs = this.runs.filter((run) => this.wanted(run)).sort((a, b) => order(a, b));
    this.heads.forEach((head, n) => {
      if (n === this.column) head.setAttribute("aria-sort", Boolean(this.turned) === Boolean(COLUMNS[n].down) ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
    by("runs").tBodies[0].replaceChildren(...runs.map((run) => this.row(run)));
    toggle("runs", this.runs.length > 0);
    toggle("no-runs", this.runs.length === 0);
    by("no-runs").textContent = "There is no run here yet; `caploc locate` and `caploc demo` make some, and they appear here at once.";
    const going = this.runs.filter((run) => run.state === "running").length;
    by("list-shown").textContent = `${count(runs.length)} of ${count(this.runs.length)}${going ? `, ${going} running` : ""}`;
  }

  row(run) {
    const kind = ["heads", "run"].includes(run.kind) ? "" : element("span", { class: "kind" }, run.kind);
    const name = element("th", { scope: "row" }, element("a", { href: `/run/${run.id}/` }, run.path), " ", kind);
    if (run.verdict) name.append(element("small", {}, visible(run.verdict)));
    const cells = COLUMNS.slice(1).map(({ title, text, key }) => {
      const shown = title === "State" ? state(run) : `${(text ?? key)(run)}`;
      return element("td", { "data-label": title, class: shown === "" ? "empty" : "" }, shown === "" ? "–" : shown);
    });
    return element("tr", {}, name, ...cells);
  }
}

class Run {
  constructor(id) {
    this.id = id;
    this.only = "all";
    this.first = 0;
    this.rows = [];
    toggle("run", true);
    watch(`/run/${id}/about`, (run) => this.take(run), (run) => run.state === "running");
    addEventListener("hashchange", () => this.open());
    by("words").addEventListener("input", () => {
      clearTimeout(this.soon);
      this.soon = setTimeout(() => this.look(0), SOON);
    });
    by("earlier").addEventListener("click", () => this.look(Math.max(0, this.first - this.atOnce)));
    by("later").addEventListener("click", () => this.look(this.first + this.atOnce));
    by("previous").addEventListener("click", () => this.step(-1));
    by("next").addEventListener("click", () => this.step(1));
  }

  take(run) {
    const before = this.run;
    this.run = run;
    document.title = `${run.path} · caploc runs`;
    by("run-title").textContent = run.path;
    by("verdict").textContent = visible(run.verdict);
    const facts = COLUMNS.slice(1).map(({ title, text, key }) => [title, title === "State" ? state(run) : `${(text ?? key)(run)}`]);
    by("facts").replaceChildren(...facts.filter(([, value]) => value !== "").map(([title, value]) => element("div", {}, element("dt", {}, title), element("dd", {}, value))));
    if (!before || before.state !== run.state) this.open();
  }

  get finished() {
    return this.run.kind === "heads" && this.run.state !== "unreadable";
  }

  async open() {
    const [part, place] = location.hash.slice(1).split("/");
    const shown = this.finished && part === "examples" ? (place ? "example" : "examples") : "report";
    const tabs = [["Report", "#report", shown === "report"]];
    if (this.finished) tabs.push(["Examples", "#examples", shown !== "report"], ["Playground", `/play/${this.id}/`, false]);
    by("tabs").replaceChildren(...tabs.map(([name, href, on]) => element("a", on ? { href, "aria-current": "page" } : { href }, name)));
    toggle("verdict", shown !== "report" || !this.finished); // a report begins with it
    for (const each of ["report", "examples", "example"]) toggle(`${each}-part`, each === shown);
    if (shown === "report") await this.report();
    if (shown === "examples") await this.look(this.first);
    if (shown === "example") await this.whole(Number(place));
  }

  async report() {
    const there = this.run.report;
    toggle("no-report", !there);
    by("no-report").textContent = this.run.state === "running" ? "The run goes on; its report comes with its result, here by itself." : "No report lies here; `caploc view FOLDER --write` writes that of a run.";
    if (there && by("report").hidden) by("report").src = `/run/${this.id}/report.html`;
    toggle("report", there);
  }

  async look(first) {
    const asked = new URLSearchParams({ only: this.only, text: by("words").value, first });
    const number = (this.asked = (this.asked ?? 0) + 1);
    const found = await trying(() => get(`/run/${this.id}/examples?${asked}`));
    if (!found || number !== this.asked) return; // something else was asked meanwhile
    Object.assign(this, { first: found.first, atOnce: found.at_once, rows: found.rows });
    const filters = Object.entries(found.counts).filter(([name, number]) => number || name === "all" || name === "changed");
    const focused = document.activeElement?.dataset?.only;
    by("filters").replaceChildren(...filters.map(([name, number]) => this.filter(name, number)));
    if (focused) document.querySelector(`[data-only=${focused}]`)?.focus();
    by("examples").tBodies[0].replaceChildren(...found.rows.map((row) => this.line(row)));
    by("examples-shown").textContent = `${count(found.total)} of ${count(found.counts.all)} examples`;
    const last = found.first + found.rows.length;
    toggle("pager", found.total > found.at_once);
    by("place").textContent = `${count(found.first + 1)} to ${count(last)}`;
    by("earlier").disabled = found.first === 0;
    by("later").disabled = last >= found.total;
  }

  filter(name, number) {
    const told = { right: "right intact", wrong: "wrong intact" }[name] ?? name;
    const button = element("button", { type: "button", "data-only": name, "aria-pressed": name === this.only }, `${told} `, element("span", {}, count(number)));
    button.addEventListener("click", () => {
      this.only = name;
      this.look(0);
    });
    return button;
  }

  line(row) {
    const text = (label, shown) => element("td", { "data-label": label }, shown === null ? element("em", {}, "not known") : shown || "∅");
    const name = element("th", { scope: "row" }, element("a", { href: `#examples/${row.place}` }, `${row.example ?? row.place + 1}`), " ", badge(row.status));
    if (row.kind) name.append(element("small", {}, row.kind));
    return element("tr", {}, name, text("Prompt", row.prompt), text("Right answer", row.gold), text("Intact", row.intact), text("Knocked out", row.knocked_out));
  }

  step(by_) {
    const at = this.rows.findIndex((row) => row.place === this.place);
    const next = at >= 0 && this.rows[at + by_] ? this.rows[at + by_].place : this.place + by_;
    if (next >= 0 && next < this.of) location.hash = `#examples/${next}`;
  }

  async whole(place) {
    const found = await trying(() => get(`/run/${this.id}/examples/${place}`));
    if (!found) return;
    Object.assign(this, { place, of: found.of });
    by("example-title").replaceChildren(`Example ${found.example ?? place + 1} of ${inline(found.title)} `, badge(found.status));
    by("example-outcome").textContent = `outcome ${found.outcomes}${found.kind ? `, ${found.kind}` : ""}`;
    by("prompt").textContent = found.prompt;
    by("prompt").scrollTop = by("prompt").scrollHeight;
    by("gold").replaceChildren("Right answer: ", element("b", {}, found.gold ?? "not given"));
    by("intact").replaceChildren(marked(found.intact));
    by("knocked_out").replaceChildren(marked(found.knocked_out));
    by("which").textContent = fewOf(found.top);
    toggle("try", found.example !== null);
    by("try").href = `/play/${this.id}/?${new URLSearchParams({ task: found.task, example: found.example })}`;
  }
}

function badge(status) {
  return element("span", { class: `badge ${status.replaceAll(" ", "-")}` }, status);
}

function marked(text) {
  if (text === null) return element("em", {}, "not measured");
  return text === "" ? element("em", {}, "nothing") : text;
}

const [, kind, id] = location.pathname.split("/");
if (kind === "run") window.view = new Run(id);
else window.view = new RunList();
