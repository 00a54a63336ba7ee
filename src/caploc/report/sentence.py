"""The answer in a sentence or two, worded by what was found."""

import math
from dataclasses import dataclass
from enum import Enum, auto

from caploc.report.reading import called, counted, finite_numbers, name_list, numeral
from caploc.report.units import Unit, significant, unit_of, unit_of_other
from caploc.result import Change, Controls, Result, Score

# 95 % of a normal distribution. The two runs share their examples, so the true error of their
# difference is smaller; we would rather call a real drop noise than the reverse.
NOISE_WIDTH = 1.96


class HeadlineVerdict(Enum):
    """What knocking the top heads out together did to the task."""

    NO_HEADS = auto()  # no head was chosen
    NOT_CHECKED = auto()  # one of the two scores is missing
    UNHURT = auto()  # the score is as good as before, or better
    NOISE = auto()  # worse, by no more than the sampling error
    SLIGHT = auto()  # worse for sure, and by less than the margin
    LIKE_RANDOM = auto()  # worse, and so it is without random heads
    CARRIED = auto()  # worse, and random heads do less or were not tried


@dataclass(frozen=True, slots=True)
class HeldOutClaim:
    """The scores that the verdict rests on: on held-out examples, where there are any."""

    unit: Unit
    task: str
    top: list[str]
    heads: int
    intact: float | None
    knocked_out: float | None
    held_out: int  # examples that the heads were not found on; 0 if the scores are of others
    noise: bool  # the scores may lie apart by the choice of examples alone
    slight: float | None  # the margin, if the change surely stays within it
    beside: tuple[float | None, float | None]  # intact and knocked out, where random heads were
    random: list[float]  # scores without random heads instead

    @property
    def verdict(self) -> HeadlineVerdict:
        """What the scores say."""
        if not self.top:
            return HeadlineVerdict.NO_HEADS
        if self.intact is None or self.knocked_out is None:
            return HeadlineVerdict.NOT_CHECKED
        if not self.unit.harm(self.knocked_out - self.intact) > 0:
            return HeadlineVerdict.UNHURT
        if self.noise:
            return HeadlineVerdict.NOISE
        if self.slight is not None:
            return HeadlineVerdict.SLIGHT
        return HeadlineVerdict.LIKE_RANDOM if self.like_random else HeadlineVerdict.CARRIED

    @property
    def like_random(self) -> bool:
        """Whether some random heads, on the same examples, hurt as much."""
        intact, chosen = self.beside
        if not self.random or intact is None or chosen is None:
            return False
        harm = self.unit.harm(chosen - intact)
        return harm <= max(self.unit.harm(score - intact) for score in self.random)


def check_of(result: Result) -> HeldOutClaim:
    """Gather what the verdict rests on; a score missing in the check is taken from the search."""
    validation = result.validation
    whole, fresh, controls = validation.task, validation.held_out, validation.controls
    scores, change, held_out = (whole.intact, whole.knocked_out), whole.change, 0
    if fresh and fresh.fresh and fresh.knocked_out is not None:
        scores = Score(score=fresh.intact), Score(score=fresh.knocked_out)
        change, held_out = fresh.change, fresh.examples or 0
    before, after = (score or Score() for score in scores)
    intact = result.intact.score if before.score is None else before.score
    beside = intact, after.score  # on the examples of the controls, which may be others
    if fresh and controls and None not in (fresh.intact, controls.chosen):
        beside = fresh.intact, controls.chosen
    change = change or Change()
    return HeldOutClaim(
        unit=unit_of(result),
        task=called(result.task.name),
        top=result.top,
        heads=sum(result.grid.heads),
        intact=intact,
        knocked_out=after.score,
        held_out=held_out,
        noise=_noise(change, intact, after.score, finite_numbers((before.stderr, after.stderr))),
        slight=change.margin if change.verdict == "unchanged" else None,
        beside=beside,
        random=finite_numbers(controls.scores or [controls.mean]) if controls else [],
    )


def _noise(
    change: Change, intact: float | None, knocked_out: float | None, errors: list[float]
) -> bool:
    """Outcomes are better when higher: an interval that reaches above 0 is no sure loss."""
    if change.high is not None:
        return change.high >= 0
    if not errors or intact is None or knocked_out is None:
        return False
    return abs(knocked_out - intact) <= NOISE_WIDTH * math.hypot(*errors)


def headline(result: Result) -> str:
    """The answer: which heads, and what the task scores with and without them."""
    check = check_of(result)
    names, few = name_list(check.top), f"{numeral(len(check.top))} of {check.heads:,} heads"
    match check.verdict:
        case HeadlineVerdict.NO_HEADS:
            return _no_heads(check)
        case HeadlineVerdict.NOT_CHECKED:
            return _not_checked(check, names, few)
        case HeadlineVerdict.CARRIED:
            verb = "carries" if len(check.top) == 1 else "carry"
            others = _others(result, check.unit)
            return (
                f"{_capital(few)} {verb} {check.task}: with {names} knocked out, "
                f"its {_moves(check)}{others}."
            )
        case HeadlineVerdict.LIKE_RANDOM:
            return (
                f"Knocking out {few}, {names}, hurts {check.task}, but no more than random heads "
                f"do: its {_moves(check)}."
            )
    return f"Knocking out {few}, {names}, {_hardly(check)}."


def _hardly(check: HeldOutClaim) -> str:
    """What is said of heads whose loss does little."""
    if check.verdict is HeadlineVerdict.NOISE:
        tail = "which is within the sampling error"
        return f"hardly touches {check.task}: its {_moves(check)}, {tail}"
    if check.verdict is HeadlineVerdict.SLIGHT:
        points = f"{100 * (check.slight or 0):.3g}\u00a0points"
        return f"hardly touches {check.task}: its {_moves(check)}, surely by less than {points}"
    return f"does not hurt {check.task}: its {_moves(check)}"


def _no_heads(check: HeldOutClaim) -> str:
    intact = "" if check.intact is None else f" (intact: {check.unit.score(check.intact)})"
    return f"None of {check.heads:,} heads was found that {check.task} needs{intact}."


def _not_checked(check: HeldOutClaim, names: str, few: str) -> str:
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


def _moves(check: HeldOutClaim) -> str:
    """`score falls from 99 % to 12 %`; a small move that reads the same on both sides is said."""
    unit, before, after = check.unit, check.intact, check.knocked_out
    where = f" on {counted(check.held_out, 'held-out example')}" if check.held_out else ""
    noun = f"{unit.noun}{where}"
    if before is None or after is None:
        return f"{noun} was not measured"
    if before == after:
        return f"{noun} stays at {unit.score(after)}"
    if unit.score(before) == unit.score(after):
        return f"{noun} stays at about {unit.score(after)}"
    verb = "falls" if after < before else "rises"
    better = "" if unit.higher_is_better else " (lower is better)"
    return f"{noun} {verb} from {unit.score(before)} to {unit.score(after)}{better}"


def _others(result: Result, main: Unit) -> str:
    clauses = []
    for entry in result.validation.other_tasks:
        before, after = entry.scores
        if before is None or after is None:
            continue
        unit = unit_of_other(entry, main)
        texts = unit.score(before), unit.score(after)
        same = texts[0] == texts[1]
        moves = f"stays at {texts[1]}" if same else f"goes from {' to '.join(texts)}"
        open_ = not same and entry.change and entry.change.verdict == "open"
        clauses.append(f"{called(entry.name)} {moves}{', which may be chance' if open_ else ''}")
    return f", while {name_list(clauses[:2])}" if clauses else ""


def second_sentence(result: Result) -> str:
    """What random heads do instead: the comparison without which a drop says little."""
    check = check_of(result)
    if check.verdict in (HeadlineVerdict.NO_HEADS, HeadlineVerdict.NOT_CHECKED):
        return ""
    sentences = [_random(check, result), _used_before(check, result)]
    return " ".join(sentence for sentence in sentences if sentence)


def _random(check: HeldOutClaim, result: Result) -> str:
    controls = result.validation.controls
    if not controls or not check.random:
        return "Random heads were not tried instead, so how special these heads are is open."
    mean = controls.mean
    mean = sum(check.random) / len(check.random) if mean is None else mean
    draws = controls.draws or len(check.random)
    a_head = "a random head" if len(check.top) == 1 else f"{numeral(len(check.top))} random heads"
    average = " on average" if draws > 1 else ""
    return (
        f"With {a_head} knocked out instead (as many in each layer, {counted(draws, 'draw')}), "
        f"it is {check.unit.score(mean)}{average}{_beside_random(check, controls)}."
    )


def _beside_random(check: HeldOutClaim, controls: Controls) -> str:
    """How far off the named heads lie, or their score where it is of other examples."""
    named = "that head" if len(check.top) == 1 else "the named heads"
    chosen, deviations = check.beside[1], controls.deviations
    if not check.held_out and chosen is not None and chosen != check.knocked_out:
        return f", where it is {check.unit.score(chosen)} without {named}"
    if deviations is None:
        return ""
    side = "above" if deviations > 0 else "below"
    distance = f"{significant(abs(deviations), 2)}\u00a0standard deviations"
    return f", {distance} {side} what is left without {named}"


def _used_before(check: HeldOutClaim, result: Result) -> str:
    if check.held_out:
        return "The search for candidates used other examples."
    if result.validation.held_out and result.validation.held_out.fresh is False:
        return "The heads were found on some of these examples: the drop may be overstated."
    return ""


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
