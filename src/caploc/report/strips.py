"""Numbers on short axes: scores before and after, and effects with their intervals."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from caploc.report.reading import Result, at, finite, inline, known, number_at
from caploc.report.units import NOT_MEASURED, Kind, Unit, unit_of, unit_of_other

MARGIN = 4.0  # percent of the axis left free at both ends, so that no mark is cut off
HEADS_LISTED = 24  # rows of the table of heads; the map has them all


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
    bars: tuple[Bar, Bar]
    draws: list[float]  # places of the random draws
    ends: tuple[str, str]  # what the ends of the axis stand for


def comparisons(result: Result) -> list[Comparison]:
    """The task, the same task without random heads, and the other tasks, in that order."""
    validation = at(result, "validation")
    task, unit = at(validation, "task"), unit_of(result)
    intact = at(task, "intact") or at(result, "intact")
    controls = at(validation, "controls")
    draws = finite(known(score) for score in at(controls, "scores") or ())
    name = inline(at(result, "task", "name") or "the task")
    own = _axis([intact, at(task, "knocked_out")], draws, unit)
    rows = [_compared(name, intact, at(task, "knocked_out"), unit, own)]
    if controls:
        rows.append(_random_heads(name, intact, controls, unit, own))
    for entry in at(validation, "other_tasks") or ():
        pair, other = (at(entry, "intact"), at(entry, "knocked_out")), unit_of_other(entry, unit)
        title = inline(at(entry, "name") or "another task")
        rows.append(_compared(title, *pair, other, _axis(pair, [], other)))
    return rows


def _axis(scores: Sequence[Any], more: Sequence[float], unit: Unit) -> Axis:
    """Zero is always on the axis, so that a small change looks small."""
    if unit.kind is Kind.SHARE:
        return Axis(0.0, 1.0)
    values = [*finite(number_at(score, "score") for score in scores), *more, 0.0]
    return Axis(min(values), max(values))


def _compared(name: str, intact: Any, knocked_out: Any, unit: Unit, axis: Axis) -> Comparison:
    before, after = number_at(intact, "score"), number_at(knocked_out, "score")
    examples = number_at(knocked_out, "examples") or number_at(intact, "examples")
    return Comparison(
        name=name,
        detail=f"{examples:,.0f} examples" if examples else "",
        intact=_with_error(before, number_at(intact, "stderr"), unit),
        knocked_out=_with_error(after, number_at(knocked_out, "stderr"), unit),
        change=_change(before, after, unit),
        bars=(_bar(intact, axis), _bar(knocked_out, axis)),
        draws=[],
        ends=axis.ends(unit) if before is not None or after is not None else ("", ""),
    )


def _random_heads(name: str, intact: Any, controls: Any, unit: Unit, axis: Axis) -> Comparison:
    mean, spread = number_at(controls, "mean"), number_at(controls, "sd")
    before = number_at(intact, "score")
    scores = finite(known(score) for score in at(controls, "scores") or ())
    draws = number_at(controls, "draws") or len(scores)
    detail = f"{draws:,.0f} draws of as many in each layer"
    return Comparison(
        name=f"{name}, random heads instead",
        detail=detail if spread is None else f"{detail}; ± is their standard deviation",
        intact=unit.score(before),
        knocked_out=_with_error(mean, spread, unit),
        change=_change(before, mean, unit),
        bars=(Bar(axis.place(before)), Bar(axis.place(mean))),
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


@dataclass(frozen=True, slots=True)
class HeadRow:
    """One row of the table of heads."""

    head: str
    effect: str
    interval: str
    q: str
    top: bool
    selected: bool | None
    universal: bool | None
    bar: Bar
    zero: float | None
    needed: bool


@dataclass(frozen=True, slots=True)
class HeadTable:
    """The heads that count, most needed first, and which columns have anything to show."""

    rows: list[HeadRow]
    intervals: bool
    q: bool
    universal: bool
    left_out: int  # heads that belong here but are too many to list


def head_table(result: Result) -> HeadTable:
    """List the top and the selected heads; if there are none, the ten most needed."""
    entries = list(at(result, "heads") or ())
    top, unit = set(at(result, "top") or ()), unit_of(result)
    chosen = [
        entry for entry in entries if at(entry, "selected") is True or at(entry, "head") in top
    ] or [entry for entry in entries if known(at(entry, "effect")) is not None][:10]
    shown = chosen[:HEADS_LISTED]
    fields = ("effect", "low", "high")
    values = finite(known(at(entry, field)) for entry in shown for field in fields)
    axis = Axis(min([0.0, *values]), max([0.0, *values]))
    return HeadTable(
        rows=[_head_row(entry, top, unit, axis) for entry in shown],
        intervals=any(known(at(entry, "low")) is not None for entry in shown),
        q=any(known(at(entry, "q")) is not None for entry in shown),
        universal=any(at(entry, "universal") is not None for entry in shown),
        left_out=len(chosen) - len(shown),
    )


def _head_row(entry: Any, top: set[str], unit: Unit, axis: Axis) -> HeadRow:
    effect = known(at(entry, "effect"))
    low, high, q = (known(at(entry, field)) for field in ("low", "high", "q"))
    interval = low is not None and high is not None
    return HeadRow(
        head=inline(at(entry, "head")),
        effect=unit.effect(effect),
        interval=f"{unit.bare_effect(low)} to {unit.bare_effect(high)}" if interval else "–",
        q="–" if q is None else f"{q:.2g}",
        top=at(entry, "head") in top,
        selected=at(entry, "selected"),
        universal=at(entry, "universal"),
        bar=Bar(axis.place(effect), axis.place(low), axis.place(high)),
        zero=axis.place(0.0),
        needed=effect is not None and unit.harm(effect) > 0,
    )
