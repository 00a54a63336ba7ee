"""Heads together: what `caploc interactions` found beyond doubt, in sentences and as a table."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from caploc.report.reading import Result, at, inline, listed, number_at
from caploc.report.scores import interval
from caploc.report.units import significant, unit_of, unit_of_outcomes

LEVEL = 0.05  # false discovery rate at which a contrast is named
MOST_SHOWN = 25


@dataclass(frozen=True, slots=True)
class Contrasts:
    """`rows` are the contrasts named, the surest first; `tested` is the number of all."""

    summary: list[str]
    rows: list[list[str]]  # heads, and, contrast, interval, q, meaning
    named: int
    tested: int


def contrasts_of(told: Mapping[str, Any], result: Result) -> Contrasts:
    """Write the content of interactions.json in the units of the run's score."""
    unit = unit_of_outcomes(unit_of(result))
    every = at(told, "interactions") or ()
    named = [each for each in every if (q := number_at(each, "q")) is not None and q < LEVEL]
    rows = [
        [
            listed(at(each, "first") or ()),
            listed(at(each, "second") or ()),
            unit.effect(number_at(each, "effect")),
            interval(each, unit),
            significant(number_at(each, "q") or 0.0, 2),
            inline(at(each, "meaning")),
        ]
        for each in named[:MOST_SHOWN]
    ]
    summary = [inline(sentence) for sentence in at(told, "summary") or ()]
    return Contrasts(summary, rows, len(named), len(every))
