// The page: what is chosen, asked and shown, and which of it follows from which.

import { Answers } from "./answers.js";
import { HeadMap } from "./heads.js";
import { ask, get, lines, said } from "./net.js";
import { element, inline, visible } from "./words.js";

const by = (id) => document.getElementById(id);
const PAUSE = 250; // milliseconds without a change before the model is asked again

class Page {
  constructor(laid) {
    this.laid = laid;
    this.run = laid.run;
    this.example = null; // what was drawn, as long as the prompt is as it was drawn
    this.asked = null; // the question whose answers are shown
    this.asking = null; // what ends the question that is being answered
    this.turns = []; // of a talk: what was said, and what each side answered
    this.said = null; // both answers of the last message
    this.answers = new Answers();
    this.map = new HeadMap(laid.layers, laid.group_sizes, () => this.headsChanged());
    this.fill();
    this.listen();
  }

  fill() {
    const { model, tasks } = this.laid;
    by("model").textContent = `${model.name} · ${this.map.cells.size} heads · ${model.dtype} on ${model.device} · ${model.window.toLocaleString("en")} tokens`;
    document.title = `${model.called} · caploc playground`;
    by("chat-choice").hidden = !model.chat;
    by("drawing").hidden = tasks.length === 0;
    by("task").append(...tasks.map((name) => element("option", { value: name }, this.title(name))));
    by("run").hidden = this.run === null;
    if (this.run) this.takeRun();
    else this.map.show(null);
    this.headsChanged();
  }

  // What a task is called: of a file, what the file says.
  title(task) {
    return this.laid.titles[task] ?? inline(task);
  }

  listen() {
    by("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.answer();
    });
    by("prompt").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.answer();
    });
    by("prompt").addEventListener("input", () => this.forgetExample());
    by("draw").addEventListener("click", () => this.draw(null));
    by("task").addEventListener("change", () => this.draw(null));
    by("example").addEventListener("change", () => {
      const number = by("example").valueAsNumber;
      if (Number.isInteger(number)) this.draw(number);
    });
    by("number").addEventListener("input", () => this.map.choose(this.run.order.slice(0, Number(by("number").value))));
    by("chat").addEventListener("change", () => this.showTalk());
    by("reply").addEventListener("click", () => this.reply());
    by("forget").addEventListener("click", () => this.forgetTalk());
    press("clear", () => this.map.choose([]));
    press("random", () => this.map.random());
    press("stop", () => this.asking.abort());
  }

  takeRun() {
    by("finding").replaceChildren(...cardOf(this.run));
    by("number").max = this.run.order.length;
    this.map.show(this.run);
    by("number").value = this.run.top;
    this.map.choose(this.run.order.slice(0, this.run.top));
    if ([...by("task").options].some((option) => option.value === this.run.task)) {
      by("task").value = this.run.task;
    }
  }

  // An example that the run's heads lose, answered intact and without them.
  async drawLost() {
    if (this.run && this.run.lost !== null) await this.draw(this.run.lost);
  }

  headsChanged() {
    const names = this.map.names();
    by("count").textContent = `${names.length} of ${this.map.cells.size}`;
    by("which").textContent = fewOf(names);
    by("chosen").replaceChildren(...names.map((name) => this.chip(name)));
    allow("clear", names.length > 0);
    allow("random", this.map.picked.size > 0);
    if (this.run) {
      const first = this.run.order.slice(0, names.length);
      const ranked = first.length === names.length && first.every((name) => names.includes(name));
      by("number-shown").textContent = ranked ? names.length : "–";
      if (ranked) by("number").value = names.length;
      by("number").setAttribute("aria-valuetext", ranked ? `${names.length} heads` : "heads chosen by hand");
    }
    clearTimeout(this.soon);
    if (this.asked && by("live").checked && names.length) this.soon = setTimeout(() => this.answer(), PAUSE);
  }

  chip(name) {
    const button = element("button", { type: "button", "aria-label": `Do not knock out ${name}` }, name);
    button.addEventListener("click", () => this.dropped(name));
    return element("li", {}, button);
  }

  // A chip goes with its head: the next one takes its place, after the last one the head's square.
  dropped(name) {
    const at = this.map.names().indexOf(name);
    this.map.toggle(name);
    const chips = by("chosen").querySelectorAll("button");
    if (chips.length) chips[Math.min(at, chips.length - 1)].focus();
    else this.map.focus(this.map.cells.get(name));
  }

  async draw(number) {
    await this.trying(async () => {
      by("status").textContent = "";
      const found = await ask("example", { task: by("task").value, number });
      by("prompt").value = found.prompt;
      by("prompt").placeholder = found.prompt ? "" : `${this.title(found.task)} has no prompt: a text is read`;
      this.example = { task: found.task, number: found.number };
      by("example").max = found.size - 1;
      by("example").value = found.number;
      by("about-example").textContent = `${this.title(found.task)}, ${found.number} of ${found.size.toLocaleString("en")}, scored by ${inline(found.metric)}`;
      by("gold").hidden = found.gold === null || !found.prompt;
      by("gold").replaceChildren("Right answer: ", element("b", {}, visible(found.gold ?? "")));
      if (this.map.chosen.size) await this.answer();
    });
  }

  forgetExample() {
    this.example = null;
    by("about-example").textContent = "";
    by("gold").hidden = true;
  }

  question() {
    return {
      heads: this.map.names(),
      prompt: this.example ? "" : by("prompt").value,
      example: this.example,
      new_tokens: by("new-tokens").valueAsNumber || 0,
      stops: parsed(by("stops").value),
      chat: this.talks,
      turns: this.talks ? this.turns : [],
    };
  }

  get talks() {
    return by("chat").checked && !this.example;
  }

  // What was said so far, above the next message.
  showTalk() {
    const said = (who, text) => element("p", {}, element("b", {}, `${who} `), visible(text));
    const turns = this.turns.map((turn) => element("li", {}, said("You", turn.user), element("div", { class: "pair" }, said("Intact", turn.intact), said("Knocked out", turn.knocked_out))));
    by("talk").replaceChildren(...turns);
    by("talk").hidden = !this.talks || turns.length === 0;
    by("reply").hidden = !this.talks || this.said === null;
    by("forget").hidden = !this.talks || turns.length === 0;
  }

  reply() {
    this.turns = [...this.asked.turns, { user: this.asked.prompt, ...this.said }];
    this.said = this.asked = null; // a change of heads asks nothing until there is a message
    by("prompt").value = "";
    by("prompt").focus();
    this.showTalk();
  }

  forgetTalk() {
    this.turns = [];
    this.said = this.asked = null;
    this.showTalk();
    by("prompt").focus();
  }

  // One question is asked at a time: a new one ends the one before.
  async answer() {
    clearTimeout(this.soon);
    this.asking?.abort();
    const asking = (this.asking = new AbortController());
    const began = performance.now();
    by("status").textContent = "answering …";
    this.said = null;
    this.answers.begin();
    allow("stop", true);
    const done = await this.trying(async () => {
      const question = this.question();
      for await (const found of lines("answers", question, asking.signal)) {
        if (found.message) throw new Error(found.message);
        this.asked = question;
        this.answers.show(found);
        if (found.kind === "written") this.said = { intact: found.intact.text, knocked_out: found.knocked_out.text };
      }
    });
    if (this.asking !== asking) return;
    this.answers.over();
    allow("stop", false);
    this.showTalk();
    const stopped = asking.signal.aborted ? "stopped" : "";
    by("status").textContent = done ? `done in ${((performance.now() - began) / 1000).toFixed(1)} s` : stopped;
  }

  async trying(work) {
    by("failure").hidden = true;
    try {
      await work();
      return true;
    } catch (error) {
      if (error.name !== "AbortError") complain(error);
      return false;
    }
  }
}

// The card of a run: its verdict, the table, what to know.
function cardOf({ label, heading, rows, remarks }) {
  const head = ["", "intact", "without", "change", "(95 %)", ""].map((name) => (name ? element("th", { scope: "col" }, name) : element("td")));
  const lines = rows.map(([name, ...cells]) => element("tr", {}, element("th", { scope: "row" }, name), ...cells.map((cell) => element("td", {}, cell))));
  const table = element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...lines));
  return [element("p", {}, element("b", {}, label), ` ${heading}`), table, ...remarks.map((text) => element("p", { class: "quiet" }, text))];
}

// A button that cannot be used keeps the focus that it has, which one that is disabled loses.
function allow(id, usable) {
  by(id).setAttribute("aria-disabled", !usable);
}

function press(id, work) {
  by(id).addEventListener("click", () => by(id).getAttribute("aria-disabled") === "true" || work());
}

function fewOf(names) {
  return names.length > 4 ? `${names.length} heads` : names.join(" ");
}

function complain(error) {
  by("failure").textContent = visible(said(error));
  by("failure").hidden = false;
  by("failure").scrollIntoView({ block: "nearest" });
}

// Stop strings are written as JSON texts between commas, so that a line break can be one.
function parsed(text) {
  try {
    return text.trim() ? JSON.parse(`[${text}]`) : [];
  } catch {
    throw new Error(`Stop at: write texts in quotes between commas, such as "\\n", "Q:"; got ${text}.`);
  }
}

// In the view of runs a model is loaded when somebody asks for it.
function offerLoading({ unloaded, state }) {
  by("unloaded").hidden = false;
  by("load").textContent = `Load ${inline(unloaded)}`;
  if (state !== "done") by("load-status").textContent = "Only a finished run has a playground.";
  allow("load", state === "done");
  press("load", async () => {
    allow("load", false);
    by("load-status").textContent = "loading …";
    try {
      await ask("load", {});
      await open();
    } catch (error) {
      by("load-status").textContent = "";
      allow("load", true);
      complain(error);
    }
  });
}

// The example that the address names, else one that the run's heads lose.
async function begin(page) {
  const asked = new URLSearchParams(location.search);
  if (!asked.has("example")) return page.drawLost();
  by("task").value = asked.get("task");
  await page.draw(Number(asked.get("example")));
}

async function open() {
  const laid = await get("board");
  if ("unloaded" in laid) return offerLoading(laid);
  by("unloaded").hidden = true;
  document.querySelector("main").hidden = false;
  window.playground = new Page(laid);
  return begin(window.playground);
}

const [, kind, run] = location.pathname.split("/");
if (kind === "play") {
  by("back").href = run === "model" ? "/" : `/run/${run}/`;
  by("back").hidden = false;
}
open().catch(complain);
