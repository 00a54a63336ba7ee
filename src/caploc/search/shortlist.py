"""The shortlist: each of its heads alone on examples that the screen never used."""

from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np

from caploc import designs
from caploc.recovery import Estimate, Measurements, PairedDifferences, alone
from caploc.recovery.screening import Effects
from caploc.search.plan import Plan, Problem, intact_plan

EVEN = 0.5  # share of the rows that all heads of the shortlist get alike
LOOKS = 4  # at which the rest is handed to heads that are still contested


@dataclass
class Shortlist:
    """Heads knocked out alone, on the same fresh examples as far as each went."""

    problem: Problem
    heads: list[int]
    random: np.random.Generator
    intact: dict[int, float] = field(default_factory=dict)
    seen: Measurements = field(init=False)
    first: int = 0

    def __post_init__(self) -> None:
        """Shuffle the fresh examples; without any, those of the screen must do."""
        self.heads = list(self.heads)
        self.seen = Measurements.none(self.problem.heads)
        examples = list(self.problem.fresh) or list(self.problem.examples)
        self.waiting = self.random.permutation(examples).tolist()

    @property
    def rows(self) -> int:
        """Rows measured so far, the intact ones apart."""
        return len(self.seen.outcome)

    def even(self, rows: int) -> Generator[Plan, Measurements, None]:
        """All heads on as many examples as half of the rows allow."""
        yield from self.more(self.heads, round(EVEN * rows / max(len(self.heads), 1)))
        self.first = len(self.intact)

    def join(self, heads: list[int], rows: int) -> Generator[Plan, Measurements, None]:
        """Further heads, on the examples that all others began with, as far as the rows go."""
        count = min(self.first, rows // max(len(heads), 1))
        if heads and count:
            self.heads += heads
            yield from self.ask(heads, list(self.intact)[:count])

    def more(self, heads: list[int], count: int) -> Generator[Plan, Measurements, None]:
        """These heads alone on the next examples; so many, or as many as are left."""
        count = max(count, 0) if heads else 0
        examples, self.waiting = self.waiting[:count], self.waiting[count:]
        if not examples:
            return
        self.intact |= (yield intact_plan(self.problem, examples)).by_example()
        yield from self.ask(heads, examples)

    def ask(self, heads: list[int], examples: list[int]) -> Generator[Plan, Measurements, None]:
        """Each of the heads alone on each of the examples."""
        masks = designs.singles(self.problem.heads)[heads]
        self.seen = self.seen.joined((yield Plan.crossed(masks, examples, what="shortlist alone")))

    def estimate(self) -> Estimate:
        """Effect of each head alone with its interval, as reported."""
        return PairedDifferences().fit(self.seen, self.intact)

    def effects(self) -> Effects:
        """Effect and standard error of each head alone; NaN off the shortlist.

        The error is at least that of half an example: a head whose loss changed none of the
        answers asked may still change one in the next hundred.
        """
        effect, error, freedom = (np.full(self.problem.heads, np.nan) for _ in range(3))
        typical = np.ptp(list(self.intact.values()) or [0.0]) or 1.0
        for head, differences in alone(self.seen, self.intact):
            count = differences.size
            effect[head], freedom[head] = differences.mean(), max(count - 1, 1)
            spread = differences.std(ddof=1) if count > 1 else typical
            error[head] = max(spread / count**0.5, 0.5 * typical / count)
        return Effects(effect, error, freedom)
