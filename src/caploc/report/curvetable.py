"""Scores against the number of heads knocked out, as a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from caploc.contents.files import Curve
from caploc.report.reading import called_apart, inline
from caploc.report.scores import with_error
from caploc.report.units import ScoreKind, Unit
from caploc.result import Score


@dataclass(frozen=True, slots=True)
class CurveTable:
    """A column a task, a row for each number of heads."""

    tasks: list[str]
    rows: list[list[str]]  # how many heads, the last of them, the score of each task


def curve_table(curve: Curve, units: Mapping[str, Unit]) -> CurveTable:
    """Write the content of curve.json; `units` say how each task's scores are written."""
    curves = curve.curves
    heads = ["none", *map(inline, curve.heads)]
    rows = [
        [str(count), head, *(score_at(curves[task], count, units.get(task)) for task in curves)]
        for count, head in enumerate(heads)
    ]
    return CurveTable(list(called_apart(curves).values()), rows)


def score_at(points: Sequence[Score], count: int, unit: Unit | None) -> str:
    """The score with `count` heads knocked out, and its standard error."""
    point = points[count] if count < len(points) else Score()
    return with_error(point.score, point.stderr, unit or Unit(ScoreKind.PLAIN, "score"))
