"""What a finding is checked on, and a task's score intact and with the chosen heads knocked out.

With all of them, and with the first 0, 1, 2 ...; and how often answers change though nothing else
did, the same rows being asked in other batches. In bfloat16 and float16 the last digits of a sum
depend on the order of its terms, and so on the batch that a row is in; where two answers are nearly
tied, that decides between them.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from caploc import designs
from caploc.contents import Curve
from caploc.cost import Cost
from caploc.errors import BadOption
from caploc.heads import Columns, HeadGrid, Mask, Masks
from caploc.measurement import Meter, outcomes_by_example
from caploc.progress import Progress
from caploc.recovery.paired import falls_short, paired
from caploc.result import (
    SCHEMA,
    Change,
    Failures,
    Noise,
    RunCost,
    Score,
    TaskComparison,
    number,
)
from caploc.search import Found, Plan, column_mask
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
        return [self.meter.score(each).score for each in by_mask(rows, len(self.examples))]

    def outcomes(self, masks: Masks, what: str) -> Float[np.ndarray, "masks examples"]:
        """Outcomes of every mask on every example; NaN where one could not be scored."""
        rows = self.meter.measure(Plan.crossed(masks, self.examples), self.progress, what)
        values = np.array([row.outcome for row in rows], dtype=float)
        return values.reshape(len(masks), len(self.examples))

    def without(self, sets: Sequence[Columns], what: str) -> list["Outcomes"]:
        """Outcomes of every example without each of the sets."""
        return [*self.outcomes(np.stack([column_mask(self.grid.size, s) for s in sets]), what)]


def by_mask(rows: list[Row], examples: int) -> Iterator[list[Row]]:
    """Yield the rows of each mask, of a plan that crosses masks and so many examples."""
    for first in range(0, len(rows), examples):
        yield rows[first : first + examples]


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


CURVED = 100  # examples of each task, at most, that a run draws its own curve on


def draw_curve(
    grid: HeadGrid,
    heads: Sequence[str],
    judged: Sequence[tuple[Meter, Sequence[int]]],
    progress: Progress,
) -> Curve:
    """Score each task with the first 0, 1, ... of the heads out, on the examples beside its meter.

    The cost is that of these rows, whether they were measured now or before. Raises RunFailed if
    the machine gives up; rows already measured are kept.
    """
    masks = np.stack([grid.mask(heads[:count]) for count in range(len(heads) + 1)])
    curves: dict[str, list[Score]] = {}
    cost = Cost()
    for meter, examples in judged:
        what = f"{meter.task.name}, curve"
        rows = meter.measure(Plan.crossed(masks, examples, what=what), progress, what)
        curves[meter.task.name] = list(map(meter.score, by_mask(rows, len(examples))))
        cost.count(list({(row.mask, row.example): row for row in rows}.values()))  # each once
    counted = RunCost.model_validate(cost.as_dict())
    return Curve(schema=SCHEMA, heads=list(heads), curves=curves, cost=counted)


ROUNDED = ("bfloat16", "float16")  # number formats in which it is worth asking
REPEATED = 50  # rows


def measure_noise(
    intact: Sequence[Row], again: Meter, heads: int, seed: int, progress: Progress
) -> Noise | None:
    """Ask some of the intact rows once more, in another order; None if none could be scored."""
    scored = [row for row in intact if not math.isnan(row.outcome)]
    order = designs.generator(seed + designs.REPEATS).permutation(len(scored))[:REPEATED]
    first = [scored[number] for number in order]
    if not first:
        return None
    examples = [row.number for row in first]
    second = again.under(column_mask(heads, []), examples, progress, "noise of rounding")
    both = zip(first, second, strict=True)
    change = np.abs([one.outcome - other.outcome for one, other in both])
    change = change[np.isfinite(change)]
    if not len(change):
        return None
    return Noise(rows=len(change), changed=int((change > 0).sum()), floor=float(change.mean()))


def above_noise(found: Found, noise: Noise | None) -> Found:
    """Name no head whose effect is as small as what changes by rounding alone; say so."""
    if noise is None:
        return found
    kept = [c for c in found.chosen if abs(found.estimate.effect[c]) > noise.floor]
    if dropped := len(found.chosen) - len(kept):
        heads = "One head is" if dropped == 1 else f"{dropped} heads are"
        note = (
            f"{heads} not named for an effect no larger than what rounding does: asked again in "
            f"other batches, {noise.changed} of {noise.rows} intact answers changed. Use "
            "--dtype float32 to see smaller effects."
        )
        return replace(found, chosen=kept, notes=[note, *found.notes])
    return found
