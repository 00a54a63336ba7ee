"""What each named head does alone and within the set of all, and whether a smaller set does more.

A head whose work another one takes over does nothing alone, and much once that one is gone as well.
Removing one head may rescue what removing another one broke, so that a set does less than some of
its heads. So smaller sets are tried before it is named: on half of the examples the most damaging
is picked, which is named instead of the whole if on the other half it does more beyond doubt.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from caploc.recovery import falls, paired
from caploc.recovery.estimate import true_scores
from caploc.result import Effect, Member, Subsets, TriedSet, number
from caploc.search.published import mean_loss
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


LEVEL = 0.05  # of the one-sided test that a smaller set must pass to be named instead


@dataclass(frozen=True)
class Judgement:
    """What became of a set: the columns to name, and what a result tells of it.

    `examples` are those on which a smaller set was found to do more; none if the whole is named.
    """

    named: list[int]
    subsets: Subsets
    examples: list[int]


@dataclass(frozen=True)
class Pick:
    """A smaller set that does more than the whole where it was picked, and how it did elsewhere.

    `left` holds what is left elsewhere of the mean outcome: intact, without the whole, without the
    smaller set; `p` is that of the smaller set doing no more than the whole.
    """

    place: int
    p: float
    left: tuple[float, float, float]

    @property
    def replaces(self) -> bool:
        intact, _, part = self.left
        return self.p < LEVEL and part < intact


def judge(check: Check, chosen: Sequence[int]) -> Judgement | None:
    """Compare a set with smaller ones of its heads on a check's examples; None for one head."""
    if len(chosen) < 2:
        return None
    sets = subsets_to_try(chosen)
    intact, *outcomes = check.without([(), *sets], "parts of the set")
    pick = picked(intact, np.stack(outcomes))
    replaced = pick is not None and pick.replaces
    named = list(sets[pick.place] if pick is not None and replaced else chosen)
    names = [[str(check.grid.components[column]) for column in columns] for columns in sets]
    losses = [mean_loss(intact - outcome) for outcome in outcomes]
    told = Subsets(
        found=names[0],
        named=[str(check.grid.components[column]) for column in named],
        fresh=check.fresh,
        examples=len(check.examples),
        tried=[
            TriedSet(heads=heads, drop=number(drop), stderr=number(stderr))
            for heads, (drop, stderr) in zip(names, losses, strict=True)
        ],
        picked=None if pick is None else names[pick.place],
        p=None if pick is None else number(pick.p),
        note=note(check, names, pick),
    )
    return Judgement(named, told, list(check.examples)[1::2] if replaced else [])


def subsets_to_try(chosen: Sequence[int]) -> list[tuple[int, ...]]:
    """List the set, then its beginnings, single heads and all but each, the smallest first."""
    whole = tuple(chosen)
    some = [whole[:count] for count in range(1, len(whole))]
    some += [(column,) for column in whole]
    some += [whole[:place] + whole[place + 1 :] for place in range(len(whole))]
    return [whole, *sorted(dict.fromkeys(some), key=len)]


def picked(intact: Outcomes, outcomes: Float[np.ndarray, "sets examples"]) -> Pick | None:
    """Pick the smaller set that does most on every other example, tried on those between them.

    The first set is the whole; None if none does more. Of equals the first is picked.
    """
    known = np.isfinite(outcomes).all(axis=0) & np.isfinite(intact)
    choosing, judging = (known & (np.arange(intact.size) % 2 == half) for half in (0, 1))
    if not choosing.any() or not judging.any():
        return None
    means = outcomes[:, choosing].mean(axis=1)
    place = int(np.argmin(means))
    if not means[place] < means[0]:
        return None
    before, whole, part = intact[judging], outcomes[0, judging], outcomes[place, judging]
    binary = bool(np.isin([before, whole, part], (0.0, 1.0)).all())
    left = (float(before.mean()), float(whole.mean()), float(part.mean()))
    return Pick(place, falls(part - whole, binary=binary), left)


def note(check: Check, names: Sequence[Sequence[str]], pick: Pick | None) -> str:
    """Say what became of the set."""
    whole = f"all {len(names[0])} heads found ({', '.join(names[0])})"
    seen = "" if check.fresh else " The search had seen these examples: too few others are left."
    if pick is None or not pick.replaces:
        return f"No part of {whole} does more than all of them beyond doubt.{seen}"
    heads = names[pick.place]
    one = len(heads) == 1
    part = f"{heads[0]} alone leaves" if one else f"{' '.join(heads)} without the others leave"
    intact, left, less = pick.left
    return (
        f"Knocking out {whole} leaves {left:.2f} of {intact:.2f}; {part} {less:.2f}, so "
        f"{'it is' if one else 'they are'} named instead: the others' absence rescues answers "
        "(caploc interactions says whose). The figures are of examples that had no part in "
        f"this choice.{seen}"
    )
