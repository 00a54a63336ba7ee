"""Text that is safe to show; counts, lists, scores and effects as a reader meets them."""

import math
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from caploc.naming import YAML, is_file
from caploc.result import Result, TaskComparison

NAMES_SHOWN = 8  # a sentence with more head names than this is no longer read

# Control codes, invisible characters and those that reverse the direction of reading. The joiners
# U+200C and U+200D are left alone: Persian and emoji need them.
UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)

# what a YAML, or JSON in its place, says that its task or group is called
TITLE = re.compile(
    r"""^[ {]{0,2}["']?(?:task|group)["']?: *["']?([^"'#|>\[\n]+?)["']?,? *$""", re.M
)
MOST = 100_000  # characters of a YAML that are read for it


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

    Of a task's YAML that is there, it is what the YAML says.
    """
    text = inline(name)
    if not text.startswith("/"):
        return text
    return (title_in(text) if text.endswith(YAML) else "") or text.rstrip("/").rsplit("/", 1)[-1]


@cache
def title_in(path: str) -> str:
    """Return the name that a YAML gives its task or group; empty where it is not there."""
    if not is_file(Path(path)):
        return ""
    with suppress(OSError), Path(path).open(encoding="utf-8", errors="replace") as file:
        if found := TITLE.search(file.read(MOST)):
            return inline(found[1])
    return ""


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


NOT_MEASURED = "not measured"
SPACE = "\u00a0"  # a number and its unit stay on one line

# A metric whose name holds one of these words is the share of examples that went right. Others
# stay plain numbers even between 0 and 1: a correlation of 0.5 is not "50 %".
SHARE_WORDS = frozenset({"acc", "accuracy", "em", "exact", "f1", "match", "pass", "rate", "share"})


class ScoreKind(Enum):
    """What kind of number a score is."""

    SHARE = "share"  # 0 to 1, written as a percentage
    NATS = "nats"  # log-probability
    PLAIN = "plain"  # anything else


class Bounded(Protocol):
    """What has an interval; an end that is not known is None."""

    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Unit:
    """How to write a task's scores and effects, and which direction is worse."""

    kind: ScoreKind
    metric: str
    higher_is_better: bool = True

    def _by_kind(self, share: str, nats: str, plain: str | None = None) -> str:
        """Return the word for this kind; of plain numbers, the metric's name if there is none."""
        plain = inline(self.metric) if plain is None else plain
        return {ScoreKind.SHARE: share, ScoreKind.NATS: nats, ScoreKind.PLAIN: plain}[self.kind]

    @property
    def axis(self) -> str:
        """The unit of an effect, for a legend."""
        return self._by_kind("percentage points", "nats")

    @property
    def factor(self) -> int:
        """By what a score is multiplied to be drawn: shares are drawn as percentages."""
        return 100 if self.kind is ScoreKind.SHARE else 1

    def harm(self, change: float) -> float:
        """Turn a change of the score into how much worse that is; negative if it is better."""
        return -change if self.higher_is_better else change

    def score(self, value: float | None) -> str:
        """Write a score: `99 %`, `−1.23 nats`, `12.1`."""
        if value is None:
            return NOT_MEASURED
        text = _percent(value) if self.kind is ScoreKind.SHARE else significant(value)
        return f"{text}{SPACE}{self._by_kind('%', 'nats', '')}".rstrip(SPACE)

    def error(self, value: float) -> str:
        """Write the size of an error, without its unit."""
        return _percent(value) if self.kind is ScoreKind.SHARE else significant(value, 2)

    def bare_effect(self, value: float | None) -> str:
        """Write an effect without its unit; percentages change by percentage points, to a tenth.

        0.0 is less than that, 0 is no effect at all.
        """
        if value is None:
            return NOT_MEASURED
        if self.kind is not ScoreKind.SHARE:
            return _plus(significant(value, 3 if abs(value) >= 0.1 else 2), value)
        if value == 0 or not math.isfinite(value):
            return _plus(significant(value), value)
        text = f"{abs(100 * value):,.1f}"
        return _plus(_signed(text, value), value) if text.strip("0.") else text

    def short_effect(self, value: float, limit: float) -> str:
        """Write an effect to fit a cell of a map whose largest is `limit`.

        0.0 is small beside the largest, 0 is no effect at all.
        """
        if value == 0 or not math.isfinite(value):
            return significant(value)
        shown, largest = self.factor * abs(value), self.factor * max(limit, abs(value))
        decimals = max(0 if shown >= 9.95 else 1, 1 - math.floor(math.log10(largest)))
        text = f"{shown:,.{decimals}f}" if largest > 1e-4 else f"{shown:.0e}"
        return _plus(_signed(text, value), value) if text.strip("0.") else text

    def effect(self, value: float | None) -> str:
        """Write an effect: `−41.0 points`, `−0.41 nats`, `3.2`."""
        unit = "" if value is None else self._by_kind("points", "nats", "")
        return f"{self.bare_effect(value)}{SPACE}{unit}".rstrip(SPACE)

    def interval(self, change: Bounded | None) -> str:
        """Write `−45.1 to −37.0`, or nothing where an end is missing."""
        if change is None or change.low is None or change.high is None:
            return ""
        return f"{self.bare_effect(change.low)} to {self.bare_effect(change.high)}"


def significant(value: float, digits: int = 3) -> str:
    """Write a number with so many digits that count."""
    if not math.isfinite(value):
        return _signed("∞", value)
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if not -5 <= magnitude < 7:
        return _signed(f"{abs(value):.{digits - 1}e}", value)
    return _signed(f"{abs(value):,.{max(0, digits - 1 - magnitude)}f}", value)


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


def _percent(value: float) -> str:
    if not math.isfinite(value):
        return significant(value)
    return _signed(f"{abs(100 * value):.1f}".removesuffix(".0"), value)


def _signed(text: str, value: float) -> str:
    return f"−{text}" if value < 0 and text.strip("0.") else text


def _plus(text: str, value: float) -> str:
    return f"+{text}" if value > 0 else text


def outcome_unit(result: Result) -> Unit:
    """Return how effects, and the outcomes that found the heads, are written; higher is better."""
    scores = unit_of(result)
    if result.task.outcome == "logprob":
        return Unit(ScoreKind.NATS, scores.metric)
    return unit_of_outcomes(scores)


def unit_of_outcomes(scores: Unit) -> Unit:
    """Return how outcomes of single examples, and their changes, are written; higher is better.

    They are those of the scores, except where the metric is better when lower: its outcomes are
    turned, and those of a perplexity are log-likelihoods.
    """
    if "perplexity" in scores.metric:
        return Unit(ScoreKind.NATS, scores.metric)
    if scores.higher_is_better:
        return scores
    return Unit(scores.kind, f"negative {scores.metric}")


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
    kind, words = ScoreKind.PLAIN, set(re.split(r"[^a-z0-9]+", metric.lower()))
    if metric == "logprob":
        kind = ScoreKind.NATS
    elif words & SHARE_WORDS and all(0 <= score <= 1 for score in finite_numbers(scores)):
        kind = ScoreKind.SHARE
    return Unit(kind, metric, higher_is_better)
