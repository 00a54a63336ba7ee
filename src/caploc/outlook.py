"""What a study says while it runs: the rows that it will take, and the first heads so far."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from caploc.heads import HeadGrid
from caploc.models.sources import title_of
from caploc.progress import Progress, expect, tell
from caploc.recovery.estimate import is_binary
from caploc.report.wording import called
from caploc.search.conclusion import Conclusion
from caploc.tasks.task import Task


@dataclass(frozen=True)
class Foreseen:
    """Rows that a study will measure, at most, as far as that can be known before its search.

    `search` rows are asked with heads knocked out, as a budget counts them, and `intact` ones
    without; `checks` are those of all stages after the search, and `recount` counts them, with
    their work, once it has ended. `work` adds up how long all of them take.
    """

    search: int
    intact: int
    checks: int
    work: float
    recount: Callable[[Any], tuple[int, float]]  # of the Stages that a search leaves
    stored: int = 0  # rows that lie in the folder, beside all these

    def announce(self, task: str, model: str, heads: int, progress: Progress) -> None:
        """Say what will be done, and how many rows it takes."""
        tell(
            progress,
            f"{called(task)} in {called(title_of(model) or model)}: a search among {heads} heads "
            f"with up to {self.search:,} rows (as its budget counts them) and {self.intact:,} of "
            f"the intact model, then up to {self.checks:,} rows of checks."
            + (f" {self.stored:,} rows more are here from before." if self.stored else ""),
        )
        expect(progress, self.search + self.intact + self.checks, self.work)

    def announce_checks(self, stages: Any, progress: Progress) -> None:
        """Say what is still to come once a search has ended: it may have ended early."""
        rows, work = self.recount(stages)
        takes = f"take up to {rows:,} rows" if rows else "need no further rows"
        tell(progress, f"the search has ended: its checks {takes}.")
        expect(progress, rows, work)


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
        estimate, intact = conclusion.estimate(), conclusion.first.intact
        factor, unit, form = 1, "", "+.3g"
        if is_binary(intact):
            estimate = estimate.within(np.array([*intact.values()]))
            factor, unit, form = 100, " points", "+.1f"
        effect, low, high = (factor * e for e in (estimate.effect, estimate.low, estimate.high))
        heads = [
            f"{self.grid.heads[c]} {effect[c]:{form}} ({low[c]:{form}} to {high[c]:{form}})"
            for c in sorted(columns, key=lambda column: effect[column])
        ]
        tell(self.progress, f"so far: {', '.join(heads)}{unit}")
