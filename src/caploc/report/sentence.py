"""The answer in a sentence or two, worded by what was found."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from caploc.frontiers import find_gentlest, find_worst
from caploc.report.wording import (
    Unit,
    called,
    capital,
    counted,
    finite_numbers,
    inline,
    name_list,
    numeral,
    unit_of,
    unit_of_other,
    unit_of_outcomes,
)
from caploc.result import Change, Frontier, Member, Result, Score, Spread, TaskComparison

# 95 % of a normal distribution. The two runs share their examples, so the true error of their
# difference is smaller; we would rather call a real drop noise than the reverse.
NOISE_WIDTH = 1.96
MOST_OTHERS = 2  # tasks that a headline names, those that lose most


class HeadlineVerdict(Enum):
    """What knocking the top heads out together did to the task, in the words of a table."""

    NO_HEADS = "no head found"
    NOT_CHECKED = "not checked"  # one of the two scores is missing
    UNHURT = "not hurt"  # the score is as good as before, or better
    NOISE = "within the sampling error"
    SLIGHT = "hardly touched"  # worse for sure, and by less than the margin
    LIKE_RANDOM = "no more than random heads"
    # Worse, and random heads do less or were not tried; and no other task was scored
    NEEDED = "needs these heads"
    # of other tasks none loses anything beyond doubt, and some may; none more than the margin
    UNSURE = "needs these heads, and none of the others scored for sure"
    SPECIFIC = "needs these heads, and none of the others scored does"
    # some lose; all of several, no less than half of what the task loses, in shares
    SHARED = "needs these heads, and so do other tasks"
    EVERYTHING = "needs these heads, as does every other task scored"


WEAK = {
    HeadlineVerdict.NOISE,
    HeadlineVerdict.UNHURT,
    HeadlineVerdict.SLIGHT,
    HeadlineVerdict.LIKE_RANDOM,
}
HURT = set(HeadlineVerdict) - WEAK - {HeadlineVerdict.NO_HEADS, HeadlineVerdict.NOT_CHECKED}
MOST_OF_IT = 2 / 3  # of what all named heads do, that one of them does alone
NEAR = 1 / 3  # of what the named heads do, from which on that of their neighbours is told
BROAD = 0.5  # of the task's lost share, that every other task loses too, or a twin does not


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
    others: list[TaskComparison]  # the tasks beside it that have both scores, but its twins

    @property
    def verdict(self) -> HeadlineVerdict:
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
        if self.as_harmful:
            return HeadlineVerdict.LIKE_RANDOM
        return self.elsewhere

    @property
    def elsewhere(self) -> HeadlineVerdict:
        """What the scores of other tasks say of heads that the task needs."""
        if not self.others:
            return HeadlineVerdict.NEEDED
        if not any(each.is_hurt for each in self.others):
            sure = all(each.change and each.change.verdict != "open" for each in self.others)
            return HeadlineVerdict.SPECIFIC if sure else HeadlineVerdict.UNSURE
        enough = BROAD * self.lost_share
        broad = all(each.is_hurt and each.lost_share >= enough for each in self.others)
        several = len(self.others) > 1  # a single one may be of the same capability
        return HeadlineVerdict.EVERYTHING if broad and several else HeadlineVerdict.SHARED

    @property
    def lost_share(self) -> float:
        """The share of the score by which it changes; 0 of none."""
        before, after = self.intact or 0.0, self.knocked_out or 0.0
        return abs(before - after) / before if before else 0.0

    @property
    def as_harmful(self) -> int | None:
        """How many draws of random heads hurt as much on the same examples; None if unknown."""
        intact, chosen = self.beside
        if not self.random or intact is None or chosen is None:
            return None
        harm = self.unit.harm(chosen - intact)
        return sum(harm <= self.unit.harm(score - intact) for score in self.random)


def other_scores(result: Result, *, twins: bool) -> list[TaskComparison]:
    """List the tasks beside the one, or its twins, that have both scores; the most hurt first."""
    known = [each for each in result.validation.other_tasks if None not in each.scores]
    return sorted(
        (each for each in known if each.twin is twins),
        key=lambda each: (each.change and each.change.outcome) or 0.0,
    )


def surviving_twin(result: Result) -> TaskComparison | None:
    """Find the twin that loses nothing beyond doubt, and least, without heads that the task needs.

    Such heads serve the form of one prompt. None if all twins lose, or none was scored.
    """
    kept = [each for each in other_scores(result, twins=True) if not each.is_hurt]
    return kept[-1] if kept and check_of(result).verdict in HURT else None


def doubt_of_twins(result: Result) -> str:
    """Say that in other words, or in some of them, nothing is lost for sure."""
    some = any(each.is_hurt for each in other_scores(result, twins=True))
    return f"not surely {'by all its other wordings' if some else 'in other words'}"


def leading_members(result: Result) -> list[Member]:
    """List the named heads that alone do most of what all do, on the same examples; the first most.

    None where one head is named, or where the check has no such figures.
    """
    members, fresh = result.validation.members, result.validation.held_out
    whole = fresh.change.outcome if fresh and fresh.change else None
    if whole is None or not members or len(members.heads) < 2:
        return []
    known = [one for one in members.heads if one.alone.effect is not None]
    sure = [one for one in known if (one.alone.high or 0.0) < 0]
    most = [one for one in sure if (one.alone.effect or 0.0) <= MOST_OF_IT * whole]
    return sorted(most, key=lambda one: one.alone.effect or 0.0)


def idle_members(result: Result) -> list[str]:
    """List the named heads of which it is not sure that they add to what the others take."""
    members = result.validation.members
    known = [one for one in (members.heads if members else []) if one.within.high is not None]
    if len(known) < 2 or len(known) < len(result.top):
        return []
    return [one.head for one in known if (one.within.high or 0.0) >= 0]


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
        noise=_may_be_noise(result, change, intact, before.stderr, after),
        slight=change.margin if change.verdict == "unchanged" else None,
        beside=beside,
        random=finite_numbers(controls.scores or [controls.mean]) if controls else [],
        others=other_scores(result, twins=False),
    )


def _may_be_noise(
    result: Result, change: Change, intact: float | None, error: float | None, after: Score
) -> bool:
    """Tell whether the choice of examples, or rounding in another batch, changes as much.

    Outcomes are better when higher: an interval that reaches above 0 is no sure loss.
    """
    if change.high is not None and change.high >= 0:
        return True
    if intact is None or after.score is None:
        return False
    widths = [result.noise.floor] if result.noise else []
    if change.high is None and (errors := finite_numbers((error, after.stderr))):
        widths.append(NOISE_WIDTH * math.hypot(*errors))
    return any(abs(after.score - intact) <= width for width in widths)


# What knocked-out heads hand on where it is not zero.
MODES = {
    "mean": "their mean over the task's examples",
    "resample": "what they do on another example",
    "patch": "what they do on the corrupted prompt",
}


def headline(result: Result) -> str:
    """The answer: which heads, and what the task scores with and without them."""
    instead = MODES.get(result.method.mode) if result.top else None
    tail = f" (Knocked-out heads hand on {instead}.)" if instead else ""
    return _answer(result) + _seen(result) + _left_out(result) + tail


def _seen(result: Result) -> str:
    """Say so where the examples of the check are those that the heads were found on."""
    check, held_out = check_of(result), result.validation.held_out
    if not result.top or check.held_out or not held_out or held_out.fresh is not False:
        return ""
    return " The heads were found on some of these examples: the drop may be overstated."


def _left_out(result: Result) -> str:
    """Tell of the head that is left out for other tasks' sake, if it takes as much as those named.

    Half as much counts, of what all named heads take.
    """
    check = check_of(result)
    struck = [e for e in result.heads if e.universal and e.head not in result.top and not e.is_open]
    most = min(struck, key=lambda entry: entry.effect or 0.0, default=None)
    if most is None or check.verdict not in HURT or check.intact is None:
        return ""
    if 2 * (most.effect or 0.0) > (check.knocked_out or 0.0) - check.intact:
        return ""
    alone = unit_of_outcomes(check.unit).effect(most.effect)
    other = result.search.breaks.get(most.head, "another task")
    return f" Left out is {most.head} (alone {alone}, by the search): it breaks {other} too."


def _answer(result: Result) -> str:
    check = check_of(result)
    names, few = name_list(check.top), f"{numeral(len(check.top))} of {check.heads:,} heads"
    if check.verdict in HURT:
        return _needed(result, check, names, few)
    match check.verdict:
        case HeadlineVerdict.NO_HEADS:
            return _nothing(result, check)
        case HeadlineVerdict.NOT_CHECKED:
            return _not_checked(check, names, few)
        case HeadlineVerdict.LIKE_RANDOM:
            return (
                f"No few heads stand out for {check.task}: knocking out {few}, {names}, hurts it "
                f"no more than some random heads do. Its {_moves(check)}."
            )
    tail = ""
    if check.verdict is HeadlineVerdict.NOISE:
        tail = ", which is within the sampling error"
    elif check.verdict is HeadlineVerdict.SLIGHT:
        tail = f", surely by less than {100 * (check.slight or 0):.3g}\u00a0points"
    verb = "hardly touches" if tail else "does not hurt"
    return f"Knocking out {few}, {names}, {verb} {check.task}: its {_moves(check)}{tail}."


def _nothing(result: Result, check: HeldOutClaim) -> str:
    """Say that no heads are named, in the words of what was sought."""
    intact = "" if check.intact is None else f" (intact: {check.unit.score(check.intact)})"
    if result.validation.frontier and result.validation.frontier.sets:
        return _no_specific_set(result.validation.frontier, check.task, intact)
    if not result.was_searched:
        return f"No head was sought for {check.task}{intact}: its loss could not have been told."
    if result.search.goal == "specific":
        told = f"No set of heads was tried that may break {check.task}{intact} and spare others"
        return f"{told}: none came into question."
    if result.search.seeks_set:
        none = f"No set among {check.heads:,} heads was found that surely breaks"
        return f"{none} {check.task}{intact}."
    return f"None of {check.heads:,} heads was found that {check.task} needs{intact}."


def _no_specific_set(frontier: Frontier, task: str, intact: str) -> str:
    """Say that no set keeps the price, and what the gentlest one that breaks the task costs."""
    told = (
        f"No set of heads was found that breaks {task}{intact} and surely costs every spared task "
        f"{100 * (frontier.price or 0.0):g} points at most"
    )
    one = find_gentlest(frontier)
    worst = find_worst(one.spared) if one else None
    if one is None or worst is None:
        return f"{told}."
    least = "" if one.keeps is None else f", and would keep a price of {100 * one.keeps:.1f} points"
    return (
        f"{told}: the gentlest that breaks it, {name_list(one.heads)}, takes "
        f"{-100 * (one.damage.effect or 0.0):.0f} points from it and "
        f"{-100 * (worst.effect.effect or 0.0):.0f} from {called(worst.task)}{least}."
    )


def _needed(result: Result, check: HeldOutClaim, names: str, few: str) -> str:
    """Say what the heads are needed for, and what else loses without them."""
    single, leading = len(check.top) == 1, leading_members(result)
    are, who = "is" if single else "are", f"{names}, {few},"
    if leading:
        first = name_list([one.head for one in leading if len(leading) < len(check.top)])
        who += f" most of all {first}," if first else ""
        who += " each alone most of the way," if len(leading) > 1 else ""
    elif not single and result.search.seeks_set:
        are = "together are"
    claim = f"{are} {_claim(check, check.task + _by_wording(result, check))}"
    if len(idle_members(result)) == len(check.top):
        claim += ", but not surely all of them"
    its = f"{check.task}'s" if check.verdict is HeadlineVerdict.EVERYTHING else "its"
    them = "it" if single else "them"
    told = f"{capital(who)} {claim}: with {them} knocked out, {its} {_moves(check)}"
    if leading:
        alone = unit_of_outcomes(check.unit)
        parts = [f"{inline(one.head)} alone {alone.effect(one.alone.effect)}" for one in leading]
        told += f" ({name_list(parts)})"
    if check.verdict is HeadlineVerdict.NEEDED:
        return f"{told}. Whether other tasks need {them} was not measured."
    twins = _gentlest_twin(result, check.unit)
    beside = _clauses(check.others[:MOST_OTHERS], check.unit)
    if more := sum(each.is_hurt for each in check.others[MOST_OTHERS:]):
        beside.append(f"{more} more {'task loses' if more == 1 else 'tasks lose'} too")
    return f"{told}, while {name_list(twins + beside)}."


def _by_wording(result: Result, check: HeldOutClaim) -> str:
    """Say where a task's own wordings lose nothing for sure, or one of them much less."""
    as_asked = " as this prompt asks it, "
    if surviving_twin(result):
        return as_asked + doubt_of_twins(result)
    least = min((e.lost_share for e in other_scores(result, twins=True)), default=math.inf)
    return f"{as_asked}less so in other words" if least < BROAD * check.lost_share else ""


def _claim(check: HeldOutClaim, task: str) -> str:
    """Say what heads that are needed are needed for."""
    count = len(check.others)
    if check.verdict is HeadlineVerdict.NEEDED:
        return f"needed for {task}"
    if check.verdict is HeadlineVerdict.EVERYTHING:
        return "needed by every task that was scored"
    if check.verdict is HeadlineVerdict.SPECIFIC:
        return f"specific to {task} among the {count + 1} tasks scored"
    if check.verdict is HeadlineVerdict.SHARED:
        worst = check.others[0]
        as_much = worst.is_hurt and worst.lost_share >= check.lost_share
        shared = f"no less for {called(worst.name)}" if as_much else "not for it alone"
        return f"needed for {task}, and {shared}"
    others = f"any of the {count} other tasks" if count > 1 else "the other task"
    return f"needed for {task}, and not surely for {others} scored"


def _gentlest_twin(result: Result, unit: Unit) -> list[str]:
    """Say what the task does in the other words in which it loses least, if there are any.

    Where it may lose nothing there, also in those in which it loses most.
    """
    twins = other_scores(result, twins=True)
    first = twins[:1] if twins[1:] and twins[0].is_hurt and not twins[-1].is_hurt else []
    least = ", which loses least" if twins[1:] else ""
    return _clauses(first, unit) + _clauses(twins[-1:], unit, least)


def _not_checked(check: HeldOutClaim, names: str, few: str) -> str:
    verb = "looks" if len(check.top) == 1 else "look"
    what = "knocking it out" if len(check.top) == 1 else "knocking them out together"
    first = f"{capital(few)} {verb} most needed for {check.task}: {names}."
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


CHANCE = ", which may be chance"


def _clauses(entries: Sequence[TaskComparison], main: Unit, which: str = "") -> list[str]:
    """Say of each task what its score does; of neighbours that may be chance, once.

    `which` is said of every twin.
    """
    clauses: list[str] = []
    for entry in entries:
        before, after = entry.scores
        unit = unit_of_other(entry, main)
        texts = unit.score(before), unit.score(after)
        same = texts[0] == texts[1]
        moves = f"stays at {texts[1]}" if same else f"goes from {' to '.join(texts)}"
        open_ = not same and entry.change and entry.change.verdict == "open"
        who = called(entry.name)
        who = f"in other words ({who}{which}) it" if entry.twin else who
        both = bool(clauses) and clauses[-1].endswith(CHANCE)
        chance = (CHANCE if not both else ", both of which may be chance") if open_ else ""
        if both and open_:
            clauses[-1] = clauses[-1].removesuffix(CHANCE)
        clauses.append(f"{who} {moves}{chance}")
    return clauses


def second_sentence(result: Result) -> str:
    """What random heads do instead: the comparison without which a drop says little."""
    check = check_of(result)
    if check.verdict in (HeadlineVerdict.NO_HEADS, HeadlineVerdict.NOT_CHECKED):
        return ""
    told = _random(check, result) + _alone(check, result) + _spare_members(check, result)
    if check.verdict is HeadlineVerdict.EVERYTHING:
        lost = [each.lost_share for each in check.others]
        told += (
            f" Of its score {check.task} loses {check.lost_share:.0%}, and of theirs the other "
            f"tasks (its own wordings aside) {min(lost):.0%} to {max(lost):.0%}."
        )
    return told


def _alone(check: HeldOutClaim, result: Result) -> str:
    """Say what the heads that do most of it take alone, with the intervals."""
    unit, leading = unit_of_outcomes(check.unit), leading_members(result)
    if not leading or check.verdict not in HURT | {HeadlineVerdict.LIKE_RANDOM}:
        return ""
    parts = [
        f"{inline(one.head)} changes it by {unit.effect(one.alone.effect)} (95 % interval "
        f"{unit.interval(one.alone) or 'not known'})"
        for one in leading
    ]
    return f" Knocked out alone, {name_list(parts)}: most of what all do."


def _spare_members(check: HeldOutClaim, result: Result) -> str:
    """Name the heads that do not surely add to what the others take."""
    spare = idle_members(result)
    if not spare or check.verdict not in HURT:
        return ""
    if len(spare) == len(check.top):
        return " None of them surely adds to what the others take: fewer may do as much."
    adds = "does" if len(spare) == 1 else "do"
    told = f" {name_list(spare)} {adds} not surely add to what the others take"
    if result.search.goal == "specific" and other_scores(result, twins=True):
        told += f" of {check.task} itself; the set was chosen for its other wordings as well"
    return f"{told}."


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
        f"{check.task}'s {check.unit.noun} is {check.unit.score(mean)}{average}"
        f"{_beside_random(check)}."
        f"{_near_heads(check, controls.same_groups)}"
    )


def _near_heads(check: HeldOutClaim, near: Spread | None) -> str:
    """Tell of other heads of the same key-value groups, where they do a third as much or more."""
    intact, chosen = check.beside
    if near is None or near.mean is None or intact is None or chosen is None:
        return ""
    worse, whole = (check.unit.harm(score - intact) for score in (near.mean, chosen))
    if whole <= 0 or worse < NEAR * whole:
        return ""
    return f" With others of the same key-value groups it is {check.unit.score(near.mean)}."


def _beside_random(check: HeldOutClaim) -> str:
    """Whether any draw does as much as the named heads, or their score where it is of others."""
    named = "that head" if len(check.top) == 1 else "the named heads"
    chosen, alike, draws = check.beside[1], check.as_harmful, len(check.random)
    if not check.held_out and chosen is not None and chosen != check.knocked_out:
        return f", where it is {check.unit.score(chosen)} without {named}"
    if alike is None:
        return ""
    if not alike and check.verdict in HURT | {HeadlineVerdict.SLIGHT}:
        every = "the draw" if draws == 1 else f"each of the {draws} draws"
        return f", and {every} hurts less than {named}"
    matters = "that it matters" if len(check.top) == 1 else "that they matter"
    verb = "hurt" if alike > 1 else "hurts"
    why = "chance alone may make such a difference" if alike else "the change itself may be chance"
    return (
        f", and {alike or 'none'} of {counted(draws, 'draw')} {verb} as much as {named}: {why}, so "
        f"{matters} is not shown"
    )
