"""What a finding is checked on, and a task's score intact and with the chosen heads knocked out."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from caploc.errors import BadOption
from caploc.heads import HeadGrid, Mask, Masks
from caploc.measurement import Meter, outcomes_by_example
from caploc.progress import Progress
from caploc.recovery import falls_short, paired
from caploc.result import Change, Failures, Score, TaskComparison, number
from caploc.search import Plan
from caploc.store import Row
from caploc.tasks.task import Task


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


def scored_everywhere(
    outcomes: Float[np.ndarray, "masks examples"],
) -> Float[np.ndarray, "masks scored"]:
    """Keep the examples that could be scored under every mask."""
    return outcomes[:, np.isfinite(outcomes).all(axis=0)]


Outcomes = Float[np.ndarray, " examples"]
Scored = Float[np.ndarray, " scored"]


def scored_both(before: Outcomes, after: Outcomes) -> tuple[Scored, Scored, bool]:
    """Keep the examples scored in both; tell whether all of these are right or wrong."""
    both = np.isfinite(before) & np.isfinite(after)
    before, after = before[both], after[both]
    return before, after, bool(np.isin([before, after], (0.0, 1.0)).all())


MARGIN = 0.03  # change of an accuracy that counts as none
LEVEL = 0.05  # chance that as large a fall, or rise, is called none


@dataclass(frozen=True)
class Comparison:
    """A task's rows with no head and with the chosen heads knocked out, on the same examples."""

    task: Task
    intact: Score
    knocked_out: Score
    intact_rows: list[Row]
    knocked_out_rows: list[Row]

    @property
    def change(self) -> Change | None:
        """What the knockout changes; None if no example was scored in both."""
        return measure_change(self.intact_rows, self.knocked_out_rows)

    def result(self, failures: Failures | None) -> TaskComparison:
        return TaskComparison(
            name=self.task.name,
            metric=self.task.metric,
            higher_is_better=self.task.higher_is_better,
            intact=self.intact,
            knocked_out=self.knocked_out,
            change=self.change,
            failures=failures,
        )


def score_both(
    meter: Meter, knocked_out: Mask, examples: Sequence[int], progress: Progress
) -> Comparison:
    """Score a task intact and under the mask, on these examples."""
    empty = np.zeros(knocked_out.shape, dtype=bool)
    intact = meter.under(empty, examples, progress, f"{meter.task.name}, intact")
    cut = meter.under(knocked_out, examples, progress, f"{meter.task.name}, knocked out")
    return Comparison(meter.task, meter.score(intact), meter.score(cut), intact, cut)


def measure_change(intact: Sequence[Row], knocked_out: Sequence[Row]) -> Change | None:
    """Mean change of the outcome over examples scored in both, with its 95 % interval.

    `low` and `high` are those of `paired`; they and `stderr` are None with a single example.
    `verdict` says whether the change is beyond doubt (`changed`), within `MARGIN` points of none
    for sure (`unchanged`: the whole interval lies inside, and so it does by a test of either side
    at `LEVEL`, which the interval's ends do not keep), or neither (`open`); outcomes that are not 0
    and 1 have no margin.
    """
    differences, binary = scored_differences(intact, knocked_out)
    if not differences.size:
        return None
    count = differences.size
    stderr = float(differences.std(ddof=1)) / count**0.5 if count > 1 else None
    mean, low, high, _ = paired(differences, binary=binary)
    p = [falls_short(side * differences, MARGIN, binary=binary) for side in (1, -1)]
    return Change(
        outcome=mean,
        stderr=stderr,
        low=number(low),
        high=number(high),
        margin=MARGIN if binary else None,
        verdict=judge_change(low, high, MARGIN if binary and max(p) <= LEVEL else 0.0),
        examples=count,
    )


def scored_differences(
    intact: Sequence[Row], knocked_out: Sequence[Row]
) -> tuple[Float[np.ndarray, " examples"], bool]:
    """What each example scored in both changed by, and whether all are right or wrong."""
    before, after = outcomes_by_example(intact), outcomes_by_example(knocked_out)
    differences = np.array([after[e] - before[e] for e in before if e in after], dtype=float)
    return differences, set(before.values()) | set(after.values()) <= {0.0, 1.0}


def judge_change(low: float, high: float, margin: float) -> str:
    """What an interval says: changed, unchanged (within the margin), or open."""
    if low > 0 or high < 0:
        return "changed" if max(-low, high) > margin else "unchanged"
    return "unchanged" if low >= -margin and high <= margin else "open"


def check_limit(limit: int | None) -> None:
    """Refuse a limit that leaves nothing; raises BadOption if it is below 1."""
    if limit is not None and limit < 1:
        raise BadOption(f"--limit must be 1 or more; got {limit}.")
