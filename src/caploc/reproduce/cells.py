"""Scores as the cells of tables: means over benchmarks, relative scores, drops."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import sqrt

from caploc.exhibits.exhibit import Value
from caploc.heads import Head
from caploc.reproduce.laboratory import ScoredTask
from caploc.reproduce.preset import Benchmark, PresetModel
from caploc.reproduce.selection import Lab
from caploc.stats.localization import share_error


def format_score(
    lab: Lab, model: PresetModel, benchmark: Benchmark, heads: Sequence[Head]
) -> ScoredTask:
    """A benchmark's score as tables show it: some as a share of the intact score."""
    found = lab.score(model, benchmark, heads)
    return relative(found) if benchmark.relative else found


def relative(found: ScoredTask) -> ScoredTask:
    """As a share of the intact score; everything is None where that is 0 or not known.

    The intact model is 1 without error, and what is left and what is lost share one error.
    """
    whole = found.intact or None
    left = None if whole is None or found.score is None else found.score / whole
    errors = found.intact_stderr, found.stderr
    error = None
    if whole is not None and left is not None and None not in (*errors, found.drop_stderr):
        error = share_error(left, whole, errors, found.drop_stderr)  # type: ignore[arg-type]
    return replace(
        found,
        intact=None if whole is None else 1.0,
        intact_stderr=None if whole is None or found.intact_stderr is None else 0.0,
        score=left,
        stderr=error,
        drop=None if left is None else 1 - left,
        drop_stderr=error,
        chance=0.0,
    )


def mean(
    lab: Lab, model: PresetModel, benchmarks: Sequence[Benchmark], heads: Sequence[Head]
) -> ScoredTask:
    """The plain mean over benchmarks, which share no example: their variances add up."""
    parts = [format_score(lab, model, benchmark, heads) for benchmark in benchmarks]
    return ScoredTask(
        intact=average(part.intact for part in parts),
        intact_stderr=error(part.intact_stderr for part in parts),
        score=average(part.score for part in parts),
        stderr=error(part.stderr for part in parts),
        drop=average(part.drop for part in parts),
        drop_stderr=error(part.drop_stderr for part in parts),
        examples=sum(part.examples for part in parts),
        chance=sum(part.chance for part in parts) / max(len(parts), 1),
    )


def general(lab: Lab, model: PresetModel, heads: Sequence[Head]) -> ScoredTask:
    """The mean of the general benchmarks."""
    return mean(lab, model, lab.preset.general, heads)


def average(values: Iterable[float | None]) -> float | None:
    """The mean; None if any is missing, or there are none."""
    every = list(values)
    known = [value for value in every if value is not None]
    return sum(known) / len(known) if known and len(known) == len(every) else None


def error(values: Iterable[float | None]) -> float | None:
    """The standard error of a mean of independent parts; None if any is missing."""
    every = list(values)
    squares = average(None if value is None else value**2 for value in every)
    return None if squares is None else sqrt(squares / len(every))


def score_value(found: ScoredTask, printed: float | None = None) -> Value:
    """A score with its error."""
    return Value(found.score, found.stderr, printed)


def drop_value(found: ScoredTask, printed: float | None = None) -> Value:
    """What was lost, with the error of the paired difference."""
    return Value(found.drop, found.drop_stderr, printed)


def lost_share(found: ScoredTask) -> Value:
    """What was lost, in percent of the intact score, with its error."""
    part = relative(found)
    lost, error = (None if value is None else 100 * value for value in (part.drop, part.stderr))
    return Value(lost, error, digits=0)
