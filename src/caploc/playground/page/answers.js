// Two answers side by side, a token at a time, and what each token's odds are.

import { CALLED, SIDES, chance, drawShades, element, inline, percent, points, shade, shares, signed, visible } from "./words.js";

const card = (side) => document.getElementById(side);
const textOf = (side) => card(side).querySelector(".text");

export class Answers {
  constructor() {
    this.tokens = { intact: [], knocked_out: [] };
    this.read = [];
    this.hint = document.querySelector("#inspector p");
    drawShades(document.getElementById("token-shades"));
    const place = document.getElementById("answers");
    for (const kind of ["pointerover", "focusin"]) {
      place.addEventListener(kind, (event) => this.inspect(event.target.closest(".token")));
    }
    place.addEventListener("keydown", (event) => this.key(event));
  }

  begin(reading) {
    document.getElementById("inspector").replaceChildren(this.hint);
    this.tokens = { intact: [], knocked_out: [] };
    this.parted = false;
    this.read = [];
    for (const side of SIDES) {
      textOf(side).replaceChildren();
      textOf(side).removeAttribute("role");
      verdict(card(side).querySelector(".verdict"));
      verdict(document.querySelector(`#choices .verdict[data-side=${side}]`));
    }
    document.querySelector(".pair").hidden = reading;
    document.getElementById("choices").hidden = !reading;
    document.getElementById("choice-list").replaceChildren();
    document.getElementById("answers").classList.add("busy");
  }

  over() {
    for (const side of SIDES) textOf(side).scrollTop = 0;
    document.getElementById("answers").classList.remove("busy");
  }

  take(event) {
    const does = {
      begin: () => this.offer(event),
      token: () => this.token(event),
      end: () => this.end(event),
      choice: () => this.choice(event.choice),
      tokens: () => event.tokens.forEach((token) => this.addRead(token)),
      read: () => this.totals(event),
      verdict: () => this.verdict(event),
    }[event.event];
    does?.();
  }

  offer(event) {
    this.offered = event;
    document.getElementById("offered").textContent = this.several ? "What the task offers" : "The text that is read";
  }

  token(event) {
    const mine = this.tokens[event.side];
    const other = this.tokens[event.side === "intact" ? "knocked_out" : "intact"];
    mine.push(event);
    const drawn = tokenElement(event, `${CALLED[event.side]} answer`);
    const twin = other[mine.length - 1];
    if (!this.parted && twin && twin.token !== event.token) {
      this.parted = true;
      for (const token of [drawn, twin.drawn]) token.classList.add("parted");
    }
    event.drawn = drawn;
    append(textOf(event.side), drawn, `${CALLED[event.side]} answer, token by token`);
  }

  end(event) {
    const why = { limit: "cut off at the token limit", "end token": "", "stop string": "" }[event.why];
    if (why) verdict(card(event.side).querySelector(".verdict"), { said: why });
  }

  get several() {
    return this.offered.choices?.length > 1;
  }

  choice(number) {
    const several = this.several;
    const text = element("div", { class: "text" });
    const offer = element("div", { class: "offer" }, text);
    const place = element("div", { class: several ? "choice" : "choice single" }, offer);
    const gold = this.offered.gold;
    if (several && gold !== null && this.offered.choices[number].trim() === gold.trim()) {
      offer.append(element("span", { class: "gold-mark" }, "the right answer"));
    }
    document.getElementById("choice-list").append(place);
    this.read.push({ place, text, tokens: [], totals: null });
  }

  addRead(token) {
    const current = this.read.at(-1);
    current.tokens.push(token);
    append(current.text, tokenElement(token, "offered"), `Choice ${this.read.length}, token by token`);
  }

  totals(event) {
    const current = this.read.at(-1);
    current.totals = event;
    const bars = element("div", { class: "bars" });
    for (const side of SIDES) {
      const value = element("span", { class: "value" });
      bars.append(element("span", {}, CALLED[side]), ...(this.several ? [meter(0), value] : [value]));
    }
    current.place.append(bars);
    this.shares();
  }

  // Each choice's share of what all of them together get, on each side.
  shares() {
    SIDES.forEach((side, row) => {
      const logprobs = this.read.map((each) => each.totals[side]);
      const found = shares(logprobs);
      this.read.forEach((each, number) => {
        const value = each.place.querySelectorAll(".value")[row];
        const nats = element("span", { class: "quiet" }, `${signed(logprobs[number])} nats`);
        value.replaceChildren(...(this.several ? [percent(found[number]), "  ", nats] : [nats]));
        if (this.several) fill(value.previousElementSibling, chance(found[number]));
      });
    });
  }

  // The number of the choice that a side finds likeliest; 0 where there are none.
  likeliest(side) {
    const all = this.read.map((each) => each.totals?.[side] ?? -Infinity);
    return Math.max(0, all.indexOf(Math.max(...all)));
  }

  verdict(event) {
    const reading = !document.getElementById("choices").hidden;
    for (const side of SIDES) {
      const place = reading
        ? document.querySelector(`#choices .verdict[data-side=${side}]`)
        : card(side).querySelector(".verdict");
      if (event.withheld) verdict(place, { said: event.withheld });
      else verdict(place, { ...event[side], metric: event.metric, of: this.named(side, event[side], reading) });
    }
  }

  // Cards name their side; below choices the verdict has to, with the choice that was made.
  named(side, judged, reading) {
    if (!reading) return "";
    return this.several ? `${CALLED[side]}: ${inline(judged.answer)} ` : `${CALLED[side]}: `;
  }

  inspect(token) {
    if (!token) return;
    document.querySelector(".token.on")?.classList.remove("on");
    token.classList.add("on");
    document.getElementById("inspector").replaceChildren(...inspected(token.odds));
  }

  key(event) {
    const token = event.target.closest(".token");
    if (!token) return;
    const all = [...token.parentElement.children];
    const at = all.indexOf(token);
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (next === undefined || !all[next]) return;
    event.preventDefault();
    token.tabIndex = -1;
    all[next].tabIndex = 0;
    all[next].focus();
  }
}

function tokenElement(odds, what) {
  const change = points(odds);
  const text = visible(odds.text);
  const drawn = element("span", {
    class: `token ${shade(change)}${odds.ends ? " special" : ""}`,
    role: "option",
    tabindex: "-1",
    "aria-selected": "false",
    "aria-label": `${inline(odds.text)}: ${percent(odds.intact)} intact, ${percent(odds.knocked_out)} knocked out`,
  });
  if (text === "") drawn.append(element("span", { class: "mark" }, "·"));
  for (const part of text.split(/(\n)/)) {
    if (part === "\n") drawn.append(element("span", { class: "mark" }, "↵"), "\n");
    else if (part) drawn.append(part);
  }
  drawn.odds = { ...odds, what };
  return drawn;
}

function append(place, token, label) {
  if (!place.hasAttribute("role")) {
    place.setAttribute("role", "listbox");
    place.setAttribute("aria-label", label);
    place.setAttribute("aria-orientation", "horizontal");
    token.tabIndex = 0;
  }
  const low = place.scrollHeight - place.scrollTop - place.clientHeight < 8;
  place.append(token);
  if (low) place.scrollTop = place.scrollHeight;
}

function verdict(place, found) {
  place.className = `verdict ${found?.mark || ""}`;
  place.replaceChildren();
  if (!found) return;
  const sign = { right: "✓ right", wrong: "✗ wrong" }[found.mark];
  if (found.of) place.append(found.of);
  if (sign) place.append(element("b", {}, sign), ` · ${inline(found.metric)}`);
  else place.append(visible(found.metric ? `${found.metric} ${found.said}` : found.said));
}

function inspected(odds) {
  const change = 100 * points(odds);
  const sign = change > 0 ? "+" : change < 0 ? "−" : "";
  const title = element("h3", {}, element("span", { class: "piece" }, inline(odds.text)));
  title.append(
    ` ${percent(odds.intact)} intact, ${percent(odds.knocked_out)} knocked out`,
    element("span", { class: "quiet" }, ` (${sign}${Math.abs(change).toFixed(1)} points), in the ${odds.what}`),
  );
  const both = element("div", { class: "likeliest" });
  for (const side of SIDES) {
    const list = element("div", {}, element("p", {}, `likeliest here, ${CALLED[side]}`));
    for (const [text, logprob] of odds.likeliest[side]) {
      list.append(
        element("span", { class: text === odds.text ? "piece said" : "piece" }, inline(text)),
        meter(chance(logprob)),
        element("span", { class: "value" }, percent(logprob)),
      );
    }
    both.append(list);
  }
  return [title, both];
}

// A bar beside its number; it says nothing that the number does not.
function meter(value) {
  const bar = element("span", { class: "meter", "aria-hidden": "true" }, element("i"));
  fill(bar, value);
  return bar;
}

function fill(bar, value) {
  bar.firstChild.style.width = `${100 * value}%`;
}
