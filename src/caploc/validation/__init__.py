"""Does a finding hold on what it has not seen: fresh examples, random heads, other tasks?

A task's score is told intact and with the chosen heads knocked out: with all of them, and with the
first 0, 1, 2 ...; and how often answers change though nothing else did, the same rows being asked
in other batches. In bfloat16 and float16 the last digits of a sum depend on the order of its terms,
and so on the batch that a row is in; where two answers are nearly tied, that decides between them.

On examples that the search never saw, everything is measured on the same ones: the chosen heads
together and each alone, and random sets of other heads.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from caploc import designs
from caploc.components import Grid, Mask, Masks
from caploc.contents import Curve
from caploc.measurement import Cost, Meter, outcomes_by_example
from caploc.progress import Progress
from caploc.recovery import falls_short, paired
from caploc.result import (
    SCHEMA,
    Change,
    Controls,
    HeldOut,
    Lost,
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

    `fresh` tells whether no search saw the examples; of a task with few, those of a search must do.
    """

    meter: Meter
    grid: Grid[Any]
    examples: Sequence[int]
    fresh: bool
    draws: int
    seed: int
    progress: Progress

    def measure(self, masks: Masks, what: str) -> list[Row]:
        """Measure every mask on every example."""
        plan = Plan.crossed(self.meter.task.name, masks, self.examples)
        return self.meter.measure(plan, self.progress, what)

    def scores(self, masks: Masks, what: str) -> list[float | None]:
        rows = self.measure(masks, what)
        return [self.meter.score(each).score for each in by_mask(rows, len(self.examples))]

    def outcomes(self, masks: Masks, what: str) -> Float[np.ndarray, "masks examples"]:
        """Outcomes of every mask on every example; NaN where one could not be scored."""
        rows = self.measure(masks, what)
        values = np.array([row.outcome for row in rows], dtype=float)
        return values.reshape(len(masks), len(self.examples))

    def without(self, sets: Sequence[Sequence[int]], what: str) -> list["Outcomes"]:
        """Outcomes of every example without each of the sets."""
        return [*self.outcomes(np.stack([column_mask(self.grid.size, s) for s in sets]), what)]


def by_mask(rows: list[Row], examples: int) -> Iterator[list[Row]]:
    """Yield the rows of each mask, of a plan that crosses masks and so many examples."""
    for first in range(0, len(rows), examples):
        yield rows[first : first + examples]


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
        return measure_change(self.intact_rows, self.knocked_out_rows)

    def result(self, lost: Lost | None = None) -> TaskComparison:
        return TaskComparison(
            name=self.task.name,
            metric=self.task.metric.name,
            higher_is_better=self.task.metric.higher_is_better,
            intact=self.intact,
            knocked_out=self.knocked_out,
            change=self.change,
            lost=lost,
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


def scored_differences(intact: Sequence[Row], knocked_out: Sequence[Row]) -> tuple[Scored, bool]:
    """What each example scored in both changed by, and whether all are right or wrong."""
    before, after = outcomes_by_example(intact), outcomes_by_example(knocked_out)
    differences = np.array([after[e] - before[e] for e in before if e in after], dtype=float)
    return differences, set(before.values()) | set(after.values()) <= {0.0, 1.0}


def judge_change(low: float, high: float, margin: float) -> str:
    """Say what an interval says: changed, unchanged (within the margin), or open."""
    if low > 0 or high < 0:
        return "changed" if max(-low, high) > margin else "unchanged"
    return "unchanged" if low >= -margin and high <= margin else "open"


DRAWN = 8  # times as many draws of controls as are wanted, of which the different ones are taken


def draw_curve(
    grid: Grid[Any],
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
        rows = meter.measure(Plan.crossed(meter.task.name, masks, examples), progress, what)
        curves[meter.task.name] = list(map(meter.score, by_mask(rows, len(examples))))
        cost.count(list({(row.mask, row.example): row for row in rows}.values()))  # each once
    counted = RunCost.model_validate(cost.as_dict())
    return Curve(schema=SCHEMA, heads=list(heads), curves=curves, cost=counted)


def held_out(check: Check, found: Found) -> tuple[HeldOut, Controls | None]:
    """Check everything that is checked on these examples."""
    chosen = column_mask(check.grid.size, found.chosen)
    compared = score_both(check.meter, chosen, check.examples, check.progress)
    shortlist = chosen.copy()
    shortlist[[*(found.stages.tried if found.stages else []), *found.critical]] = True
    return HeldOut(
        fresh=check.fresh,
        examples=len(check.examples),
        intact=compared.intact.score,
        knocked_out=compared.knocked_out.score,
        change=compared.change,
    ), controls(check, chosen, shortlist, compared.knocked_out.score)


def controls(check: Check, chosen: Mask, avoid: Mask, score: float | None) -> Controls | None:
    """Score without random other heads, as many in each layer; None without draws or heads.

    No draw is measured twice: of few heads in a layer there may be fewer than were asked for.
    """
    if not check.draws or not chosen.any():
        return None
    drawn = designs.layer_matched_masks(
        chosen, check.grid.strata, DRAWN * check.draws, seed=check.seed, avoid=avoid
    )
    _, first = np.unique(drawn, axis=0, return_index=True)
    masks = drawn[np.sort(first)[: check.draws]]
    if not masks.any(axis=1).all():
        return None
    scores = check.scores(masks, "random controls")
    known = np.array([each for each in scores if each is not None], dtype=float)
    return Controls(
        examples=len(check.examples),
        chosen=score,
        scores=scores,
        mean=float(known.mean()) if known.size else None,
        sd=float(known.std(ddof=1)) if known.size > 1 else None,
    )
