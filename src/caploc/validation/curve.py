"""Scores with none, one, two and more of a run's heads knocked out, the most needed first."""

from collections.abc import Sequence

import numpy as np

from caploc.contents import Curve
from caploc.cost import Cost
from caploc.heads import HeadGrid
from caploc.measurement import Meter
from caploc.progress import Progress
from caploc.result import SCHEMA, RunCost, Score
from caploc.search import Plan
from caploc.store import Row

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
        size = len(examples)
        curves[meter.task.name] = [
            meter.score(rows[first : first + size]) for first in range(0, len(rows), size)
        ]
        cost.count(each_once(rows))
    counted = RunCost.model_validate(cost.as_dict())
    return Curve(schema=SCHEMA, heads=list(heads), curves=curves, cost=counted)


def each_once(rows: Sequence[Row]) -> list[Row]:
    """Leave out rows that stand there before: examples may be alike."""
    return list({(row.mask, row.example): row for row in rows}.values())
