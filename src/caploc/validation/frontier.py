"""Which of the sets that a search for a specific one found keeps its promise, on fresh examples."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from caploc import designs
from caploc.errors import BadOption
from caploc.recovery import paired
from caploc.result import Frontier, FrontierSet, Subsets, TaskEffect
from caploc.search import column_mask
from caploc.validation.comparison import Check
from caploc.validation.members import effect_between

SEARCHED = 60  # examples of a spared task or a twin that the search may use
JUDGED = 240  # others, on which sets are judged, at most
ENOUGH = 0.5  # of the damage of a set, that a part must do to be offered in its place
OFFERED = 5  # parts that are judged, at most
LEVEL = 0.05  # chance that any set is said to keep the price and does not


@dataclass(frozen=True)
class Promise:
    """What a specific set must do: the checks of the task, its twins and the spared tasks."""

    check: Check
    twins: Sequence[Check]
    spared: Sequence[Check]
    price: float


def check_sides(task: str, spare: Sequence[str], twins: Sequence[str]) -> None:
    """Refuse a search for a specific set that has nothing to spare, or contradicts itself."""
    if not spare:
        raise BadOption(
            "--goal specific needs a task to leave alone: --spare TASK, once for each of them."
        )
    both = {task, *twins} & set(spare)
    if both:
        raise BadOption(f"--spare {min(both)} is the task to break, or its twin.")
    if task in twins:
        raise BadOption(f"--twin {task} is the task itself.")


def split_examples(size: int, seed: int) -> tuple[list[int], list[int]]:
    """Examples of a task beside the one to break: for the search, and for the judgement.

    Of a small task half are for each.
    """
    count = min(SEARCHED, max(size // 2, 1))
    drawn = designs.draw_examples(size, min(size, count + JUDGED), seed=seed)
    return drawn[:count], drawn[count:] or drawn[:count]


def judge_frontier(
    promise: Promise, sets: Sequence[Sequence[int]]
) -> tuple[Frontier, Sequence[int]]:
    """Judge sets in the order given; name the first that breaks all it must and keeps the price.

    A set keeps it if the one-sided upper end of each spared task's loss is no larger, at half the
    level of the set before: over all sets the chance of a false promise is at most `LEVEL`.
    """
    found: list[FrontierSet] = []
    named: Sequence[int] = ()
    losses = [change_of(each, sets) for each in promise.spared]
    damage = change_of(promise.check, sets)
    twins = [change_of(each, sets) for each in promise.twins]
    for place, columns in enumerate(sets):
        level = LEVEL / 2 ** (place + 1)
        worst = [lowest(*changes[place], level) for changes in losses]
        one = FrontierSet(
            heads=[str(promise.check.grid.heads[column]) for column in columns],
            damage=effect_between(*damage[place]),
            twins=task_effects(promise.twins, twins, place),
            spared=task_effects(promise.spared, losses, place),
            within=all(low is not None and low >= -promise.price for low in worst),
            level=level,
        )
        found.append(one)
        ends = [one.damage.high, *(twin.effect.high for twin in one.twins)]
        breaks = all(high is not None and high < 0 for high in ends)
        if one.within and breaks and not named:
            named = columns
    frontier = Frontier(
        price=promise.price,
        fresh=promise.check.fresh,
        examples=len(promise.check.examples),
        sets=found,
    )
    return frontier, named


Outcomes = Float[np.ndarray, " examples"]
Changes = list[tuple[Outcomes, Outcomes]]


def change_of(check: Check, sets: Sequence[Sequence[int]]) -> Changes:
    """Outcomes of a check's examples before and without each of the sets."""
    masks = np.stack([column_mask(check.grid.size, columns) for columns in ((), *sets)])
    intact, *without = check.outcomes(masks, "specific sets")
    return [(intact, each) for each in without]


def offer_part(
    promise: Promise, subsets: Subsets, chosen: Sequence[int]
) -> tuple[Frontier | None, list[str]]:
    """Judge parts of a set that other tasks need too; say which smaller one is specific, if any.

    Tried are parts that do at least half of what the whole does, the smallest first.
    """
    columns = dict(zip((str(promise.check.grid.heads[c]) for c in chosen), chosen, strict=True))
    drops = {tuple(each.heads): each.drop or 0.0 for each in subsets.tried}
    whole = drops.get(tuple(columns), 0.0)
    parts = [
        heads
        for heads, drop in drops.items()
        if drop >= ENOUGH * whole > 0 and set(heads) < set(columns)
    ]
    parts = sorted(parts, key=lambda heads: (len(heads), -drops[heads]))[:OFFERED]
    if not parts:
        return None, []
    sets = [[columns[head] for head in heads] for heads in parts]
    frontier, named = judge_frontier(promise, sets)
    if not named:
        return frontier, []
    one = frontier.sets[sets.index(list(named))]
    task, change = worst_loss(one)
    damage = -100 * (one.damage.effect or 0.0)
    return frontier, [
        f"A part is specific: {' '.join(one.heads)} takes {damage:.0f} points of "
        f"{promise.check.meter.task.name}, and no other task surely loses more than "
        f"{100 * promise.price:g} ({task}, the worst, {100 * change:+.1f})."
    ]


def lowest(before: Outcomes, after: Outcomes, level: float) -> float | None:
    """The one-sided lower end of the mean change at a level; None if nothing was scored."""
    both = np.isfinite(before) & np.isfinite(after)
    if not both.any():
        return None
    binary = bool(np.isin([before[both], after[both]], (0.0, 1.0)).all())
    low = paired(after[both] - before[both], binary=binary, level=1 - 2 * level)[1]
    return float(low) if np.isfinite(low) else None


def task_effects(
    checks: Sequence[Check], changes: Sequence[Changes], place: int
) -> list[TaskEffect]:
    """What the set at this place changes in the task of each check."""
    return [
        TaskEffect(
            task=check.meter.task.name,
            effect=effect_between(*each[place]),
            examples=len(check.examples),
        )
        for check, each in zip(checks, changes, strict=True)
    ]


def frontier_note(frontier: Frontier, named: Sequence[int]) -> list[str]:
    """Say in a sentence that no set may be named, if so."""
    if named or not frontier.sets:
        return []
    price = 100 * (frontier.price or 0.0)
    gentlest = max(frontier.sets, key=lambda each: worst_loss(each)[1])
    task, change = worst_loss(gentlest)
    return [
        f"No set that was found breaks the task and surely costs every spared task at most "
        f"{price:g} points: none is named. The gentlest, {' '.join(gentlest.heads)}, changes "
        f"{task} by {100 * change:+.1f} points (validation.frontier has all of them)."
    ]


def worst_loss(one: FrontierSet) -> tuple[str, float]:
    """The spared task that a set costs most, and the change of its score."""
    changes = [(each.task, each.effect.effect or 0.0) for each in one.spared]
    return min(changes, key=lambda each: each[1], default=("no task", 0.0))
