"""What a study says while it runs: the rows that it will take, and the first heads so far."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from caploc.heads import HeadGrid
from caploc.progress import Progress, expect, tell
from caploc.report.wording import called
from caploc.search.conclusion import Conclusion
from caploc.search.plan import column_mask
from caploc.tasks.task import Task


@dataclass(frozen=True)
class Foreseen:
    """Rows that a study will measure, about: those of its search, and those of the rest.

    `work` adds up how long they take, `checks_work` how long those of the rest do.
    """

    search: int
    checks: int
    work: float
    checks_work: float

    def announce(self, task: str, model: str, heads: int, progress: Progress) -> None:
        """Say what will be done, and how many rows it takes."""
        tell(
            progress,
            f"{called(task)} in {called(model)}: about {self.search:,} rows to search {heads} "
            f"heads, then {self.checks:,} to check what is found.",
        )
        expect(progress, self.search + self.checks, self.work)


Foresee = Callable[[Any, Sequence[Task], Path], Foreseen]  # of a Study, for its run's folder


class Watch:
    """Tells the first heads of a search, whenever they are others than before."""

    def __init__(self, grid: HeadGrid, progress: Progress) -> None:
        self.grid, self.progress = grid, progress
        self.last: list[int] = []

    def __call__(self, conclusion: Conclusion) -> None:
        columns = conclusion.top_heads
        if columns == self.last:
            return
        self.last = columns
        mask = column_mask(self.grid.size, columns)
        low, high = conclusion.bound(mask)
        effect = np.where(conclusion.tried, conclusion.checked.effect, conclusion.posterior.mean)
        heads = [
            f"{self.grid.heads[c]} {effect[c]:+.2f} [{low[c]:+.2f}, {high[c]:+.2f}]"
            for c in columns
        ]
        tell(self.progress, f"so far: {', '.join(heads)}")
