"""Which of the sets that a search for a specific one found keeps its promise, on fresh examples."""

from collections.abc import Sequence
from dataclasses import dataclass

from caploc.recovery import falls_short
from caploc.result import Frontier, FrontierSet, TaskEffect
from caploc.validation import Check, Outcomes, scored_both
from caploc.validation.members import confirm_members, effect_between

CONFIRMED = 5  # sets whose heads are confirmed one by one, at most
LEVEL = 0.05  # chance that any set is said to keep the price and does not


@dataclass(frozen=True)
class Promise:
    """What a specific set must do: the checks of the task, its twins and the spared tasks."""

    check: Check
    twins: Sequence[Check]
    spared: Sequence[Check]
    price: float


def judge_frontier(
    promise: Promise, sets: Sequence[Sequence[int]], most_confirmed: int = 0
) -> tuple[Frontier, Sequence[int]]:
    """Judge sets in the order given; name the first that breaks all it must and keeps the price.

    A set keeps it if no spared task loses as much, by a one-sided test each at half the level of
    the set before: over all sets the chance of a false promise is at most `LEVEL`. Of the first
    `most_confirmed` that do, heads that the check does not confirm are left out, and what is left
    is judged in the set's place: this choice has not seen the spared tasks.
    """
    levels = [LEVEL / 2 ** (place + 1) for place in range(len(sets))]
    found, named = judge_sets(promise, sets, levels), list[int]()
    for columns, level, one in zip(sets, levels, tuple(found), strict=True):
        if not (one.within and one.breaks):
            continue
        confirmed = list(columns)
        if most_confirmed:
            most_confirmed -= 1
            confirmed = confirm_members(promise.check, columns)
        if confirmed and confirmed != list(columns):
            (one,) = judge_sets(promise, [confirmed], [level])
            found.append(one)
        if confirmed and one.within and one.breaks:
            named = confirmed
            break
    frontier = Frontier(
        price=promise.price,
        fresh=promise.check.fresh,
        examples=len(promise.check.examples),
        sets=found,
    )
    return frontier, named


def judge_sets(
    promise: Promise, sets: Sequence[Sequence[int]], levels: Sequence[float]
) -> list[FrontierSet]:
    """Say what each set breaks and what it costs the spared tasks, each at its level."""
    losses = [change_of(each, sets) for each in promise.spared]
    damage = change_of(promise.check, sets)
    twins = [change_of(each, sets) for each in promise.twins]

    def judged(columns: Sequence[int], place: int, level: float) -> FrontierSet:
        return FrontierSet(
            heads=[str(promise.check.grid.components[column]) for column in columns],
            damage=effect_between(*damage[place]),
            twins=task_effects(promise.twins, twins, place),
            spared=task_effects(promise.spared, losses, place),
            within=all(keeps(*each[place], promise.price, level) for each in losses),
            level=level,
        )

    return [judged(each, place, levels[place]) for place, each in enumerate(sets)]


Changes = list[tuple[Outcomes, Outcomes]]


def change_of(check: Check, sets: Sequence[Sequence[int]]) -> Changes:
    """Ask for outcomes of a check's examples before and without each of the sets."""
    intact, *without = check.without([(), *sets], "specific sets")
    return [(intact, each) for each in without]


def keeps(before: Outcomes, after: Outcomes, price: float, level: float) -> bool:
    """Tell whether the mean falls by less than the price, by a one-sided test at the level."""
    before, after, binary = scored_both(before, after)
    return before.size > 0 and falls_short(after - before, price, binary=binary) <= level


def task_effects(
    checks: Sequence[Check], changes: Sequence[Changes], place: int
) -> list[TaskEffect]:
    """Tell what the set at this place changes in the task of each check."""
    return [
        TaskEffect(
            task=check.meter.task.name,
            effect=effect_between(*each[place]),
            examples=len(check.examples),
        )
        for check, each in zip(checks, changes, strict=True)
    ]


ONE_WORDING = (
    "Only these words of the task were tried: heads that serve its prompt's pattern cannot be told "
    "from those of the capability. Ask the same in other words, and name that task with --twin."
)


def frontier_note(frontier: Frontier, named: Sequence[int]) -> list[str]:
    """Say that a set rests on one wording."""
    return [ONE_WORDING] if named and not any(each.twins for each in frontier.sets) else []
