"""Scores before and after: the task, random heads instead, and other tasks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from caploc.report.failing import lost
from caploc.report.reading import (
    Result,
    at,
    called,
    called_apart,
    counted,
    finite,
    known,
    number_at,
)
from caploc.report.units import (
    NOT_MEASURED,
    SPACE,
    Unit,
    unit_of,
    unit_of_other,
    unit_of_outcomes,
)

VERDICTS = ("changed", "unchanged", "open")


@dataclass(frozen=True, slots=True)
class Point:
    """A score as a chart draws it; what was not measured is None."""

    score: float | None
    error: float | None = None  # one standard error, or standard deviation of the draws


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """One row of the table that compares scores before and after."""

    name: str
    short: str  # the name where the task is known
    detail: str
    intact: str
    knocked_out: str
    change: str
    interval: str  # of the change, 95 %; empty where it is not known
    verdict: str
    unit: Unit
    points: tuple[Point, Point]  # intact and knocked out
    draws: list[float]  # scores of the random draws
    lost: str = ""  # the capability, or the ability to answer, and by which kinds of answers


def comparisons(result: Result) -> list[ScoreRow]:
    """The task on held-out examples, without random heads, on all examples; the other tasks.

    Rows that were not measured are left out, but for the task itself; and where no head was named,
    nothing was knocked out.
    """
    validation, unit = at(result, "validation"), unit_of(result)
    if not at(result, "top"):
        return _intact_only(result, unit)
    controls, held_out = at(validation, "controls"), at(validation, "held_out")
    name = called(at(result, "task", "name") or "the task")
    whole = (at(validation, "task", "intact") or at(result, "intact")), at(validation, "task")
    whole_row = _whole(name, whole, unit)
    rows = [_held_out(name, held_out, unit)] if held_out else [whole_row]
    if controls:
        intact = at(held_out, "intact") if held_out else at(whole[0], "score")
        rows += _random_heads(name, known(intact), controls, unit)
    if held_out and at(validation, "task"):
        detail = f"{whole_row.detail}, those of the search among them".removeprefix(", ")
        rows.append(replace(whole_row, short="all examples", detail=detail))
    return rows + _others(at(validation, "other_tasks") or (), unit)


def _intact_only(result: Result, unit: Unit) -> list[ScoreRow]:
    """The task and the other tasks, with no head to knock out."""
    name = called(at(result, "task", "name") or "the task")
    intact = at(result, "validation", "task", "intact") or at(result, "intact")
    rows = [_compared(name, intact, None, unit)]
    others = at(result, "validation", "other_tasks") or ()
    return rows + _others([{**one, "knocked_out": None, "change": None} for one in others], unit)


def _held_out(name: str, held_out: Any, unit: Unit) -> ScoreRow:
    before, after = (number_at(held_out, when) for when in ("intact", "knocked_out"))
    examples = number_at(held_out, "examples")
    fresh = at(held_out, "fresh") is True
    kind = "that no search saw" if fresh else "that the heads were found on"
    change = at(held_out, "change")
    return ScoreRow(
        name=f"{name}, held-out examples" if fresh else f"{name}, examples of the search",
        short="held-out examples" if fresh else "search examples",
        detail=f"{counted(examples, 'example')} {kind}" if examples else kind,
        intact=unit.score(before),
        knocked_out=unit.score(after),
        change=_change(before, after, unit),
        interval=interval(change, unit),
        verdict=verdict(change),
        unit=unit,
        points=(Point(before), Point(after)),
        draws=[],
    )


def _whole(name: str, scores: tuple[Any, Any], unit: Unit) -> ScoreRow:
    row = _compared(name, scores[0], at(scores[1], "knocked_out"), unit)
    return told_more(row, scores[1], unit)


def told_more(row: ScoreRow, entry: Any, unit: Unit) -> ScoreRow:
    """The same with the interval of the change, the verdict on it, and what was lost."""
    change = at(entry, "change")
    return replace(
        row,
        interval=interval(change, unit),
        verdict=verdict(change),
        lost=lost(at(entry, "failures")),
    )


def _others(entries: Sequence[Any], main: Unit) -> list[ScoreRow]:
    names = [str(at(entry, "name") or "another task") for entry in entries]
    short = called_apart(names)
    return [_other(entry, short[name], main) for entry, name in zip(entries, names, strict=True)]


def _other(entry: Any, name: str, main: Unit) -> ScoreRow:
    unit = unit_of_other(entry, main)
    pair = at(entry, "intact"), at(entry, "knocked_out")
    row = _compared(name, *pair, unit)
    return told_more(row, entry, unit)


def interval(change: Any, unit: Unit) -> str:
    """Write the 95 % interval of a change of outcomes, whose unit may not be the score's."""
    low, high = number_at(change, "low"), number_at(change, "high")
    if low is None or high is None:
        return ""
    own = unit_of_outcomes(unit)
    ends = f"{own.bare_effect(low)} to {own.bare_effect(high)}"
    return ends if own == unit else f"{ends}{SPACE}{own.axis}"


def verdict(change: Any) -> str:
    """Write what an interval says: changed, unchanged within a margin, or open."""
    said = str(at(change, "verdict") or "")
    margin = number_at(change, "margin")
    if said == "unchanged" and margin is not None:
        return f"unchanged within {100 * margin:.3g}{SPACE}points"
    return said if said in VERDICTS else ""


def _compared(name: str, intact: Any, knocked_out: Any, unit: Unit) -> ScoreRow:
    before, after = number_at(intact, "score"), number_at(knocked_out, "score")
    examples = number_at(knocked_out, "examples") or number_at(intact, "examples")
    return ScoreRow(
        name=name,
        short=name,
        detail=f"{examples:,.0f} examples" if examples else "",
        intact=with_error(before, number_at(intact, "stderr"), unit),
        knocked_out=with_error(after, number_at(knocked_out, "stderr"), unit),
        change=_change(before, after, unit),
        interval="",
        verdict="",
        unit=unit,
        points=(_point(intact), _point(knocked_out)),
        draws=[],
    )


def _random_heads(name: str, intact: float | None, controls: Any, unit: Unit) -> list[ScoreRow]:
    """Random heads of the same layers, and where it was measured, of the same groups."""
    rows = [
        ("random heads instead", "random heads", controls, "of as many in each layer"),
        (
            "other heads of the same groups",
            "same groups",
            at(controls, "same_groups"),
            "of the named heads' key-value groups",
        ),
    ]
    return [
        replace(_drawn(draws, intact, kind, unit), name=f"{name}, {long}", short=short)
        for long, short, draws, kind in rows
        if draws
    ]


def _drawn(controls: Any, intact: float | None, kind: str, unit: Unit) -> ScoreRow:
    mean, spread = number_at(controls, "mean"), number_at(controls, "sd")
    scores = finite(known(score) for score in at(controls, "scores") or ())
    detail = f"{counted(number_at(controls, 'draws') or len(scores), 'draw')} {kind}"
    return ScoreRow(
        name="",
        short="",
        detail=detail if spread is None else f"{detail}; ± is their standard deviation",
        intact=unit.score(intact),
        knocked_out=with_error(mean, spread, unit),
        change=_change(intact, mean, unit),
        interval="",
        verdict="",
        unit=unit,
        points=(Point(intact), Point(mean, spread)),
        draws=scores,
    )


def with_error(value: float | None, error: float | None, unit: Unit) -> str:
    """Write a score and its error."""
    if value is None or error is None:
        return unit.score(value)
    return f"{unit.score(value)} ±\u00a0{unit.error(error)}"


def _change(before: float | None, after: float | None, unit: Unit) -> str:
    if before is None or after is None:
        return NOT_MEASURED
    return unit.effect(after - before)


def _point(score: Any) -> Point:
    return Point(number_at(score, "score"), number_at(score, "stderr"))
