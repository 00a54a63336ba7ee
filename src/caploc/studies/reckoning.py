"""A study gone through without a model: which rows it would ask for, at most.

The stages are the study's own. Only the answers are pretended: rows that the store has are what
they are, all others say that some heads, drawn at random, are needed for nearly every example. A
search then names as many heads as it may, which is what its check costs most for; and an adaptive
one is told never to be sure, so that it goes on to the end of its budget.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast
from zlib import crc32

import numpy as np

from caploc import designs
from caploc.findings import Stages
from caploc.heads import Mask
from caploc.measurement import Cost, HeadModel, Meter
from caploc.progress import Progress, Silent
from caploc.result import Score
from caploc.store import Question, Row
from caploc.store.store import Known, stored_rows
from caploc.study import CHECKED, Study, locate, validated
from caploc.tasks.task import Generate, Generated, Request, Response, Scored, Task, responses_json
from caploc.workbench import Workbench

NEVER = 2.0  # a recall that no search expects
RIGHT = 0.9  # share of examples that the pretended model gets right
HARMED = 0.9  # share of them that it loses without a needed head


@dataclass
class Shelf:
    """The rows that there are, and those that studies reckoned before this one will have left.

    `needed` is the number of heads that pretended answers need.
    """

    path: Path
    needed: int
    rows: dict[Question, Known] = field(default_factory=dict)
    stored: dict[Question, set[tuple[bytes, str]]] = field(default_factory=dict)

    def of(self, question: Question) -> Known:
        """The rows of a question; new ones may be added."""
        if question not in self.rows:
            self.rows[question] = stored_rows(self.path, question)
            self.stored[question] = set(self.rows[question])
        return self.rows[question]


class Pretended(Meter):
    """A meter that makes up the outcomes of open rows, and writes down which they were."""

    def __init__(self, shelf: Shelf, task: Task, question: Question, cost: Cost, heads: int):
        """Take what the shelf has of the question."""
        self.task, self.cost, self.known = task, cost, shelf.of(question)
        self.stored = shelf.stored[question]
        self.counted = set()
        self.fresh: list[tuple[Mask, int]] = []
        self.salt = question.digest()
        random = designs.generator(crc32(self.salt.encode()))
        self.needed = random.permutation(heads)[: shelf.needed]

    def ask(
        self, todo: list[tuple[tuple[bytes, str], tuple[Mask, int]]], progress: Progress
    ) -> None:
        """Answer rows out of nothing."""
        for key, (mask, example) in todo:
            self.fresh.append((mask, example))
            written = responses_json(tuple(map(blank, self.task.requests(example))))
            self.known[key] = Row(
                *key, example, self.outcome(key, mask), None, written, 1.0, 1, 0.0
            )

    def outcome(self, key: tuple[bytes, str], mask: Mask) -> float:
        """The same for the same row, in whatever order rows are asked."""
        right = pseudorandom_number(self.salt, key[1]) < RIGHT
        # one luck for all masks: else a part of a set might seem to do more than the whole
        luck = pseudorandom_number(self.salt, key[1], "harm")
        harmed = bool(mask[self.needed].any()) and luck < HARMED
        if self.task.outcome_kind == "logprob":
            return -1.0 - luck - 3.0 * harmed
        return float(right and not harmed)

    def score(self, rows: Sequence[Row]) -> Score:
        """The mean outcome, whatever the task would make of it."""
        scored = [row.outcome for row in rows if not math.isnan(row.outcome)]
        return Score.of(float(np.mean(scored)) if scored else None, None, len(scored))


def pseudorandom_number(*texts: str) -> float:
    """A number from 0 to 1 that the texts decide."""
    return crc32(" ".join(texts).encode()) / 2**32


def blank(request: Request) -> Response:
    """A response that says nothing."""
    return Generated("", 0) if isinstance(request, Generate) else Scored(-1.0, False, 1)


@dataclass
class StudiesDryRun(Workbench[HeadModel]):
    """A workbench whose rows are pretended."""

    shelf: Shelf = field(default_factory=lambda: Shelf(Path(), 0))

    def make_meter(self, task: Task, question: Question) -> Pretended:
        """A pretended meter."""
        return Pretended(self.shelf, task, question, self.cost, self.engine.loaded.grid.size)

    def meter(self, task: Task) -> Pretended:
        """The pretended meter of a task."""
        return cast(Pretended, super().meter(task))


@dataclass(frozen=True)
class Reckoned:
    """What a study would ask: its tasks' meters, with their open rows, and counts of rows.

    `fresh` rows are to be measured; `stored` lie in the store; `shared` are measured by studies
    before this one. `unplanned` are those of the budget of which it is open what they will ask.
    """

    meters: list[Pretended]
    fresh: int
    stored: int
    shared: int
    unplanned: int


def reckon(
    study: Study, tasks: Sequence[Task], engine: Any, shelf: Shelf, progress: Progress | None = None
) -> Reckoned:
    """Go through a study's stages.

    Raises:
        UserError: if its tasks do not have the examples that it wants.
        StoreFailed: if the rows that there are cannot be read.
    """
    study.check_examples(tasks[0].size)
    bench = StudiesDryRun(engine, store=None, shelf=shelf)  # type: ignore[arg-type]
    endless = replace(study, settings=replace(study.settings, recall=NEVER))
    stages = locate(endless, bench, tasks, progress or Silent())
    meters = [bench.meter(tasks[0]), *(bench.meter(task.in_metric()) for task in tasks[1:])]
    unplanned = left_open(endless, stages, meters)
    validated(endless, bench, stages, tasks, progress or Silent())
    meters = [bench.meter(task) for task in (tasks[0], *(task.in_metric() for task in tasks))]
    meters = list(dict.fromkeys(meters))
    used = sum(len(meter.counted) for meter in meters)
    stored = sum(len(meter.counted & meter.stored) for meter in meters)
    fresh = sum(len(meter.fresh) for meter in meters)
    # with nothing pretended the search went as it did, and ended where it ended
    return Reckoned(meters, fresh, stored, used - stored - fresh, unplanned if fresh else 0)


def left_open(study: Study, stages: Stages, meters: Sequence[Pretended]) -> int:
    """Rows that the search, or the check of what it found, might ask for beyond the pretended ones.

    A search that spends a budget may spend all of it, and look at every example intact; and it may
    name as many heads as are wanted.
    """
    checked = min(CHECKED, study.limit or CHECKED, len(stages.kept or stages.examples))
    # with each head a set has three parts more: itself, a beginning, and all but it
    left = 3 * max(study.settings.top - len(stages.found.chosen), 0) * checked
    budget = stages.found.diagnostics.get("budget")
    if budget is not None:
        asked = sum(any(mask) for meter in meters for mask, _ in meter.counted)
        looked = {example for mask, example in meters[0].counted if not any(mask)}
        left += max(int(budget) - asked, 0)
        left += len({meters[0].task.key(example) for example in stages.seen} - looked)
    return left
