"""Scores before and after: the task, random heads instead, other tasks, one more head each time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from caploc.contents import Curve
from caploc.report.wording import (
    SPACE,
    Bounded,
    ScoreKind,
    Unit,
    called,
    called_apart,
    counted,
    finite_numbers,
    inline,
    name_list,
    percent,
    unit_of,
    unit_of_other,
    unit_of_outcomes,
)
from caploc.result import Change, Failures, HeldOut, Result, Score, Spread, TaskComparison

VERDICTS = ("changed", "unchanged", "open")
LOST = {
    "capability": "content is lost",
    "speech": "the question is no longer answered",
    "mixed": "content and form are lost",
}
MOST = 3  # kinds of answers that are named
WORSE = "(no answer to the question, or newly wrong beyond those newly right)"


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """One row of the table that compares scores before and after."""

    name: str
    short: str  # the name where the task is known
    detail: str
    unit: Unit
    points: tuple[Score, Score]  # intact and knocked out; the error of draws is their deviation
    interval: str = ""  # of the change, 95 %; empty where it is not known
    verdict: str = ""
    draws: tuple[float, ...] = ()  # scores of the random draws
    lost: str = ""  # the capability, or the ability to answer, and by which kinds of answers

    @property
    def intact(self) -> str:
        """The score before, and its error."""
        return format_with_error(self.points[0], self.unit)

    @property
    def knocked_out(self) -> str:
        """The score after, and its error."""
        return format_with_error(self.points[1], self.unit)

    @property
    def change(self) -> str:
        """What the knockout changes."""
        before, after = (point.score for point in self.points)
        return self.unit.effect(None if before is None or after is None else after - before)


def comparisons(result: Result) -> list[ScoreRow]:
    """Compare the task on held-out examples, without random heads, on all examples; other tasks.

    Rows that were not measured are left out, but for the task itself; and where no head was named,
    nothing was knocked out.
    """
    validation, unit = result.validation, unit_of(result)
    controls, held_out, task = validation.controls, validation.held_out, validation.task
    name, others = called(result.task.name), validation.other_tasks
    intact = task.intact or result.intact
    if not result.top:
        without = {"knocked_out": None, "change": None}
        others = [other.model_copy(update=without) for other in others]
        alone = TaskComparison(name=name, intact=intact)
        return [_compared(name, alone, unit), *_others(others, unit)]
    whole = _compared(name, task.model_copy(update={"intact": intact}), unit)
    rows = [_held_out(name, held_out, unit)] if held_out else [whole]
    if controls:
        before = held_out.intact if held_out else intact.score
        long, kind = f"{name}, random heads instead", "of as many in each layer"
        rows.append(_drawn(long, "random heads", controls, before, kind, unit))
        if same := controls.same_groups:
            long, kind = f"{name}, other heads of the same groups", "of the named heads' "
            rows.append(_drawn(long, "same groups", same, before, f"{kind}key-value groups", unit))
    if held_out:
        detail = f"{whole.detail}, those of the search among them".removeprefix(", ")
        rows.append(replace(whole, short=f"all {whole.detail or 'examples'}", detail=detail))
    return rows + _others(others, unit)


def _held_out(name: str, held_out: HeldOut, unit: Unit) -> ScoreRow:
    examples = held_out.examples
    kind = "that no search saw" if held_out.fresh else "that the heads were found on"
    return ScoreRow(
        name=f"{name}, {'held-out examples' if held_out.fresh else 'examples of the search'}",
        short="held-out examples" if held_out.fresh else "search examples",
        detail=f"{counted(examples, 'example')} {kind}" if examples else kind,
        unit=unit,
        points=(Score(score=held_out.intact), Score(score=held_out.knocked_out)),
        interval=format_interval(held_out.change, unit),
        verdict=describe_verdict(held_out.change),
    )


def _others(entries: Sequence[TaskComparison], main: Unit) -> list[ScoreRow]:
    short = called_apart([entry.name for entry in entries])
    return [_compared(short[e.name], e, unit_of_other(e, main)) for e in entries]


def format_interval(change: Bounded | None, unit: Unit) -> str:
    """Write the 95 % interval of a change of outcomes, whose unit may not be the score's."""
    own = unit_of_outcomes(unit)
    ends = own.interval(change)
    return ends if own == unit or not ends else f"{ends}{SPACE}{own.axis}"


def describe_verdict(change: Change | None) -> str:
    """Write what an interval says: changed, unchanged within a margin, or open."""
    if change is None or change.verdict not in VERDICTS:
        return ""
    if change.verdict == "unchanged" and change.margin is not None:
        return f"unchanged within {100 * change.margin:.3g}{SPACE}points"
    return "may be chance" if change.verdict == "open" else change.verdict


def _compared(name: str, entry: TaskComparison, unit: Unit) -> ScoreRow:
    """Write a task's scores, the interval of their change, the verdict on it, what was lost."""
    before, after = entry.intact or Score(), entry.knocked_out or Score()
    examples, told = after.examples or before.examples, lost(entry.failures)
    return ScoreRow(
        name=name,
        short=name,
        detail=f"{examples:,} examples" if examples else "",
        unit=unit,
        points=(before, after),
        interval=format_interval(entry.change, unit),
        verdict=describe_verdict(entry.change),
        # what chance may have changed is no loss, whatever became of single answers
        lost="" if entry.change and entry.change.verdict in ("open", "unchanged") else told,
    )


def _drawn(
    name: str, short: str, draws: Spread, intact: float | None, kind: str, unit: Unit
) -> ScoreRow:
    """Write what random heads do instead of the named ones."""
    scores = finite_numbers(draws.scores)
    detail = f"{counted(draws.draws or len(scores), 'draw')} {kind}"
    detail += "" if draws.sd is None else "; ± is their standard deviation"
    points = Score(score=intact), Score(score=draws.mean, stderr=draws.sd)
    return ScoreRow(name, short, detail, unit, points, draws=tuple(scores))


def format_with_error(point: Score, unit: Unit) -> str:
    """Write a score and its error."""
    if point.score is None or point.stderr is None:
        return unit.score(point.score)
    return f"{unit.score(point.score)} ±\u00a0{unit.error(point.stderr)}"


def lost(failures: Failures | None) -> str:
    """Write what became of the answers; empty if nothing was lost.

    Such as `content is lost: 46 % of the answers are worse (no answer to the question, or newly
    wrong beyond those newly right); in all, 90 % wrong content, 2 % format`.
    """
    words = LOST.get(failures.verdict or "") if failures else None
    if failures is None or words is None:
        return ""
    kinds = failures.categories.items()
    shares = {kind: part.share for kind, part in kinds if kind != "right" and part.share}
    first = sorted(shares, key=lambda kind: -shares[kind])[:MOST]
    parts = ", ".join(f"{percent(shares[kind])} {inline(kind)}" for kind in first)
    share = failures.harmed.share if failures.harmed else None
    if share is not None:
        words += f": {percent(share)} of the answers are worse {WORSE}"
    between = ": " if share is None else "; in all, "
    more = ", ..." if len(shares) > MOST else ""
    return f"{words}{between}{parts}{more}" if parts else words


GONE = 0.05  # of a task's score, below which hardly anything is left of it


def read_curve(curve: Curve, units: Mapping[str, Unit]) -> str:
    """Say what a curve of shares means: how many heads it takes, and what else has fallen there.

    Empty where the task's score is no share, or was nothing to begin with.
    """
    scores = {task: [one.score for one in points] for task, points in curve.curves.items()}
    unit = units.get(next(iter(scores), ""))
    shares = unit is not None and unit.kind is ScoreKind.SHARE and unit.higher_is_better
    if unit is None or not (curve.heads and shares):
        return ""
    (task, own), *others = scores.items()
    last = len(curve.heads)
    if not own[0]:
        return ""

    def first_below(share: float) -> int | None:
        return next((n for n, one in enumerate(own) if (one or 0) <= share * (own[0] or 0)), None)

    count = curve.curves[task][0].examples
    few = f" on {counted(count, 'example')}" if count else ""
    half, gone = first_below(0.5), first_below(GONE)
    if half is None:
        return (
            f"With all {last} heads knocked out, {called(task)} scores {unit.score(own[-1])}{few}, "
            f"with none {unit.score(own[0])}: more than half of it is left."
        )
    moves = [
        f"{called(name)} goes from {units[name].score(each[0])} to {units[name].score(each[half])}"
        for name, each in others
        if name in units
    ]
    told = (
        f"Half of {called(task)} or more is lost with {counted(half, 'head')} knocked out (from "
        f"{unit.score(own[0])} to {unit.score(own[half])}{few})"
        + (f", while {name_list(moves)}." if moves else ".")
    )
    if gone is None:
        return told
    told += f" From {counted(gone, 'head')} on nearly nothing is left of it"
    kept = [
        n for n, each in others if each[gone] is None or (each[gone] or 0) > 0.5 * (each[0] or 0)
    ]
    if kept or not others:
        return f"{told}: what further heads do to it cannot be seen."
    return f"{told}, nor half of any other task: there the model breaks, not this capability alone."


def tell_doubtful(curve: Curve, result: Result) -> str:
    """Say which heads of a curve, beyond those named, may do nothing; "" if none may."""
    open_ones = {entry.head for entry in result.heads if entry.is_open} - {*result.top}
    heads = [head for head in curve.heads if head in open_ones]
    if not heads:
        return ""
    an = "its interval holds 0" if len(heads) == 1 else "their intervals hold 0"
    return f"Alone, {name_list(heads)} may do nothing: {an} in the search."


def tell_end(curve: Curve, most: int) -> str:
    """Say that a curve has fewer heads than were asked for; "" if it has as many."""
    drawn = len(curve.heads)
    if drawn >= most:
        return ""
    return f"The run ranks {counted(drawn, 'head')}, those that it estimates to be needed: no more."


def tabulate_curve(curve: Curve, units: Mapping[str, Unit]) -> tuple[list[str], list[list[str]]]:
    """Name the tasks of curve.json, and write a row for each number of heads.

    A row is how many heads, the last of them, and the score of each task; `units` say how each
    task's scores are written.
    """
    rows = []
    for count, head in enumerate(["none", *map(inline, curve.heads)]):
        row = [str(count), head]
        for task, points in curve.curves.items():
            score = points[count] if count < len(points) else Score()
            unit = units.get(task) or Unit(ScoreKind.PLAIN, "score")
            row.append(format_with_error(score, unit))
        rows.append(row)
    return list(called_apart(curve.curves).values()), rows
