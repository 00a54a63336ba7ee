"""The answer in a sentence or two, worded by what was found."""

import math
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from caploc.report.reading import (
    Result,
    at,
    counted,
    finite,
    inline,
    known,
    listed,
    number_at,
    numeral,
)
from caploc.report.units import Unit, unit_of, unit_of_other

# 95 % of a normal distribution. The two runs share their examples, so the true error of their
# difference is smaller; we would rather call a real drop noise than the reverse.
NOISE_WIDTH = 1.96


class Verdict(Enum):
    """What knocking the top heads out together did to the task."""

    NO_HEADS = auto()  # no head was chosen
    NOT_CHECKED = auto()  # one of the two scores is missing
    UNHURT = auto()  # the score is as good as before, or better
    NOISE = auto()  # worse, by no more than the sampling error
    LIKE_RANDOM = auto()  # worse, and so it is without random heads
    CARRIED = auto()  # worse, and random heads do less or were not tried


@dataclass(frozen=True, slots=True)
class Check:
    """The scores that the verdict rests on."""

    unit: Unit
    task: str
    top: list[str]
    heads: int
    intact: float | None
    knocked_out: float | None
    noise: float | None  # how far two scores may lie apart by the choice of examples alone
    random: list[float]  # scores without random heads instead

    @property
    def verdict(self) -> Verdict:
        """What the scores say."""
        if not self.top:
            return Verdict.NO_HEADS
        if self.intact is None or self.knocked_out is None:
            return Verdict.NOT_CHECKED
        harm = self.unit.harm(self.knocked_out - self.intact)
        if not harm > 0:
            return Verdict.UNHURT
        if self.noise is not None and harm <= self.noise:
            return Verdict.NOISE
        if self.random and harm <= max(self.unit.harm(s - self.intact) for s in self.random):
            return Verdict.LIKE_RANDOM
        return Verdict.CARRIED


def check_of(result: Result) -> Check:
    """Gather what the verdict rests on; a score missing in the check is taken from the search."""
    task = at(result, "validation", "task")
    controls = at(result, "validation", "controls")
    scores = [known(score) for score in at(controls, "scores") or [at(controls, "mean")]]
    counts = at(result, "grid", "heads") or ()
    intact = number_at(task, "intact", "score")
    return Check(
        unit=unit_of(result),
        task=inline(at(result, "task", "name") or "the task"),
        top=[str(name) for name in at(result, "top") or ()],
        heads=sum(counts) or len(at(result, "heads") or ()),
        intact=number_at(result, "intact", "score") if intact is None else intact,
        knocked_out=number_at(task, "knocked_out", "score"),
        noise=_noise(task),
        random=finite(scores),
    )


def _noise(task: Any) -> float | None:
    errors = [number_at(task, when, "stderr") for when in ("intact", "knocked_out")]
    present = [error for error in errors if error is not None]
    return NOISE_WIDTH * math.hypot(*present) if present else None


def headline(result: Result) -> str:
    """The answer: which heads, and what the task scores with and without them."""
    check = check_of(result)
    names, few = listed(check.top), f"{numeral(len(check.top))} of {check.heads:,} heads"
    match check.verdict:
        case Verdict.NO_HEADS:
            return _no_heads(check)
        case Verdict.NOT_CHECKED:
            return _not_checked(check, names, few)
        case Verdict.CARRIED:
            verb = "carries" if len(check.top) == 1 else "carry"
            others = _others(result, check.unit)
            return (
                f"{_capital(few)} {verb} {check.task}: with {names} knocked out, "
                f"its {check.unit.noun} {_moves(check)}{others}."
            )
        case Verdict.LIKE_RANDOM:
            return (
                f"Knocking out {few}, {names}, hurts {check.task}, but no more than random heads "
                f"do: its {check.unit.noun} {_moves(check)}."
            )
        case Verdict.NOISE:
            return (
                f"Knocking out {few}, {names}, hardly touches {check.task}: its "
                f"{check.unit.noun} {_moves(check)}, which is within the sampling error."
            )
    return (
        f"Knocking out {few}, {names}, does not hurt {check.task}: "
        f"its {check.unit.noun} {_moves(check)}."
    )


def _no_heads(check: Check) -> str:
    intact = "" if check.intact is None else f" (intact: {check.unit.score(check.intact)})"
    return f"None of {check.heads:,} heads was found that {check.task} needs{intact}."


def _not_checked(check: Check, names: str, few: str) -> str:
    verb = "looks" if len(check.top) == 1 else "look"
    what = "knocking it out" if len(check.top) == 1 else "knocking them out together"
    first = f"{_capital(few)} {verb} most needed for {check.task}: {names}."
    if check.knocked_out is None:
        known_score = check.unit.score(check.intact)
        intact = "" if check.intact is None else f"; the intact score is {known_score}"
        return f"{first} What {what} does was not measured{intact}."
    return (
        f"{first} With {what}, the {check.unit.noun} is {check.unit.score(check.knocked_out)}; "
        "the intact score was not measured."
    )


def _moves(check: Check) -> str:
    """`falls from 99 % to 12 %`; a small move that reads the same on both sides is said so."""
    unit, before, after = check.unit, check.intact, check.knocked_out
    if before is None or after is None:
        return "was not measured"
    if before == after:
        return f"stays at {unit.score(after)}"
    if unit.score(before) == unit.score(after):
        return f"stays at about {unit.score(after)}"
    verb = "falls" if after < before else "rises"
    better = "" if unit.higher_is_better else " (lower is better)"
    return f"{verb} from {unit.score(before)} to {unit.score(after)}{better}"


def _others(result: Result, main: Unit) -> str:
    clauses = []
    for entry in at(result, "validation", "other_tasks") or ():
        before = number_at(entry, "intact", "score")
        after = number_at(entry, "knocked_out", "score")
        if before is None or after is None:
            continue
        unit = unit_of_other(entry, main)
        texts = unit.score(before), unit.score(after)
        moves = (
            f"stays at {texts[1]}" if texts[0] == texts[1] else f"goes from {' to '.join(texts)}"
        )
        clauses.append(f"{inline(at(entry, 'name'))} {moves}")
    return f", while {listed(clauses[:2])}" if clauses else ""


def second_sentence(result: Result) -> str:
    """What random heads do instead: the comparison without which a drop says little."""
    check = check_of(result)
    if check.verdict in (Verdict.NO_HEADS, Verdict.NOT_CHECKED):
        return ""
    if not check.random:
        return "Random heads were not tried instead, so how special these heads are is open."
    controls = at(result, "validation", "controls")
    mean = number_at(controls, "mean")
    mean = sum(check.random) / len(check.random) if mean is None else mean
    draws = int(number_at(controls, "draws") or len(check.random))
    a_head = "a random head" if len(check.top) == 1 else f"{numeral(len(check.top))} random heads"
    average = " on average" if draws > 1 else ""
    return (
        f"With {a_head} knocked out instead (as many in each layer, {counted(draws, 'draw')}), "
        f"it is {check.unit.score(mean)}{average}."
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
