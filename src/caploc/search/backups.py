"""Heads that step in for others: what a screen sees with the found heads gone."""

from collections.abc import Sequence

from caploc import designs
from caploc.search.plan import Asking, Plan, Problem, column_mask, intact_plan
from caploc.search.screen import Screen
from caploc.search.sets import beyond_doubt
from caploc.search.state import SearchState, right_of

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
        mask = column_mask(problem.heads, [*base, column])
        plan = Plan.crossed(mask[None], right_of(intact), what="found heads")
        after = (yield from state.ask(plan)).by_example()
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
