"""Searches: each plans rows, looks at what came back, plans again. They know no model.

A search is a generator: it yields a `Plan`, is sent the plan's `Measurements`, and returns what it
`Found`. It is pure in its problem and in what it is sent, so a run that was stopped goes through
the same plans again and only measures what is missing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from caploc import designs, registries
from caploc.search.plan import Found, Plan, Problem, Search, column_mask
from caploc.search.published import (
    count_choices,
    greedy,
    one_shot,
    random_masks,
    rates_to_try,
    rounds,
    tuned,
)
from caploc.search.scan import Sizes, scan_then_trial
from caploc.search.sets import find_set, set_budget
from caploc.search.settings import KNOBS, check_budget


@dataclass(frozen=True)
class Method:
    """A way to find heads: how it searches, and what its rows are spent on.

    `masks` is the number of masks that it measures on every example; None for a search that divides
    a budget of rows, whose `check` refuses settings and budgets it cannot use. One that `has_goals`
    scans how strongly the model holds on to its right answers, and draws on more examples than the
    paper's.
    """

    search: Callable[[Problem], Search]
    masks: Callable[[Problem], int] | None = None
    draws_masks: bool = False  # uses --masks and --rate
    has_goals: bool = False
    names_sets: bool = False  # names heads for what they do together, whatever the goal
    check: Callable[[Problem], object] = lambda problem: None
    spent: Callable[[Problem], int] | None = None  # where `masks` is None: the rows of its budget

    def most_rows(self, problem: Problem) -> int:
        """Return the rows with heads knocked out that it asks for, at most."""
        if self.masks is not None:
            return self.masks(problem) * len(problem.examples)
        assert self.spent is not None
        return self.spent(problem)


def scan(problem: Problem) -> Search:
    """Search by the goal: heads that matter alone, or a set."""
    return scan_then_trial(problem) if problem.settings.goal == "heads" else find_set(problem)


def check_goal(problem: Problem) -> None:
    """Refuse a budget that is too small for the goal."""
    targets = 1 + sum(each.twin for each in problem.sides)
    check_budget(problem.settings, len(problem.eligible), targets)


def most_scanned(problem: Problem) -> int:
    """Bound the rows of the default search: both stages, and what else the heads to name break."""
    every, top = len(problem.eligible), problem.settings.top
    if problem.settings.goal != "heads":
        budget = problem.settings.budget or set_budget(every, 1 + len(problem.sides), top)
        first = min((1 + KNOBS.breaking) * KNOBS.tried * top, every)
        elsewhere = (first + top) * KNOBS.elsewhere * len(problem.elsewhere)
        judged = 3 * KNOBS.compared + KNOBS.added * KNOBS.grown_on
        return budget + (first + top) * KNOBS.trial + elsewhere + judged
    sizes = Sizes.of(problem)
    breaking = 2 * top * KNOBS.elsewhere * len(problem.elsewhere)
    return sizes.scanned * every + sizes.most + breaking


SCAN = Method(scan, has_goals=True, check=check_goal, spent=most_scanned)
CSS = Method(
    partial(random_masks, draw=designs.stratified),
    lambda problem: problem.settings.masks,
    draws_masks=True,
)
CSB = Method(
    partial(random_masks, draw=designs.bernoulli),
    lambda problem: problem.settings.masks,
    draws_masks=True,
)
CSS_SEARCH = Method(
    partial(tuned, draw=designs.stratified),
    count_choices,
    names_sets=True,
    check=rates_to_try,
)
CSB_SEARCH = Method(
    partial(tuned, draw=designs.bernoulli),
    count_choices,
    names_sets=True,
    check=rates_to_try,
)
ONE_SHOT = Method(one_shot, lambda problem: len(problem.eligible))
GREEDY = Method(greedy, rounds, names_sets=True)
METHODS: dict[str, Method] = registries.METHODS

__all__ = ["METHODS", "Found", "Method", "Plan", "Problem", "Search", "column_mask"]
