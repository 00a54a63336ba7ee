"""The paper's own search for a setting: how many masks, at which rate.

Each setting is fitted on the same examples, the heads that it finds are knocked out together, and
the setting whose heads cost most is kept, still on those examples (arXiv 2603.03335, appendix A.1).
A choice made and judged on the same examples flatters itself; examples that had no part in it tell
by how much.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from caploc import designs
from caploc.heads import Masks
from caploc.recovery import ESTIMATORS, Estimate, Measurements
from caploc.recovery.estimate import PerExample
from caploc.search.choices import Choices, Draw
from caploc.search.optimism import choosing, mean_loss, notes, optimism
from caploc.search.plan import Asking, Found, Plan, Problem, Search, column_mask, intact_plan

MOST_CHECKED = 300  # fresh examples that every set of heads is tried on, at most


def css_search(problem: Problem) -> Search:
    """The published search over settings, with stratified masks."""
    return tuned(problem, designs.stratified)


def csb_search(problem: Problem) -> Search:
    """The published search over settings, with Bernoulli masks."""
    return tuned(problem, designs.bernoulli)


@dataclass
class Sheet:
    """Outcomes of masks on the same examples; each mask is asked once.

    `rows` counts all that was asked but the intact rows, which every method needs.
    """

    problem: Problem
    examples: Sequence[int]
    known: dict[bytes, PerExample] = field(default_factory=dict)
    rows: int = 0

    def begin(self) -> Asking[None]:
        """Ask what the intact model does."""
        measured = yield intact_plan(self.problem, self.examples)
        self.known[self.problem.empty().tobytes()] = measured.outcome

    def ask(self, masks: Masks, what: str) -> Asking[None]:
        """Have every mask measured on every example, unless it has been."""
        fresh = {mask.tobytes(): mask for mask in masks if mask.tobytes() not in self.known}
        if fresh:
            measured = yield Plan.crossed(np.stack(list(fresh.values())), self.examples, what=what)
            self.rows += len(measured.outcome)
            outcomes = measured.outcome.reshape(len(fresh), -1)
            self.known |= dict(zip(fresh, outcomes, strict=True))

    def measured(self, masks: Masks) -> Measurements:
        """The outcomes of masks that were asked, as an estimator takes them."""
        plan = Plan.crossed(masks, self.examples)
        outcome = np.concatenate([self.known[mask.tobytes()] for mask in masks])
        return Measurements(masks, plan.mask, plan.example, outcome)

    def losses(self, sets: Sequence[Sequence[int]]) -> Asking[Float[np.ndarray, "sets examples"]]:
        """What each example loses with all heads of a set gone; NaN where it was not scored."""
        masks = np.stack([column_mask(self.problem.heads, columns) for columns in sets])
        yield from self.ask(masks, "whole sets")
        intact = self.known[self.problem.empty().tobytes()]
        return np.stack([intact - self.known[mask.tobytes()] for mask in masks])


@dataclass(frozen=True)
class Tried:
    """One setting and what it found."""

    masks: int
    rate: float
    estimate: Estimate
    seen: Measurements
    heads: list[int]

    @property
    def set(self) -> tuple[int, ...]:
        """The heads in the order of their columns: settings may name the same in another order."""
        return tuple(sorted(self.heads))


@dataclass(frozen=True)
class Chosen:
    """The setting kept, beside all that were tried, and what each set of heads costs.

    `place` is each setting's place among the different sets; `fresh` has no columns where no
    fresh example is left.
    """

    tried: list[Tried]
    place: list[int]
    losses: Float[np.ndarray, "sets examples"]
    fresh: Float[np.ndarray, "sets checked"]

    @property
    def number(self) -> int:
        """The setting whose heads cost most; of equals the fewest masks, then the lowest rate."""
        drops = [mean_loss(self.losses[number])[0] for number in self.place]
        return int(np.argmax(np.nan_to_num(drops, nan=-np.inf)))

    def heads(self) -> list[int]:
        """The chosen setting's heads, the most needed first; none if they cost nothing."""
        drop, _ = mean_loss(self.losses[self.place[self.number]])
        return self.tried[self.number].heads if drop > 0 else []

    def described(self) -> list[dict[str, Any]]:
        """Every setting in figures; heads by column, None for what is not known."""
        told = []
        for setting, number in zip(self.tried, self.place, strict=True):
            here, there = mean_loss(self.losses[number]), mean_loss(self.fresh[number])
            figures = dict(zip(FIGURES, (*here, *there), strict=True))
            told.append(
                {"masks": setting.masks, "rate": setting.rate, "heads": setting.heads}
                | {name: None if np.isnan(figure) else figure for name, figure in figures.items()}
            )
        return told


FIGURES = ("drop", "stderr", "held_out_drop", "held_out_stderr")


def tuned(problem: Problem, draw: Draw) -> Search:
    """Fit every setting, keep the one whose heads cost most, and see what they cost elsewhere.

    Rates are asked one after another, each with the masks of its largest setting; a smaller one
    uses the first of them, which are those that it would have drawn alone.
    """
    offered = Choices.published(problem, draw)
    choices = offered.bought(problem)
    sheet = Sheet(problem, problem.examples)
    yield from sheet.begin()
    for rate, masks in choices.drawn.items():
        allowed = problem.without_excluded(masks)
        yield from sheet.ask(allowed, f"masks of {100 * rate:.3g} % of the heads")
    tried = fit_settings(problem, choices, sheet)
    sets = list(dict.fromkeys(setting.set for setting in tried))
    losses = yield from sheet.losses(sets)
    fresh = Sheet(problem, fresh_examples(problem, sheet.rows, len(sets)))
    elsewhere = np.zeros((len(sets), 0))
    if fresh.examples:
        yield from fresh.begin()
        elsewhere = yield from fresh.losses(sets)
    place = [sets.index(setting.set) for setting in tried]
    told = {
        "offered": len(offered.settings),
        "budget": most_rows(problem, choices),
        "rows": sheet.rows + fresh.rows,
        "chosen_on": len(sheet.examples),
        "checked_on": len(fresh.examples),
    }
    return summarize_tuned(problem, Chosen(tried, place, losses, elsewhere), told)


def fit_settings(problem: Problem, choices: Choices, sheet: Sheet) -> list[Tried]:
    """Each setting's estimate of its own masks, as `css` and `csb` make it."""
    estimator = ESTIMATORS[problem.settings.estimator or "lasso"]()
    intact = sheet.measured(problem.empty()[None]).by_example()
    tried = []
    for count, rate in choices.settings:
        seen = sheet.measured(problem.without_excluded(choices.drawn[rate][:count]))
        estimate = estimator.fit(seen, intact)
        heads = estimate.needed(problem.settings.top)
        tried.append(Tried(count, rate, estimate, seen, heads))
    return tried


def fresh_examples(problem: Problem, spent: int, sets: int) -> list[int]:
    """Examples to try every set on that had no part in the choice, as the budget allows."""
    fresh, budget = list(problem.fresh)[:MOST_CHECKED], problem.settings.budget
    return fresh if budget is None else fresh[: max(budget - spent, 0) // sets]


def most_rows(problem: Problem, choices: Choices) -> int:
    """The budget, or without one, the most rows that the search may plan."""
    fresh = len(choices.settings) * min(MOST_CHECKED, len(problem.fresh))
    return problem.settings.budget or choices.rows(len(problem.examples)) + fresh


def summarize_tuned(problem: Problem, chosen: Chosen, told: dict[str, Any]) -> Found:
    """What the search hands back: the chosen setting's fit, and all of them in figures."""
    kept = chosen.tried[chosen.number]
    sets = chosen.losses, chosen.fresh, chosen.place[chosen.number]
    told = told | {
        "settings": chosen.described(),
        "chosen": chosen.number,
        "masks": kept.masks,
        "rate": kept.rate,
        "optimism": optimism(*sets),
        "choosing": choosing(*sets),
    }
    ranking = problem.rank(kept.estimate.order())
    return Found(
        chosen.heads(), ranking, kept.estimate, kept.seen, diagnostics=told, notes=notes(told)
    )
