"""How scores and effects are written: as percentages, in nats, or as the plain numbers they are."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from caploc.report.reading import finite_numbers, inline
from caploc.result import Result, TaskComparison

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


@dataclass(frozen=True, slots=True)
class Unit:
    """How to write a task's scores and effects, and which direction is worse."""

    kind: ScoreKind
    metric: str
    higher_is_better: bool = True

    @property
    def noun(self) -> str:
        """What falls or rises, as a sentence calls it."""
        if self.kind is ScoreKind.NATS:
            return "mean log-probability"
        return "score" if self.kind is ScoreKind.SHARE else inline(self.metric)

    @property
    def axis(self) -> str:
        """The unit of an effect, for a legend."""
        if self.kind is ScoreKind.SHARE:
            return "percentage points"
        return "nats" if self.kind is ScoreKind.NATS else inline(self.metric)

    @property
    def measure(self) -> str:
        """The unit of a drawn score; charts of one measure can share an axis."""
        return {ScoreKind.SHARE: "%", ScoreKind.NATS: "nats", ScoreKind.PLAIN: inline(self.metric)}[
            self.kind
        ]

    @property
    def factor(self) -> int:
        """By what a score is multiplied to be drawn: shares are drawn as percentages."""
        return 100 if self.kind is ScoreKind.SHARE else 1

    def harm(self, change: float) -> float:
        """Turn a change of the score into how much worse that is; negative if it is better."""
        return -change if self.higher_is_better else change

    def bare_score(self, value: float | None) -> str:
        """Write a score without its unit."""
        if value is None:
            return NOT_MEASURED
        return _percent(value) if self.kind is ScoreKind.SHARE else significant(value)

    def score(self, value: float | None) -> str:
        """Write a score: `99 %`, `−1.23 nats`, `12.1`."""
        unit = {ScoreKind.SHARE: "%", ScoreKind.NATS: "nats", ScoreKind.PLAIN: ""}[self.kind]
        return _joined(self.bare_score(value), unit if value is not None else "")

    def error(self, value: float) -> str:
        """Write the size of an error, without its unit."""
        return _percent(value) if self.kind is ScoreKind.SHARE else significant(value, 2)

    def bare_effect(self, value: float | None) -> str:
        """Write an effect without its unit; percentages change by percentage points."""
        if value is None:
            return NOT_MEASURED
        if self.kind is not ScoreKind.SHARE:
            return _plus(significant(value, 3 if abs(value) >= 0.1 else 2), value)
        points = 100 * value
        return _plus(significant(points, 1 if 0.95 <= abs(points) < 10 else 2, decimals=1), value)

    def short_effect(self, value: float, limit: float) -> str:
        """Write an effect to fit a cell of a map whose largest is `limit`.

        0.0 is small beside the largest, 0 is no effect at all.
        """
        if value == 0 or not math.isfinite(value):
            return significant(value)
        factor = 100 if self.kind is ScoreKind.SHARE else 1
        shown, largest = factor * abs(value), factor * max(limit, abs(value))
        decimals = max(0 if shown >= 9.95 else 1, 1 - math.floor(math.log10(largest)))
        text = f"{shown:,.{decimals}f}" if largest > 1e-4 else f"{shown:.0e}"
        return _plus(_signed(text, value), value) if text.strip("0.") else text

    def effect(self, value: float | None) -> str:
        """Write an effect: `−41.0 points`, `−0.41 nats`, `3.2`."""
        unit = {ScoreKind.SHARE: "points", ScoreKind.NATS: "nats", ScoreKind.PLAIN: ""}[self.kind]
        return _joined(self.bare_effect(value), unit if value is not None else "")


def significant(value: float, digits: int = 3, *, decimals: int = 0) -> str:
    """Write a number with so many digits that count, at least `decimals` after the point."""
    if not math.isfinite(value):
        return _signed("∞", value)
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if not -5 <= magnitude < 7:
        return _signed(f"{abs(value):.{digits - 1}e}", value)
    return _signed(f"{abs(value):,.{max(decimals, digits - 1 - magnitude)}f}", value)


def _percent(value: float) -> str:
    if not math.isfinite(value):
        return significant(value)
    return _signed(f"{abs(100 * value):.1f}".removesuffix(".0"), value)


def _signed(text: str, value: float) -> str:
    return f"−{text}" if value < 0 and text.strip("0.") else text


def _plus(text: str, value: float) -> str:
    return f"+{text}" if value > 0 else text


def _joined(number: str, unit: str) -> str:
    return f"{number}{SPACE}{unit}" if unit else number


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


def unit_of_metric(
    metric: str, scores: Iterable[float | None], higher_is_better: bool = True
) -> Unit:
    """Return how the scores of a metric are written, of which these are some."""
    return Unit(_kind(metric, scores), metric, higher_is_better)


def unit_of_other(entry: TaskComparison, main: Unit) -> Unit:
    """Return how another task's scores are written.

    An entry that names no metric is taken for a share of examples if the located task's score
    is one too and both its numbers could be; otherwise its numbers are shown as they are.
    """
    scores, higher_is_better = entry.scores, entry.higher_is_better is not False
    if entry.metric:
        return unit_of_metric(entry.metric, scores, higher_is_better)
    is_share = main.kind is ScoreKind.SHARE and _fit_a_share(scores)
    return Unit(ScoreKind.SHARE if is_share else ScoreKind.PLAIN, "score", higher_is_better)


def _kind(metric: str, scores: Iterable[float | None]) -> ScoreKind:
    if metric == "logprob":
        return ScoreKind.NATS
    words = set(re.split(r"[^a-z0-9]+", metric.lower()))
    return ScoreKind.SHARE if words & SHARE_WORDS and _fit_a_share(scores) else ScoreKind.PLAIN


def _fit_a_share(scores: Iterable[float | None]) -> bool:
    return all(0 <= score <= 1 for score in finite_numbers(scores))
