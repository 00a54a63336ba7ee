"""The paper's own search for a setting: how many masks, at which rate.

Each setting is fitted on the same examples, the heads that it finds are knocked out together, and
the setting whose heads cost most is kept, still on those examples (arXiv 2603.03335, appendix A.1).
A choice made and judged on the same examples flatters itself; examples that had no part in it tell
by how much. A budget may not pay for all settings: then some are tried.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import ceil
from typing import Any

import numpy as np
from jaxtyping import Float

from caploc.errors import BadOption
from caploc.heads import Masks
from caploc.recovery import ESTIMATORS, Estimate, Measurements
from caploc.recovery.estimate import PerExample
from caploc.search.optimism import choosing, mean_loss, notes, optimism
from caploc.search.plan import Asking, Found, Plan, Problem, Search, intact_plan

RATES = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1)  # arXiv 2603.03335, appendix A.1, gives both ends
KEPT = 10  # one row of so many is kept for the check on fresh examples, of a budget

Draw = Callable[..., Masks]  # of `designs`: heads and masks, by rate and seed


@dataclass(frozen=True)
class Choices:
    """Numbers of masks, and the masks of each rate; a setting with fewer uses the first of them."""

    counts: list[int]
    drawn: dict[float, Masks]

    @classmethod
    def published(cls, problem: Problem, draw: Draw) -> "Choices":
        """All that the problem's settings name, each design once.

        Raises BadOption if a rate named is less than a head a mask.
        """
        settings = problem.settings
        counts = list(settings.mask_counts)
        drawn: dict[float, Masks] = {}
        for rate in rates_to_try(problem):
            masks = draw(problem.heads, counts[-1], rate=rate, seed=settings.seed)
            if not any(np.array_equal(masks, other) for other in drawn.values()):
                drawn[rate] = masks
        return cls(counts, drawn)

    @property
    def settings(self) -> list[tuple[int, float]]:
        """Masks and rate of every setting, the fewest masks first."""
        return list(product(self.counts, self.drawn))

    def rows(self, examples: int) -> int:
        """The most rows that trying all of them takes: different masks, and a set a setting."""
        masks = {mask.tobytes() for drawn in self.drawn.values() for mask in drawn if mask.any()}
        return (len(masks) + len(self.settings)) * examples

    def thinner(self) -> Iterator["Choices"]:
        """Fewer and fewer settings: the largest numbers of masks go first, then rates.

        As long as several rates are left these are the middle ones of as many equal runs.
        """
        for kept in range(len(self.counts), 0, -1):
            counts = self.counts[:kept]
            yield Choices(counts, {rate: m[: counts[-1]] for rate, m in self.drawn.items()})
        every = list(self.drawn)
        for kept in range(len(every) - 1, 1, -1):
            middle = [every[int((run + 0.5) * len(every) / kept)] for run in range(kept)]
            yield Choices(
                self.counts[:1], {rate: self.drawn[rate][: self.counts[0]] for rate in middle}
            )

    def bought(self, problem: Problem) -> "Choices":
        """All of them, or the first thinner ones that nine tenths of the budget pay for.

        Raises BadOption if it does not pay for two rates with the fewest masks.
        """
        budget, examples = problem.settings.budget, len(problem.examples)
        if budget is None:
            return self
        needed = []
        for choices in self.thinner():
            needed.append(choices.rows(examples))
            if needed[-1] <= budget - budget // KEPT:
                return choices
        least = min(needed) + (min(needed) - 1) // (KEPT - 1)
        raise BadOption(
            f"--budget {budget} is too small: a search for the setting needs {least} rows or more "
            f"on {examples} examples; use fewer --examples, or css or csb with one setting."
        )


def rates_to_try(problem: Problem) -> list[float]:
    """The rates named, or the paper's, raised to one head a mask on a small model.

    Raises BadOption if a rate named is less than that.
    """
    lowest = ceil(10_000 / problem.heads) / 10_000
    named = problem.settings.rates
    if named is None:
        return list(dict.fromkeys(max(rate, lowest) for rate in RATES))
    if int(named[0] * problem.heads) == 0:
        raise BadOption(
            f"--rates {named[0]:g} of {problem.heads} heads is less than one head a mask; "
            f"use {lowest:.4f} or more."
        )
    return list(named)


def check_choices(problem: Problem, draw: Draw) -> None:
    """Refuse settings that cannot be tried, before anything is measured.

    Raises BadOption if a rate named is less than a head a mask, or the budget is too small.
    """
    Choices.published(problem, draw).bought(problem)


MOST_CHECKED = 300  # fresh examples that every set of heads is tried on, at most


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
        masks = self.problem.without_each(sets)
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
    checked, budget = list(problem.fresh)[:MOST_CHECKED], problem.settings.budget
    if budget is not None:
        checked = checked[: max(budget - sheet.rows, 0) // len(sets)]
    fresh = Sheet(problem, checked)
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
