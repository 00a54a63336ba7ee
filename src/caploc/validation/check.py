"""What a finding is checked on: a meter, examples, and how many random draws to compare with."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from caploc.heads import HeadGrid, Masks
from caploc.measurement import Meter
from caploc.progress import Progress
from caploc.search import Plan


@dataclass(frozen=True)
class Check:
    """What is checked, on what.

    `fresh` tells whether no search saw the examples, neither to find heads nor to check a
    shortlist; a task with too few has none left, and then those of the search must do.
    """

    meter: Meter
    grid: HeadGrid
    examples: Sequence[int]
    fresh: bool
    draws: int
    seed: int
    progress: Progress

    def scores(self, masks: Masks, what: str) -> list[float | None]:
        """The task's score under each mask."""
        plan = Plan.crossed(masks, self.examples, what=what)
        rows = self.meter.measure(plan, self.progress, what)
        count = len(self.examples)
        return [
            self.meter.score(rows[first : first + count]).score
            for first in range(0, len(rows), count)
        ]

    def outcomes(self, masks: Masks, what: str) -> Float[np.ndarray, "masks examples"]:
        """Outcomes of every mask on every example; NaN where one could not be scored."""
        rows = self.meter.measure(Plan.crossed(masks, self.examples), self.progress, what)
        values = np.array([row.outcome for row in rows], dtype=float)
        return values.reshape(len(masks), len(self.examples))

    def on_first(self, count: int) -> "Check":
        """The same check on the first examples only."""
        return replace(self, examples=list(self.examples)[:count])


def scored_everywhere(
    outcomes: Float[np.ndarray, "masks examples"],
) -> Float[np.ndarray, "masks scored"]:
    """The examples that could be scored under every mask."""
    known: np.ndarray = np.isfinite(outcomes).all(axis=0)
    return outcomes[:, known]
