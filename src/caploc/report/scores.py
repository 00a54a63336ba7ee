"""Scores before and after: the task, random heads instead, other tasks, one more head each time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from caploc.contents import Curve
from caploc.report.failing import lost
from caploc.report.reading import called, called_apart, counted, finite_numbers, inline
from caploc.report.units import (
    NOT_MEASURED,
    SPACE,
    ScoreKind,
    Unit,
    unit_of,
    unit_of_other,
    unit_of_outcomes,
)
from caploc.result import Bounded, Change, HeldOut, Result, Score, Spread, TaskComparison

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
    validation, unit = result.validation, unit_of(result)
    controls, held_out, task = validation.controls, validation.held_out, validation.task
    name = called(result.task.name)
    intact = task.intact or result.intact
    if not result.top:
        without = {"knocked_out": None, "change": None}
        others = [other.model_copy(update=without) for other in validation.other_tasks]
        alone = TaskComparison(name=name, intact=intact)
        return [_compared(name, alone, unit), *_others(others, unit)]
    whole = _compared(name, task.model_copy(update={"intact": intact}), unit)
    rows = [_held_out(name, held_out, unit)] if held_out else [whole]
    if controls:
        before = held_out.intact if held_out else intact.score
        random = _drawn(controls, before, "of as many in each layer", unit)
        rows.append(replace(random, name=f"{name}, random heads instead", short="random heads"))
        if controls.same_groups:
            same = "of the named heads' key-value groups"
            near = _drawn(controls.same_groups, before, same, unit)
            long = f"{name}, other heads of the same groups"
            rows.append(replace(near, name=long, short="same groups"))
    if held_out:
        detail = f"{whole.detail}, those of the search among them".removeprefix(", ")
        rows.append(replace(whole, short="all examples", detail=detail))
    return rows + _others(validation.other_tasks, unit)


def _held_out(name: str, held_out: HeldOut, unit: Unit) -> ScoreRow:
    before, after, examples = held_out.intact, held_out.knocked_out, held_out.examples
    kind = "that no search saw" if held_out.fresh else "that the heads were found on"
    return ScoreRow(
        name=f"{name}, {'held-out examples' if held_out.fresh else 'examples of the search'}",
        short="held-out examples" if held_out.fresh else "search examples",
        detail=f"{counted(examples, 'example')} {kind}" if examples else kind,
        intact=unit.score(before),
        knocked_out=unit.score(after),
        change=_change(before, after, unit),
        interval=format_interval(held_out.change, unit),
        verdict=describe_verdict(held_out.change),
        unit=unit,
        points=(Point(before), Point(after)),
        draws=[],
    )


def _others(entries: Sequence[TaskComparison], main: Unit) -> list[ScoreRow]:
    short = called_apart([entry.name for entry in entries])
    return [_compared(short[e.name], e, unit_of_other(e, main)) for e in entries]


def format_interval(change: Bounded | None, unit: Unit) -> str:
    """Write the 95 % interval of a change of outcomes, whose unit may not be the score's."""
    if change is None or change.low is None or change.high is None:
        return ""
    own = unit_of_outcomes(unit)
    ends = f"{own.bare_effect(change.low)} to {own.bare_effect(change.high)}"
    return ends if own == unit else f"{ends}{SPACE}{own.axis}"


def describe_verdict(change: Change | None) -> str:
    """Write what an interval says: changed, unchanged within a margin, or open."""
    if change is None or change.verdict not in VERDICTS:
        return ""
    if change.verdict == "unchanged" and change.margin is not None:
        return f"unchanged within {100 * change.margin:.3g}{SPACE}points"
    return change.verdict


def _compared(name: str, entry: TaskComparison, unit: Unit) -> ScoreRow:
    """A task's scores, the interval of their change, the verdict on it, and what was lost."""
    before, after = entry.intact or Score(), entry.knocked_out or Score()
    examples = after.examples or before.examples
    return ScoreRow(
        name=name,
        short=name,
        detail=f"{examples:,} examples" if examples else "",
        intact=format_with_error(before.score, before.stderr, unit),
        knocked_out=format_with_error(after.score, after.stderr, unit),
        change=_change(before.score, after.score, unit),
        interval=format_interval(entry.change, unit),
        verdict=describe_verdict(entry.change),
        unit=unit,
        points=(Point(before.score, before.stderr), Point(after.score, after.stderr)),
        draws=[],
        lost=lost(entry.failures),
    )


def _drawn(draws: Spread, intact: float | None, kind: str, unit: Unit) -> ScoreRow:
    """Random heads instead of the named ones."""
    scores = finite_numbers(draws.scores)
    detail = f"{counted(draws.draws or len(scores), 'draw')} {kind}"
    return ScoreRow(
        name="",
        short="",
        detail=detail if draws.sd is None else f"{detail}; ± is their standard deviation",
        intact=unit.score(intact),
        knocked_out=format_with_error(draws.mean, draws.sd, unit),
        change=_change(intact, draws.mean, unit),
        interval="",
        verdict="",
        unit=unit,
        points=(Point(intact), Point(draws.mean, draws.sd)),
        draws=scores,
    )


def format_with_error(value: float | None, error: float | None, unit: Unit) -> str:
    """Write a score and its error."""
    if value is None or error is None:
        return unit.score(value)
    return f"{unit.score(value)} ±\u00a0{unit.error(error)}"


def _change(before: float | None, after: float | None, unit: Unit) -> str:
    if before is None or after is None:
        return NOT_MEASURED
    return unit.effect(after - before)


@dataclass(frozen=True, slots=True)
class CurveTable:
    """A column a task, a row for each number of heads."""

    tasks: list[str]
    rows: list[list[str]]  # how many heads, the last of them, the score of each task


def tabulate_curve(curve: Curve, units: Mapping[str, Unit]) -> CurveTable:
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
    return format_with_error(point.score, point.stderr, unit or Unit(ScoreKind.PLAIN, "score"))
