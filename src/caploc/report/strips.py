"""Scores before and after, in figures and on short axes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from caploc.report.failing import lost
from caploc.report.reading import Result, at, called, counted, finite, known, number_at
from caploc.report.units import (
    NOT_MEASURED,
    SPACE,
    Kind,
    Unit,
    unit_of,
    unit_of_other,
    unit_of_outcomes,
)

MARGIN = 4.0  # percent of the axis left free at both ends, so that no mark is cut off
VERDICTS = ("changed", "unchanged", "open")


@dataclass(frozen=True, slots=True)
class Axis:
    """A horizontal axis; places are percentages of its width."""

    low: float
    high: float

    def place(self, value: float | None) -> float | None:
        """Return where the value lies, 0 to 100; None where there is nothing to draw."""
        numbers = finite([value])
        if not numbers:
            return None
        span = self.high - self.low
        share = (numbers[0] - self.low) / span if span > 0 else 0.5
        return round(MARGIN + (100 - 2 * MARGIN) * min(1.0, max(0.0, share)), 2)

    def ends(self, unit: Unit) -> tuple[str, str]:
        """Write what both ends stand for."""
        return unit.score(self.low), unit.score(self.high)


@dataclass(frozen=True, slots=True)
class Bar:
    """A value drawn as a dot, with the ends of its error line where there is one."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One row of the table that compares scores before and after."""

    name: str
    detail: str
    intact: str
    knocked_out: str
    change: str
    interval: str  # of the change, 95 %; empty where it is not known
    verdict: str
    bars: tuple[Bar, Bar]
    draws: list[float]  # places of the random draws
    ends: tuple[str, str]  # what the ends of the axis stand for
    lost: str = ""  # the capability, or the ability to answer, and by which kinds of answers


def comparisons(result: Result) -> list[Comparison]:
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
    axis = _axis(_own_scores(whole[0], whole[1], held_out, controls), unit)
    whole_row = _whole(name, whole, unit, axis)
    rows = [_held_out(name, held_out, unit, axis)] if held_out else [whole_row]
    if controls:
        intact = at(held_out, "intact") if held_out else at(whole[0], "score")
        rows += _random_heads(name, known(intact), controls, unit, axis)
    if held_out and at(validation, "task"):
        detail = f"{whole_row.detail}, those of the search among them".removeprefix(", ")
        rows.append(replace(whole_row, detail=detail))
    return rows + [_other(entry, unit) for entry in at(validation, "other_tasks") or ()]


def _intact_only(result: Result, unit: Unit) -> list[Comparison]:
    """The task and the other tasks, with no head to knock out."""
    name = called(at(result, "task", "name") or "the task")
    intact = at(result, "validation", "task", "intact") or at(result, "intact")
    rows = [_compared(name, intact, None, unit, _axis(finite([number_at(intact, "score")]), unit))]
    others = at(result, "validation", "other_tasks") or ()
    return rows + [_other({**entry, "knocked_out": None, "change": None}, unit) for entry in others]


def _own_scores(intact: Any, task: Any, held_out: Any, controls: Any) -> list[float]:
    """All scores of the task itself, which share an axis."""
    draws = [*(at(controls, "scores") or ()), *(at(controls, "same_groups", "scores") or ())]
    scores = [number_at(intact, "score"), number_at(task, "knocked_out", "score")]
    scores += [number_at(held_out, when) for when in ("intact", "knocked_out")]
    return finite([*scores, *map(known, draws)])


def _axis(scores: Sequence[float], unit: Unit) -> Axis:
    """Zero is always on the axis, so that a small change looks small."""
    if unit.kind is Kind.SHARE:
        return Axis(0.0, 1.0)
    return Axis(min([*scores, 0.0]), max([*scores, 0.0]))


def _held_out(name: str, held_out: Any, unit: Unit, axis: Axis) -> Comparison:
    before, after = (number_at(held_out, when) for when in ("intact", "knocked_out"))
    examples = number_at(held_out, "examples")
    fresh = at(held_out, "fresh") is True
    kind = "that no search saw" if fresh else "that the heads were found on"
    change = at(held_out, "change")
    return Comparison(
        name=f"{name}, held-out examples" if fresh else f"{name}, examples of the search",
        detail=f"{counted(examples, 'example')} {kind}" if examples else kind,
        intact=unit.score(before),
        knocked_out=unit.score(after),
        change=_change(before, after, unit),
        interval=interval(change, unit),
        verdict=verdict(change),
        bars=(Bar(axis.place(before)), Bar(axis.place(after))),
        draws=[],
        ends=_ends(before, after, axis, unit),
    )


def _whole(name: str, scores: tuple[Any, Any], unit: Unit, axis: Axis) -> Comparison:
    row = _compared(name, scores[0], at(scores[1], "knocked_out"), unit, axis)
    return told_more(row, scores[1], unit)


def told_more(row: Comparison, entry: Any, unit: Unit) -> Comparison:
    """The same with the interval of the change, the verdict on it, and what was lost."""
    change = at(entry, "change")
    return replace(
        row,
        interval=interval(change, unit),
        verdict=verdict(change),
        lost=lost(at(entry, "failures")),
    )


def _other(entry: Any, main: Unit) -> Comparison:
    unit = unit_of_other(entry, main)
    pair = at(entry, "intact"), at(entry, "knocked_out")
    axis = _axis(finite(number_at(score, "score") for score in pair), unit)
    row = _compared(called(at(entry, "name") or "another task"), *pair, unit, axis)
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


def _ends(before: float | None, after: float | None, axis: Axis, unit: Unit) -> tuple[str, str]:
    return axis.ends(unit) if before is not None or after is not None else ("", "")


def _compared(name: str, intact: Any, knocked_out: Any, unit: Unit, axis: Axis) -> Comparison:
    before, after = number_at(intact, "score"), number_at(knocked_out, "score")
    examples = number_at(knocked_out, "examples") or number_at(intact, "examples")
    return Comparison(
        name=name,
        detail=f"{examples:,.0f} examples" if examples else "",
        intact=_with_error(before, number_at(intact, "stderr"), unit),
        knocked_out=_with_error(after, number_at(knocked_out, "stderr"), unit),
        change=_change(before, after, unit),
        interval="",
        verdict="",
        bars=(_bar(intact, axis), _bar(knocked_out, axis)),
        draws=[],
        ends=_ends(before, after, axis, unit),
    )


def _random_heads(
    name: str, intact: float | None, controls: Any, unit: Unit, axis: Axis
) -> list[Comparison]:
    """Random heads of the same layers, and where it was measured, of the same groups."""
    rows = [
        (f"{name}, random heads instead", controls, "of as many in each layer"),
        (
            f"{name}, other heads of the same groups",
            at(controls, "same_groups"),
            "of the named heads' key-value groups",
        ),
    ]
    return [
        _drawn((title, draws), intact, kind, unit, axis) for title, draws, kind in rows if draws
    ]


def _drawn(
    titled: tuple[str, Any], intact: float | None, kind: str, unit: Unit, axis: Axis
) -> Comparison:
    title, controls = titled
    mean, spread = number_at(controls, "mean"), number_at(controls, "sd")
    scores = finite(known(score) for score in at(controls, "scores") or ())
    detail = f"{counted(number_at(controls, 'draws') or len(scores), 'draw')} {kind}"
    return Comparison(
        name=title,
        detail=detail if spread is None else f"{detail}; ± is their standard deviation",
        intact=unit.score(intact),
        knocked_out=_with_error(mean, spread, unit),
        change=_change(intact, mean, unit),
        interval="",
        verdict="",
        bars=(Bar(axis.place(intact)), Bar(axis.place(mean))),
        draws=[place for place in map(axis.place, scores) if place is not None],
        ends=axis.ends(unit),
    )


def _with_error(value: float | None, error: float | None, unit: Unit) -> str:
    if value is None or error is None:
        return unit.score(value)
    return f"{unit.score(value)} ±\u00a0{unit.error(error)}"


def _change(before: float | None, after: float | None, unit: Unit) -> str:
    if before is None or after is None:
        return NOT_MEASURED
    return unit.effect(after - before)


def _bar(score: Any, axis: Axis) -> Bar:
    value, error = number_at(score, "score"), number_at(score, "stderr")
    if value is None or error is None:
        return Bar(axis.place(value))
    return Bar(axis.place(value), axis.place(value - error), axis.place(value + error))
