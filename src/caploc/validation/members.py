"""What each named head does: alone, and within the set of all of them.

The two are effects of different kinds, and need not be alike: a head whose work another one takes
over does nothing alone, and much once that one is gone as well.
"""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from caploc.recovery import paired
from caploc.recovery.estimate import true_scores
from caploc.result import Effect, Member, number
from caploc.search import column_mask
from caploc.validation.check import Check


def effect_between(
    before: Float[np.ndarray, " examples"], after: Float[np.ndarray, " examples"]
) -> Effect:
    """Compare two outcomes of the same examples, as far as both could be scored.

    Where these are right or wrong, the interval goes no farther than the score before may change.
    """
    both = np.isfinite(before) & np.isfinite(after)
    if not both.any():
        return Effect(effect=None, low=None, high=None)
    before, after = before[both], after[both]
    binary = bool(np.isin([before, after], (0.0, 1.0)).all())
    effect, low, high, _ = paired(after - before, binary=binary)
    if binary:
        lowest, highest = true_scores(before)
        low, high = np.clip([low, high], -highest, 1 - lowest).tolist()
    return Effect(effect=number(effect), low=number(low), high=number(high))


def measure_members(check: Check, chosen: Sequence[int]) -> list[Member]:
    """Knock out each head alone, and all but each, on the examples of a check."""
    if not chosen:
        return []
    sets = [(), tuple(chosen), *((column,) for column in chosen)]
    sets += [tuple(other for other in chosen if other != column) for column in chosen]
    masks = np.stack([column_mask(check.grid.size, columns) for columns in sets])
    intact, whole, *rest = check.outcomes(masks, "members of the set")
    alone, without = rest[: len(chosen)], rest[len(chosen) :]
    return [
        Member(
            head=str(check.grid.heads[column]),
            alone=effect_between(intact, one),
            within=effect_between(others, whole),
        )
        for column, one, others in zip(chosen, alone, without, strict=True)
    ]


def drop_idle_members(check: Check, chosen: Sequence[int]) -> list[int]:
    """The set without heads that add nothing to it beyond doubt, the one that adds least first."""
    kept = list(chosen)
    while len(kept) > 1:
        shares = zip(kept, (member.within for member in measure_members(check, kept)), strict=True)
        doubtful = {
            column: math.nan if within.effect is None else within.effect
            for column, within in shares
            if within.high is None or not within.high < 0
        }
        if not doubtful:
            break
        kept.remove(max(reversed(doubtful), key=doubtful.__getitem__))
    return kept
