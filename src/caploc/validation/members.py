"""What each named head does alone and within the set of all.

A head whose work another one takes over does nothing alone, and much once that one is gone as well.
"""

import math
from collections.abc import Sequence

import numpy as np

from caploc.recovery import paired
from caploc.recovery.estimate import true_scores
from caploc.result import Effect, Member, number
from caploc.validation import Check, Outcomes, scored_both


def effect_between(before: Outcomes, after: Outcomes) -> Effect:
    """Compare two outcomes of the same examples, as far as both could be scored.

    Where these are right or wrong, the interval goes no farther than the score before may change.
    """
    before, after, binary = scored_both(before, after)
    if not before.size:
        return Effect(effect=None, low=None, high=None)
    effect, low, high, _ = paired(after - before, binary=binary)
    if binary:
        lowest, highest = true_scores(round(float(before.sum())), len(before))
        low, high = np.clip([low, high], -highest, 1 - lowest).tolist()
    return Effect(effect=number(effect), low=number(low), high=number(high))


def measure_members(check: Check, chosen: Sequence[int]) -> list[Member]:
    """Knock out each head alone, and all but each, on the examples of a check."""
    if not chosen:
        return []
    sets = [(), tuple(chosen), *((column,) for column in chosen)]
    sets += [tuple(other for other in chosen if other != column) for column in chosen]
    intact, whole, *rest = check.without(sets, "members of the set")
    alone, without = rest[: len(chosen)], rest[len(chosen) :]
    return [
        Member(
            head=str(check.grid.components[column]),
            alone=effect_between(intact, one),
            within=effect_between(others, whole),
        )
        for column, one, others in zip(chosen, alone, without, strict=True)
    ]


def confirm_members(check: Check, chosen: Sequence[int]) -> list[int]:
    """Keep the heads whose loss surely costs something: alone, or with the other heads gone.

    A head that another one covers for costs nothing alone; one of a set that leaves no right answer
    adds nothing to it. Of all others the one that adds least goes first; the rest is asked anew.
    Where no head is left and yet the loss of all surely costs something, the smallest of the sets
    on that way is kept of which this is still sure; not every head of it is confirmed.
    """
    kept, path = list(chosen), []
    while kept:
        doubtful = {
            column: math.nan if member.within.effect is None else member.within.effect
            for column, member in zip(kept, measure_members(check, kept), strict=True)
            if not member.is_confirmed
        }
        if not doubtful:
            return kept
        path.append(tuple(kept))
        kept.remove(max(reversed(doubtful), key=doubtful.__getitem__))
    intact, *outcomes = check.without([(), *path], "members of the set")
    needed: list[int] = []
    for columns, outcome in zip(path, outcomes, strict=True):
        high = effect_between(intact, outcome).high
        if high is None or high >= 0:
            break
        needed = list(columns)
    return needed
