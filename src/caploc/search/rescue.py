"""Heads whose absence mends what another head's broke, and heads that step in for others.

A network without one head may be thrown off by what that head no longer corrects; with the source
of that gone as well it answers as before. So every other head is knocked out together with one that
breaks the task alone, on a few of the examples that this one breaks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from caploc import designs
from caploc.recovery.estimate import Measurements, survived
from caploc.search.plan import Asking, Plan, Problem, intact_plan
from caploc.search.screen import Screen
from caploc.search.sets import beyond_doubt
from caploc.search.state import SearchState, right_of

TRIED = 40  # right examples on which a head alone shows whether it breaks the task
BREAKS = 0.2  # share of them that it must take for its rescue to be looked for
FEW = 4  # of the examples that it breaks, on which it is asked together with every other head
PROMISING = 0.25  # share of what it takes from these that another head's absence must bring back
MOST = 8  # heads whose absence may rescue one, handed on to be tried on other examples


@dataclass(frozen=True)
class Rescue:
    """A head that breaks the task alone, and others whose absence seems to mend that.

    `rescuers` come in the order of what they bring back, on the `examples` that were asked; no
    examples: the budget left none to ask.
    """

    breaker: int
    rescuers: tuple[int, ...] = ()
    examples: tuple[int, ...] = ()


def search_rescuers(
    problem: Problem, suspects: Sequence[int], rows: int | None
) -> Asking[list[Rescue]]:
    """What may rescue each of the suspects that breaks the task alone, the worst of them first.

    `rows` is the most that all pairs together may take (None: `FEW` examples a pair); where it does
    not pay for one example a pair, the heads that break least are not asked about.
    """
    intact = (yield intact_plan(problem, problem.examples)).by_example()
    tried = right_of(intact)[:TRIED]
    if not suspects or not tried:
        return []
    masks = designs.singles(problem.heads)[list(suspects)]
    alone = yield Plan.crossed(masks, tried, what="heads alone")
    broken = broken_by(suspects, alone, intact)
    pays = None if rows is None else rows // max(problem.heads - 1, 1)  # examples for all pairs
    asked = len(broken) if pays is None else min(len(broken), pays)
    few = FEW if pays is None else min(FEW, pays // max(asked, 1))
    rescues = []
    for breaker, without in list(broken.items())[:asked]:
        lost = dict(list(without.items())[:few])
        rescues.append((yield from promising(problem, breaker, lost, intact)))
    return rescues + [Rescue(breaker) for breaker in list(broken)[asked:]]


def broken_by(
    suspects: Sequence[int], alone: Measurements, intact: dict[int, float]
) -> dict[int, dict[int, float]]:
    """The outcomes that each suspect breaks alone, by example, of those that break enough."""
    lost = ~survived(alone, intact) & np.isfinite(alone.outcome)
    taken = {}
    for place, column in enumerate(suspects):
        own = alone.mask == place
        if lost[own].sum() >= BREAKS * own.sum():
            taken[column] = alone.where(own & lost).by_example()
    return dict(sorted(taken.items(), key=lambda item: -len(item[1])))


def promising(
    problem: Problem, breaker: int, lost: dict[int, float], intact: dict[int, float]
) -> Asking[Rescue]:
    """The heads whose absence brings back enough of what the breaker takes.

    `lost` holds the outcome without the breaker of each example that is asked.
    """
    others = [column for column in range(problem.heads) if column != breaker]
    masks = designs.singles(problem.heads)[others]
    masks[:, breaker] = True
    both = yield Plan.crossed(masks, list(lost), what="pairs that may rescue")
    before, after = np.array([intact[example] for example in lost]), np.array(list(lost.values()))
    gained = np.nan_to_num(both.outcome.reshape(len(others), -1) - after).sum(axis=1)
    order = np.argsort(-gained, kind="stable")[:MOST]
    enough = PROMISING * (before - after).sum()
    rescuers = tuple(others[place] for place in order if gained[place] >= enough)
    return Rescue(breaker, rescuers, tuple(lost))


FEWEST_RIGHT = 8  # examples still right without the found heads, to see anything


def standing_in(
    problem: Problem, found: Sequence[int], critical: Sequence[int], rows: int
) -> Asking[list[int]]:
    """Heads that are needed once the found ones are gone, the most needed first.

    Found heads are added one by one; one after which too few examples stay right is passed over,
    since a backup shows only where there is something left to lose. None if all are. What it
    returns are candidates: at two standard errors about one in forty idle heads is among them.
    """
    measured = yield intact_plan(problem, problem.examples)
    intact = measured.by_example()
    state = SearchState(problem, designs.generator(problem.settings.seed), intact)
    base: list[int] = []
    left = intact
    for column in found:
        right = right_of(intact)
        after = yield from state.outcomes_without([*base, column], right, "found heads")
        if len(right_of(after)) >= max(FEWEST_RIGHT, len(right_of(intact)) // 5):
            base, left = [*base, column], after
    if not base:
        return []
    avoid = problem.empty()
    avoid[[*critical, *found]] = True
    avoid[base] = False
    screen = Screen(problem, right_of(left), left, state.random, base=base, avoid=avoid)
    yield from state.screening(screen, state.spent + rows)
    return beyond_doubt(screen, problem.settings.top)
