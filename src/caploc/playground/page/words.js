// How numbers and tokens are written. Text from a model only ever becomes text nodes.

export const STEPS = 16;
export const SIDES = ["intact", "knocked_out"];
export const CALLED = { intact: "intact", knocked_out: "knocked out" };

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") made.className = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// A log-probability is null where a model is broken or rules the text out: nothing to draw.
export function chance(logprob) {
  return logprob === null ? 0 : Math.exp(logprob);
}

// Each log-probability less that of all of them together; null where it, or every one, is null.
export function shares(logprobs) {
  const known = logprobs.filter((each) => each !== null);
  const most = Math.max(...known);
  const all = most + Math.log(known.reduce((sum, each) => sum + Math.exp(each - most), 0));
  return logprobs.map((each) => (each === null ? null : each - all));
}

export function percent(logprob) {
  if (logprob === null) return "–";
  const value = 100 * Math.exp(logprob);
  if (value >= 99.95 && value < 100) return `${value >= 99.995 ? "> 99.99" : value.toFixed(2)} %`;
  if (value >= 10) return `${value.toFixed(1)} %`;
  if (value >= 0.01) return `${value.toFixed(2)} %`;
  return "< 0.01 %";
}

export function signed(value) {
  if (value === null) return "–";
  const size = Math.abs(value);
  return `${value < 0 ? "−" : ""}${size >= 0.01 ? size.toFixed(2) : size.toPrecision(1)}`;
}

export function points(odds) {
  if (odds.intact === null || odds.knocked_out === null) return 0;
  return Math.exp(odds.knocked_out) - Math.exp(odds.intact);
}

// The shade of a change in probability: n1 to n16 where it falls, p1 to p16 where it rises.
export function shade(change) {
  const step = Math.round(STEPS * Math.min(1, Math.max(-1, change)));
  return step === 0 ? "z" : step < 0 ? `n${-step}` : `p${step}`;
}

export function drawShades(place) {
  for (let step = STEPS; step >= -STEPS; step -= 1) {
    place.append(element("b", { class: step > 0 ? `n${step}` : step < 0 ? `p${-step}` : "z" }));
  }
}

// Characters without a shape of their own, and those that turn the direction of reading: the same
// as in reports, which a test compares.
const UNSEEN = /[\u{0}-\u{8}\u{b}-\u{1f}\u{7f}-\u{9f}\u{ad}\u{61c}\u{180e}\u{200b}\u{200e}\u{200f}\u{2028}-\u{202e}\u{2060}-\u{206f}\u{feff}\u{fff9}-\u{fffb}\u{d800}-\u{dfff}\u{e0000}-\u{e007f}]/gu;

export function visible(text) {
  return text.replace(UNSEEN, (c) => {
    const code = c.codePointAt(0);
    if (code < 0x20) return String.fromCodePoint(0x2400 + code);
    return code === 0x7f ? "␡" : `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}

export function inline(text) {
  const shown = visible(text).replaceAll("\n", "↵").replaceAll("\t", "␉");
  return shown.trim() ? shown : shown.replaceAll(" ", "␣") || "∅";
}
