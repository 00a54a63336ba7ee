"""Text that is safe to show; counts, lists, scores and effects as a reader meets them."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from caploc.naming import YAML
from caploc.result import Result, TaskComparison

NAMES_SHOWN = 8  # a sentence with more head names than this is no longer read

# Control codes, invisible characters and those that reverse the direction of reading. The joiners
# U+200C and U+200D are left alone: Persian and emoji need them.
UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)


def visible(text: Any) -> str:
    """Return the text with each unseen character drawn: `\\x00` as ␀, U+202E as ⟨U+202E⟩.

    Line breaks and tabs stay. Also takes out lone surrogates, which no file can hold.
    """

    def draw(match: re.Match[str]) -> str:
        code = ord(match[0])
        return chr(0x2400 + code) if code < 0x20 else "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"

    return UNSEEN.sub(draw, "" if text is None else str(text))


def inline(text: Any) -> str:
    """Return the text on one line, as names are shown: `visible`, and ␊ for a line break."""
    return visible(text).replace("\n", "␊").replace("\t", "␉")


def called(name: Any) -> str:
    """Return the name of a task or model as a sentence calls it: of a path, its last part.

    Of a task's YAML without the ending.
    """
    text = inline(name)
    if not text.startswith("/"):
        return text
    last = text.rstrip("/").rsplit("/", 1)[-1]
    return last.rpartition(".")[0] if last.endswith(YAML) else last


def called_apart(names: Iterable[str]) -> dict[str, str]:
    """What each of several names is called; paths that end alike by as much as tells them apart."""
    parts = {name: [inline(part) for part in str(name).rstrip("/").split("/")] for name in names}
    short = {name: called(name) for name in parts}
    found = {}
    for name, own in parts.items():
        twins = [parts[one] for one in parts if one != name and short[one] == short[name]]
        size = 1
        while size < len(own) and any(twin[-size:] == own[-size:] for twin in twins):
            size += 1
        found[name] = "/".join(own[-size:]) if twins else short[name]
    return found


def counted(count: float, noun: str) -> str:
    """Write `1 row` or `2 rows`, with thousands set apart."""
    return f"{count:,.0f} {noun}" if count == 1 else f"{count:,.0f} {noun}s"


def name_list(names: Sequence[str], limit: int = NAMES_SHOWN) -> str:
    """Write `a, b and c`; past `limit` names, the first ones and how many more there are."""
    shown = [inline(name) for name in names]
    if len(shown) > limit:
        shown = [*shown[: limit - 2], f"{len(names) - limit + 2} more"]
    if len(shown) < 2:
        return "".join(shown)
    return f"{', '.join(shown[:-1])} and {shown[-1]}"


def clipped(text: str, limit: int) -> str:
    """Shorten the text to about `limit` characters and say how many were left out."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[… {len(text) - limit:,} characters left out …]"


def finite_numbers(values: Iterable[float | None]) -> list[float]:
    """Return the numbers among the values that can be placed on an axis."""
    return [value for value in values if value is not None and math.isfinite(value)]


SPACE = "\u00a0"  # a number and its unit stay on one line

# A metric whose name holds one of these words is the share of examples that went right. Others
# stay plain numbers even between 0 and 1: a correlation of 0.5 is not "50 %".
SHARE_WORDS = frozenset({"acc", "accuracy", "em", "exact", "f1", "match", "pass", "rate", "share"})


class Bounded(Protocol):
    """What has an interval; an end that is not known is None."""

    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Unit:
    """How to write a task's scores and their changes, and which direction is worse.

    `sign` stands behind a number: `%` (then 1 is 100 %), `nats` (log-probability), or nothing.
    """

    sign: str = ""
    metric: str = ""
    higher_is_better: bool = True

    @property
    def axis(self) -> str:
        """The unit of a change, for a legend."""
        return {"%": "percentage points", "nats": "nats"}.get(self.sign, inline(self.metric))

    def harm(self, change: float) -> float:
        """Turn a change of the score into how much worse that is; negative if it is better."""
        return -change if self.higher_is_better else change

    def number(self, value: float | None, *, plus: bool = False, digits: int = 3) -> str:
        """Write a number, with its sign if it is a change; percentages are whole."""
        if value is None:
            return "–"
        text = f"{100 * value:z,.0f}" if self.sign == "%" else significant(value, digits)
        text = text.replace("-", "−")
        return f"+{text}" if plus and value > 0 and text.strip("0.") else text

    def score(self, value: float | None) -> str:
        """Write a score: `99 %`, `−1.23`, `12.1`."""
        behind = f"{SPACE}%" if self.sign == "%" and value is not None else ""
        return self.number(value) + behind

    def change(self, value: float | None) -> str:
        """Write a change: `−41` of percentages, `−0.410 nats`, `+3.20`."""
        behind = " nats" if self.sign == "nats" and value is not None else ""
        return self.number(value, plus=True) + behind

    def interval(self, found: Bounded | None) -> str:
        """Write `(−45 to −37)`, or nothing where an end is missing."""
        if found is None or found.low is None or found.high is None:
            return ""
        low, high = (self.number(end, plus=True) for end in (found.low, found.high))
        return f"({low} to {high})"


def significant(value: float, digits: int = 3) -> str:
    """Write a number with so many digits that count."""
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if not -5 <= magnitude < 7:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{max(0, digits - 1 - magnitude)}f}"


def percent(share: float) -> str:
    """Write a chance or a share to whole percent; what is nearly sure is not called sure."""
    if 0 < share < 0.01:
        return f"<{SPACE}1{SPACE}%"
    if 0.99 < share < 1:
        return f">{SPACE}99{SPACE}%"
    return f"{100 * share:z.0f}{SPACE}%"


def write_q(q: float | None) -> str:
    """Write a q-value; of those that are nearly zero, that they are."""
    return "–" if q is None else f"<{SPACE}0.001" if q < 0.001 else f"{q:.2g}"


def outcome_unit(result: Result) -> Unit:
    """Return how effects, and the outcomes that found the heads, are written; higher is better."""
    scores = unit_of(result)
    if result.task.outcome == "logprob":
        return Unit("nats", scores.metric)
    return unit_of_outcomes(scores)


def unit_of_outcomes(scores: Unit) -> Unit:
    """Return how outcomes of single examples, and their changes, are written; higher is better.

    They are those of the scores, except where the metric is better when lower: its outcomes are
    turned, and those of a perplexity are log-likelihoods.
    """
    if "perplexity" in scores.metric:
        return Unit("nats", scores.metric)
    if scores.higher_is_better:
        return scores
    return Unit(scores.sign, f"negative {scores.metric}")


def unit_of(result: Result) -> Unit:
    """Return how the located task's own scores are written."""
    task, checked = result.task, result.validation
    scores = [
        *(() if task.outcome == "logprob" else [result.intact.score]),
        *checked.task.scores,
        *([checked.held_out.knocked_out] if checked.held_out else ()),
        *(checked.controls.scores if checked.controls else ()),
    ]
    return unit_of_metric(task.metric or "score", scores, task.higher_is_better is not False)


def unit_of_task(entry: TaskComparison) -> Unit:
    """Return how the scores of a task that was scored before and after are written."""
    return unit_of_metric(
        entry.metric or "score", entry.scores, entry.higher_is_better is not False
    )


def unit_of_metric(
    metric: str, scores: Iterable[float | None], higher_is_better: bool = True
) -> Unit:
    """Return how the scores of a metric are written, of which these are some."""
    sign, words = "", set(re.split(r"[^a-z0-9]+", metric.lower()))
    if metric == "logprob":
        sign = "nats"
    elif words & SHARE_WORDS and all(0 <= score <= 1 for score in finite_numbers(scores)):
        sign = "%"
    return Unit(sign, metric, higher_is_better)
