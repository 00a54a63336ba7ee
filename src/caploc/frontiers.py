"""The sets that a search for a specific one found: what each costs most, and which costs least."""

from collections.abc import Sequence

from caploc.result import Frontier, FrontierSet, TaskEffect


def find_worst(effects: Sequence[TaskEffect]) -> TaskEffect | None:
    """Find the task that loses most; None where none was measured."""
    known = [each for each in effects if each.effect.effect is not None]
    return min(known, key=lambda each: each.effect.effect or 0.0, default=None)


def find_unbroken(effects: Sequence[TaskEffect]) -> TaskEffect | None:
    """Find the twin that loses least; None where none was measured."""
    known = [each for each in effects if each.effect.effect is not None]
    return max(known, key=lambda each: each.effect.effect or 0.0, default=None)


def find_gentlest(frontier: Frontier) -> FrontierSet | None:
    """Find the set that surely breaks the task at the smallest price.

    Where prices were not told it is the one that costs others least, by the mean; of equals the
    most damaging.
    """
    breaking = [each for each in frontier.sets if each.breaks]

    def cost(one: FrontierSet) -> tuple[float, float]:
        worst, damage = find_worst(one.spared), one.damage.effect or 0.0
        mean = -(worst.effect.effect or 0.0) if worst else 0.0
        return (mean if one.keeps is None else one.keeps), damage

    return min(breaking, key=cost, default=None)
