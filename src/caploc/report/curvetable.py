"""Scores against the number of heads knocked out, as a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caploc.report.reading import at, called_apart, inline, number_at
from caploc.report.scores import with_error
from caploc.report.units import ScoreKind, Unit


@dataclass(frozen=True, slots=True)
class CurveTable:
    """A column a task, a row for each number of heads."""

    tasks: list[str]
    rows: list[list[str]]  # how many heads, the last of them, the score of each task


def curve_table(curve: Mapping[str, Any], units: Mapping[str, Unit]) -> CurveTable:
    """Write the content of curve.json; `units` say how each task's scores are written."""
    curves: Mapping[str, Any] = at(curve, "curves") or {}
    heads = ["none", *(inline(head) for head in at(curve, "heads") or ())]
    rows = [
        [str(count), head, *(score_at(curves[task], count, units.get(task)) for task in curves)]
        for count, head in enumerate(heads)
    ]
    return CurveTable(list(called_apart(curves).values()), rows)


def score_at(points: Sequence[Any], count: int, unit: Unit | None) -> str:
    """The score with `count` heads knocked out, and its standard error."""
    point = points[count] if count < len(points) else None
    unit = unit or Unit(ScoreKind.PLAIN, "score")
    return with_error(number_at(point, "score"), number_at(point, "stderr"), unit)
