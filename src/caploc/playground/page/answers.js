// Two answers side by side, a token at a time, and what each token's odds are.

import { CALLED, SIDES, chance, drawShades, element, inline, percent, points, shade, shares, signed, visible } from "./words.js";

const card = (side) => document.getElementById(side);
const textOf = (side) => card(side).querySelector(".text");

export class Answers {
  constructor() {
    this.hint = document.querySelector("#inspector p");
    drawShades(document.getElementById("token-shades"));
    const place = document.getElementById("answers");
    for (const kind of ["pointerover", "focusin"]) {
      place.addEventListener(kind, (event) => this.inspect(event.target.closest(".token")));
    }
    place.addEventListener("keydown", (event) => this.key(event));
  }

  begin() {
    document.getElementById("inspector").replaceChildren(this.hint);
    for (const side of SIDES) {
      textOf(side).replaceWith(element("div", { class: "text", "data-side": side }));
      verdict(card(side).querySelector(".verdict"));
    }
    document.getElementById("answers").classList.add("busy");
  }

  over() {
    document.getElementById("answers").classList.remove("busy");
  }

  show(found) {
    if (found.kind === "so far") return this.grow(found);
    const reading = found.kind === "read";
    document.querySelector(".pair").hidden = reading;
    document.getElementById("choices").hidden = !reading;
    document.getElementById("choice-list").replaceChildren();
    this.tokens = { intact: [], knocked_out: [] };
    this.read = [];
    if (reading) this.offer(found);
    else this.write(found);
    this.verdict(found.verdict, reading);
  }

  // What is said before its odds are known.
  grow(found) {
    document.querySelector(".pair").hidden = false;
    document.getElementById("choices").hidden = true;
    for (const side of SIDES.filter((each) => each in found)) textOf(side).textContent = visible(found[side]);
  }

  write(found) {
    for (const side of SIDES) {
      this.tokens[side] = found[side].tokens;
      draw(textOf(side), found[side].tokens, `${CALLED[side]} answer`);
      verdict(card(side).querySelector(".verdict"), found[side].cut ? { said: "cut off at the token limit" } : null);
    }
    const parted = this.tokens.intact.findIndex((token, n) => token.token !== this.tokens.knocked_out[n]?.token);
    for (const side of SIDES) textOf(side).children[parted]?.classList.add("parted");
  }

  offer({ choices, right }) {
    this.several = choices.length > 1;
    document.getElementById("offered").textContent = this.several ? "What the task offers" : "The text that is read";
    choices.forEach((choice, number) => {
      const text = element("div", { class: "text" });
      draw(text, choice.tokens, this.several ? `choice ${number + 1}` : "text");
      const offer = element("div", { class: "offer" }, text);
      if (number === right) offer.append(element("span", { class: "gold-mark" }, "the right answer"));
      const bars = element("div", { class: "bars" });
      for (const side of SIDES) {
        const value = element("span", { class: "value" });
        bars.append(element("span", {}, CALLED[side]), ...(this.several ? [meter(0), value] : [value]));
      }
      const place = element("div", { class: this.several ? "choice" : "choice single" }, offer, bars);
      document.getElementById("choice-list").append(place);
      this.read.push({ place, totals: choice });
    });
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

  verdict(found, reading) {
    for (const side of SIDES) {
      const place = reading
        ? document.querySelector(`#choices .verdict[data-side=${side}]`)
        : card(side).querySelector(".verdict");
      if (!found) {
        if (reading) verdict(place);
      } else if (found.withheld) verdict(place, { said: found.withheld });
      else verdict(place, { ...found[side], metric: found.metric, of: this.named(side, found[side], reading) });
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
    class: `token ${shade(change)}${odds.special ? " special" : ""}`,
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

// Tokens as a list to walk with the arrow keys.
function draw(place, tokens, what) {
  place.setAttribute("role", "listbox");
  place.setAttribute("aria-label", `${what}, token by token`);
  place.setAttribute("aria-orientation", "horizontal");
  place.replaceChildren(...tokens.map((token) => tokenElement(token, what)));
  if (place.firstChild) place.firstChild.tabIndex = 0;
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
