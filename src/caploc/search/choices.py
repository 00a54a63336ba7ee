"""The settings that a search over masks and rates tries, and what a budget buys of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from math import ceil

import numpy as np

from caploc.errors import BadOption
from caploc.heads import Masks
from caploc.search.plan import Problem

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

        Raises:
            BadOption: if a rate named is less than a head a mask.
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

        Raises:
            BadOption: if it does not pay for two rates with the fewest masks.
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

    Raises:
        BadOption: if a rate named is less than that.
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

    Raises:
        BadOption: if a rate named is less than a head a mask, or the budget is too small.
    """
    Choices.published(problem, draw).bought(problem)
