"""Every method on planted models, whose responsible heads are known because they were put there.

The adaptive search, css and one-shot run as whole studies of a loaded model, checks included.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from caploc.engine import BatchEngine
from caploc.search import Problem, Settings
from caploc.store import Store
from caploc.study import Study, run_study
from caploc.tasks.catalog import TaskOptions
from caploc.workbench import ModelOptions, Workbench
from clock import Stopwatch
from fixtures import Planted, Truth, write_planted
from gradients import graded
from measuring import say
from truths import Scores, cells, share

LAYERS, HEADS = 16, 32
NEEDED = tuple(range(1, 11))
CROSSED = 100  # examples of one-shot and of css
SCORED = 100  # examples of every final score
ALL = 0.99  # expected recall that the adaptive search goes on to: every planted head is wanted
PART = 10  # the adaptive search gets one row for so many of one-shot's

Entry = dict[str, Any]


@dataclass(frozen=True)
class Garden:
    """A planted model on disk, loaded."""

    folder: Path
    plan: Planted
    truth: Truth
    engine: BatchEngine

    @property
    def options(self) -> ModelOptions:
        """How studies name the model."""
        return ModelOptions(str(self.folder), device="cpu")

    def task(self, name: str) -> str:
        """The path of a task of the model."""
        return str(self.folder / f"{name}.yaml")


def run_planted(needed: int, layers: int, heads: int, methods: tuple[str, ...]) -> Entry:
    """Plant so many needed heads, one universal one and one or two backups; have them found."""
    torch.set_num_threads(1)
    backups = min(needed, 1 + needed % 2)
    plan = Planted(layers, heads, needed=needed, backups=backups, universal=1, seed=needed)
    with TemporaryDirectory() as place:
        folder = Path(place) / "model"
        truth = write_planted(folder, plan)
        engine = ModelOptions(str(folder), device="cpu").engine()
        garden = Garden(folder, plan, truth, engine)
        runs = {}
        for method, found in outcomes(garden, methods):
            runs[method, ""] = [found]
            say(f"{needed} planted: {method}, {found}")
    return {
        "heads": layers * heads,
        "backups": backups,
        "planted": {str(head): cost for head, cost in truth.needed.items()},
        "cells": cells(runs),
    }


def outcomes(garden: Garden, methods: tuple[str, ...]) -> Iterator[tuple[str, Scores]]:
    """What every method found."""
    alone = CROSSED * garden.plan.layers * garden.plan.heads
    top, seed = garden.plan.needed, garden.plan.seed
    ways = {
        "adaptive": Settings(top=top, seed=seed, budget=alone // PART, recall=ALL),
        "css": Settings(top=top, seed=seed, masks=100, rate=0.02),
        "one-shot": Settings(top=top, seed=seed),
    }
    for method, settings in ways.items():
        if not methods or method in methods:
            yield method, studied(garden, method, settings)
    (task,) = garden.options.tasks([garden.task("planted")], TaskOptions())
    grid = garden.engine.grid
    with Store(garden.folder / "gradients" / "rows.sqlite") as store:
        meter = Workbench(garden.engine, store).meter(task)
        problem = Problem(grid.size, list(range(CROSSED)), Settings(top=top, seed=seed))
        for method, done in graded(garden.engine.loaded, meter, problem, methods):
            order, named = (
                [str(grid.heads[column]) for column in columns]
                for columns in (done.found.ranking, done.found.chosen)
            )
            seconds = {"rows": float(done.rows), "seconds": done.thinking + done.measuring}
            yield method, judged(garden.truth, order, named) | seconds


def studied(garden: Garden, method: str, settings: Settings) -> Scores:
    """A study of the planted task, and what it named."""
    study = Study(
        model=garden.options,
        task=garden.task("planted"),
        method=method,
        settings=settings,
        examples=None if method == "adaptive" else CROSSED,
        other_tasks=(garden.task("other"),),
        controls=0,
        limit=SCORED,
    )
    watch = Stopwatch()
    result = run_study(study, garden.folder / method, engine=garden.engine).result.as_dict()
    seconds = watch.read().wall
    rows = result["search"].get("rows", result["fit"]["rows"])
    apart = set(result["search"]["universal"])
    order = [row["head"] for row in result["heads"]]
    found = judged(garden.truth, order, result["top"])
    return found | {
        "rows": float(rows),
        "seconds": seconds,
        "universal": float(apart == set(map(str, garden.truth.universal))),
    }


def judged(truth: Truth, order: list[str], named: list[str]) -> Scores:
    """How many needed heads come first in the order, and whether just those are named.

    The universal head counts for nothing: only the adaptive search can tell it apart.
    """
    apart, needed = set(map(str, truth.universal)), set(map(str, truth.needed))
    first = [head for head in order if head not in apart][: len(needed)]
    named = [head for head in named if head not in apart]
    return {
        "recall": share(needed, first),
        "recall named": share(needed, named),
        "others": float(len(set(named) - needed)),
        "exact": float(set(named) == needed),
    }
