"""The shortlist: each of its heads alone on examples that the screen never used."""

from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float
from scipy import stats

from caploc import designs
from caploc.recovery import Estimate, Measurements, PairedDifferences
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
    estimate: Estimate | None = None

    def __post_init__(self) -> None:
        """Shuffle the fresh examples; without any, those of the screen must do."""
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

    def more(self, heads: list[int], count: int) -> Generator[Plan, Measurements, None]:
        """These heads alone on the next examples; so many, or as many as are left."""
        count = max(count, 0) if heads else 0
        examples, self.waiting = self.waiting[:count], self.waiting[count:]
        if not examples:
            return
        self.intact |= (yield intact_plan(self.problem, examples)).by_example()
        masks = designs.singles(self.problem.heads)[heads]
        self.seen = self.seen.joined((yield Plan.crossed(masks, examples, what="shortlist alone")))
        self.estimate = PairedDifferences().fit(self.seen, self.intact)

    def effects(self) -> Effects:
        """Effect and standard error of each head alone; NaN off the shortlist.

        The error is at least that of half an example: a head whose loss changed none of the
        answers asked may still change one in the next hundred.
        """
        if self.estimate is None:
            return Effects.unknown(self.problem.heads)
        asked = self.asked()
        half = (self.estimate.high - self.estimate.low) / 2
        error = half / stats.t.ppf(0.975, np.maximum(asked - 1, 1))
        typical = np.ptp(list(self.intact.values()) or [0.0]) or 1.0
        least = 0.5 * typical / np.maximum(asked, 1)
        return Effects(self.estimate.effect, np.maximum(error, least), np.maximum(asked - 1, 1))

    def asked(self) -> Float[np.ndarray, " heads"]:
        """Examples that each head was knocked out on and that could be scored."""
        scored = ~np.isnan(self.seen.outcome)
        single = self.seen.masks.argmax(axis=1)[self.seen.mask[scored]]
        return np.bincount(single, minlength=self.problem.heads).astype(float)
