"""Heads together: what `caploc interactions` found beyond doubt, in sentences and as a table."""

from dataclasses import dataclass

from caploc.contents import Interactions
from caploc.report.reading import inline, name_list
from caploc.report.scores import format_interval
from caploc.report.units import significant, unit_of, unit_of_outcomes
from caploc.result import Result

LEVEL = 0.05  # false discovery rate at which a contrast is named
MOST_SHOWN = 25


@dataclass(frozen=True, slots=True)
class Contrasts:
    """`rows` are the contrasts named, the surest first; `tested` is the number of all."""

    summary: list[str]
    rows: list[list[str]]  # heads, and, contrast, interval, q, meaning
    named: int
    tested: int


def contrasts_of(found: Interactions, result: Result) -> Contrasts:
    """Write the content of interactions.json in the units of the run's score."""
    unit = unit_of_outcomes(unit_of(result))
    named = [each for each in found.interactions if each.q is not None and each.q < LEVEL]
    rows = [
        [
            name_list(each.first),
            name_list(each.second),
            unit.effect(each.effect),
            format_interval(each, unit),
            significant(each.q or 0.0, 2),
            inline(each.meaning),
        ]
        for each in named[:MOST_SHOWN]
    ]
    summary = [inline(sentence) for sentence in found.summary]
    return Contrasts(summary, rows, len(named), len(found.interactions))
