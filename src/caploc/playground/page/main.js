// The page: what is chosen, asked and shown, and which of it follows from which.

import { Answers } from "./answers.js";
import { Attention } from "./attention.js";
import { HeadMap, place } from "./heads.js";
import { ask, download, events, get, said } from "./net.js";
import { element, inline, visible } from "./words.js";

const by = (id) => document.getElementById(id);
const PAUSE = 250; // milliseconds without a change before the model is asked again

class Page {
  constructor(laid) {
    this.laid = laid;
    this.run = null;
    this.example = null; // what was drawn, as long as the prompt is as it was drawn
    this.asked = null; // the question whose answers are shown
    this.under = null; // what stops the answers under way
    this.turns = []; // of a talk: what was said, and what each side answered
    this.said = null; // both answers of the last message
    this.answers = new Answers();
    this.attention = new Attention();
    this.map = new HeadMap(laid.layers, laid.group_sizes, (head) => this.headsChanged(head));
    this.fill();
    this.listen();
  }

  fill() {
    const { model, tasks, runs } = this.laid;
    by("model").textContent = `${model.name} · ${this.map.cells.size} heads · ${model.dtype} on ${model.device} · ${model.window.toLocaleString("en")} tokens`;
    document.title = `${model.called} · caploc playground`;
    by("chat-choice").hidden = !model.chat;
    by("scoring").hidden = tasks.length === 0;
    by("drawing").hidden = tasks.length === 0;
    by("task").append(...tasks.map((name) => element("option", { value: name }, this.title(name))));
    by("layer").append(...this.laid.layers.map((_, n) => element("option", { value: n }, `L${n}`)));
    this.offerHeads();
    by("run").hidden = runs.length === 0;
    by("run-choice").hidden = runs.length < 2;
    by("runs").append(...runs.map((run, n) => element("option", { value: n }, run.task === run.name ? this.title(run.task) : `${this.title(run.task)} (${inline(run.name)})`)));
    if (runs.length) this.takeRun(this.laid.run ?? 0);
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
    press("stop", () => this.under?.abort());
    by("draw").addEventListener("click", () => this.draw(null));
    by("task").addEventListener("change", () => this.draw(null));
    by("example").addEventListener("change", () => {
      const number = by("example").valueAsNumber;
      if (Number.isInteger(number)) this.draw(number);
    });
    by("runs").addEventListener("change", () => {
      this.takeRun(Number(by("runs").value));
      this.drawLost();
    });
    by("number").addEventListener("input", () => this.map.choose(this.run.order.slice(0, Number(by("number").value))));
    by("chat").addEventListener("change", () => this.showTalk());
    by("reply").addEventListener("click", () => this.reply());
    by("forget").addEventListener("click", () => this.forgetTalk());
    press("score", () => this.score());
    press("clear", () => this.map.choose([]));
    press("random", () => this.map.random());
    press("save", () => this.save());
    by("layer").addEventListener("change", () => this.offerHeads());
    by("look").addEventListener("click", () => this.look());
    for (const id of ["layer", "index", "attention-text", "attention-model"]) {
      by(id).addEventListener("change", () => !by("pattern").hidden && this.look());
    }
  }

  takeRun(number) {
    this.run = this.laid.runs[number];
    by("runs").value = number;
    by("finding").replaceChildren(...cardOf(this.run));
    by("number").max = this.run.order.length;
    this.map.show(this.run);
    by("number").value = this.run.top;
    this.map.choose(this.run.order.slice(0, this.run.top));
    if ([...by("task").options].some((option) => option.value === this.run.task)) {
      by("task").value = this.run.task;
    }
    if (this.run.order.length) this.focusHead(this.run.order[0]);
    by("promotes").hidden = this.run.promotes.length === 0;
    by("promotes").replaceChildren("Words that the strongest head promotes where the report looks: ", ...this.run.promotes.flatMap((word) => [element("code", {}, word), " "]));
  }

  // An example that the run's heads lose, answered intact and without them.
  async drawLost() {
    if (this.run && this.run.lost !== null) await this.draw(this.run.lost);
  }

  // A head was toggled by hand, or many were chosen at once.
  headsChanged(head) {
    const names = this.map.names();
    by("count").textContent = `${names.length} of ${this.map.cells.size}`;
    by("which").textContent = fewOf(names);
    by("chosen").replaceChildren(...names.map((name) => this.chip(name)));
    for (const id of ["clear", "save", "score"]) allow(id, names.length > 0);
    allow("random", this.map.picked.size > 0);
    if (this.run) {
      const first = this.run.order.slice(0, names.length);
      const ranked = first.length === names.length && first.every((name) => names.includes(name));
      by("number-shown").textContent = ranked ? names.length : "–";
      if (ranked) by("number").value = names.length;
      by("number").setAttribute("aria-valuetext", ranked ? `${names.length} heads` : "heads chosen by hand");
    }
    if (head) this.focusHead(head);
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

  focusHead(name) {
    const [layer, index] = place(name);
    by("layer").value = layer;
    this.offerHeads();
    by("index").value = index;
    if (!by("pattern").hidden) this.look();
  }

  offerHeads() {
    const before = by("index").value;
    const count = this.laid.layers[Number(by("layer").value)];
    by("index").replaceChildren(...Array.from({ length: count }, (_, n) => element("option", { value: n }, `H${n}`)));
    if (Number(before) < count) by("index").value = before || 0;
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

  async score() {
    await this.trying(async () => {
      this.counting?.abort();
      const stopping = new AbortController();
      this.counting = stopping;
      const asked = { heads: this.map.names(), task: by("task").value, examples: by("scored").valueAsNumber || 0 };
      by("scores").textContent = "scoring …";
      try {
        for await (const event of events("scores", asked, stopping.signal)) {
          if (this.counting !== stopping) return;
          if (event.event === "failed") throw new Error(event.message);
          if (event.event === "scored") by("scores").textContent = `scoring … ${event.done} of ${event.of}`;
          else this.showScores(event, asked.heads);
        }
      } catch (error) {
        if (error.name === "AbortError") return;
        by("scores").textContent = "";
        throw error;
      }
    });
  }

  showScores(found, heads) {
    const change = found.change === null ? "" : `, change ${found.change}${found.interval ? ` (95 %: ${found.interval})` : ""}`;
    by("scores").replaceChildren(
      `${this.title(found.task)}, ${inline(found.metric)}: `,
      element("b", {}, found.intact.said),
      " intact, ",
      element("b", {}, found.knocked_out.said),
      ` without ${fewOf(heads)}${change}; ${found.examples.toLocaleString("en")} examples`,
    );
  }

  async answer() {
    this.under?.abort();
    clearTimeout(this.soon);
    await this.trying(async () => {
      const question = this.question();
      const stopping = new AbortController();
      this.under = stopping;
      allow("stop", true);
      const began = performance.now();
      let reading = null;
      try {
        by("status").textContent = "reading the prompt …";
        this.said = null;
        for await (const event of events("answers", question, stopping.signal)) {
          if (this.under !== stopping) return;
          if (event.event === "failed") throw new Error(event.message);
          if (event.event === "begin") {
            reading = "choices" in event;
            this.asked = question;
            this.answers.begin(reading);
            by("status").textContent = "answering …";
          }
          if (event.event === "end") this.said = { ...this.said, [event.side]: event.text };
          this.answers.take(event);
        }
        this.showTalk();
        by("status").textContent = `done in ${((performance.now() - began) / 1000).toFixed(1)} s`;
        if (!by("pattern").hidden) await this.look();
      } catch (error) {
        if (this.under === stopping) by("status").textContent = error.name === "AbortError" ? "stopped" : "";
        if (error.name !== "AbortError") throw error;
      } finally {
        if (this.under === stopping) {
          this.under = null;
          allow("stop", false);
          this.answers.over();
        }
      }
    });
  }

  async look() {
    await this.trying(async () => {
      const side = by("attention-text").value;
      const without = by("attention-model").value === "1";
      const head = `L${by("layer").value}H${by("index").value}`;
      const heads = this.map.names();
      const about = without ? `without ${fewOf(heads)}` : "intact";
      by("attention-status").textContent = "reading …";
      try {
        const found = await ask("attention", {
          question: { ...(this.asked && side ? this.asked : this.question()), heads },
          ...this.spoken(side),
          head,
          side: side || "intact",
          knocked_out: without,
        });
        this.attention.show(found, about);
        by("attention-status").textContent = `${head}, ${found.tokens.length} tokens, ${about}`;
      } catch (error) {
        by("attention-status").textContent = "";
        throw error;
      }
    });
  }

  // The tokens of an answer; of a task that offers choices, those of the likeliest and its number.
  spoken(side) {
    if (!side || !this.asked) return { said: [], choice: 0 };
    const choice = this.answers.likeliest(side);
    const tokens = this.answers.read[choice]?.tokens ?? this.answers.tokens[side];
    return { said: tokens.map((token) => token.token), choice };
  }

  async save() {
    await this.trying(async () => {
      const run = this.run ? this.laid.runs.indexOf(this.run) : null;
      const file = await download("heads", { heads: this.map.names(), run });
      const link = element("a", { href: URL.createObjectURL(file), download: "heads.json" });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });
  }

  async trying(work) {
    by("failure").hidden = true;
    try {
      await work();
    } catch (error) {
      complain(error);
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

// What an address may name: an example to ask, and heads to do without. Else a lost example.
async function begin(page) {
  const asked = new URLSearchParams(location.search);
  if (asked.has("heads")) page.map.choose(asked.get("heads").split(","));
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
  by("back").href = `/run/${run}/`;
  by("back").hidden = false;
}
open().catch(complain);
