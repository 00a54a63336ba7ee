"""Every method on the demo model's capabilities, against every head alone and greedy's five.

All runs of a capability share one store, where a row is kept by its mask and its example.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import rivals
from caploc import designs
from caploc.engine import BatchEngine
from caploc.measurement import Meter
from caploc.progress import Silent
from caploc.search import METHODS, Problem, Settings, column_mask
from caploc.store import Store
from caploc.tasks.catalog import DEMO_CAPABILITIES, TaskOptions
from caploc.workbench import ModelOptions, Workbench
from driving import Done
from gradients import graded
from measuring import say
from metering import metered
from simulator import START, Trial
from truths import Scores, Truth, cells, scores

NAMES = (*DEMO_CAPABILITIES, "sentences")
FOLDER = Path("build/bench/recovery")
TOP = 5
BUDGETS = (500, 1000, 2000)
FINDING = 150  # examples that rows are scattered over
CROSSED = 50  # examples of the methods that ask every mask on all of them
GRADED = 100  # examples whose gradients are taken
GREEDY = 100  # examples of the greedy search
HELD_OUT = 128  # examples of the damage, on which nothing is found
SPLIT = 77  # seed of the held-out examples
RATE = 0.05  # of the crossed methods
CLEAR = 0.05  # q below which a head alone counts as doing something

Entry = dict[str, Any]


@dataclass(frozen=True)
class Extent:
    """How much is run."""

    seeds: int = 5
    budgets: tuple[int, ...] = BUDGETS
    truth: int = 512  # examples of the census
    methods: tuple[str, ...] = ()  # none: all


@dataclass
class Capability:
    """A task of the demo model, with its store open and its examples divided."""

    name: str
    engine: BatchEngine
    meter: Meter
    held_out: list[int] = field(init=False)
    pool: list[int] = field(init=False)

    def __post_init__(self) -> None:
        """Keep the held-out examples away from all searches."""
        order = designs.draw_examples(self.size, self.size, seed=SPLIT)
        count = min(HELD_OUT, self.size // 4)
        self.held_out, self.pool = order[:count], order[count:]

    @property
    def size(self) -> int:
        """Examples of the task."""
        return int(self.meter.task.size)

    @property
    def heads(self) -> int:
        """Heads of the model."""
        return self.engine.grid.size

    def drop(self, columns: Sequence[int]) -> float:
        """The loss of score on the held-out examples with these heads gone."""
        before, after = (
            np.nanmean([row.outcome for row in self.under(column_mask(self.heads, cut))])
            for cut in ([], columns)
        )
        return float(before - after)

    def under(self, mask: np.ndarray) -> list[Any]:
        """Rows of the held-out examples."""
        return self.meter.under(mask, self.held_out, Silent(), "held out")

    def names(self, columns: Sequence[int]) -> list[str]:
        """Heads by name."""
        heads = self.engine.grid.heads
        return [str(heads[column]) for column in columns]


def run_capability(name: str, extent: Extent) -> Entry:
    """The truth of a capability, and every method's scores for every seed."""
    torch.set_num_threads(1)
    model = ModelOptions("demo", device="cpu")
    (task,) = model.tasks([f"demo/{name}"], TaskOptions())
    engine = model.engine()
    with Store(FOLDER / name / "rows.sqlite") as store:
        capability = Capability(name, engine, Workbench(engine, store).meter(task))
        known = census(capability, extent.truth)
        best = capability.drop(known["greedy"])
        truth = Truth(
            effects=np.array(known["effects"]),
            wanted=frozenset(known["wanted"]),
            damage=lambda columns: capability.drop(columns) / best if best > 0 else float("nan"),
        )
        runs: dict[tuple[str, str], list[Scores]] = {}
        for seed in range(extent.seeds):
            for method, setting, done in outcomes(capability, seed, extent):
                found = scores(done, truth, TOP)
                runs.setdefault((method, setting), []).append(found)
        return described(capability, known, best) | {"cells": cells(runs)}


def census(capability: Capability, count: int) -> Entry:
    """Every head alone on so many examples, and greedy's five; kept in a file."""
    file = FOLDER / capability.name / f"truth-{count}.json"
    fingerprint = capability.engine.loaded.fingerprint
    kept = json.loads(file.read_text()) if file.is_file() else {}
    if kept.get("model") == fingerprint:
        return dict(kept)
    say(f"{capability.name}: every head alone")
    examples = (capability.held_out + capability.pool)[:count]
    problem = Problem(capability.heads, examples, Settings(top=TOP))
    alone = metered(METHODS["one-shot"].search(problem), [capability.meter]).found.estimate
    say(f"{capability.name}: greedy")
    problem = replace(problem, examples=capability.pool[:GREEDY])
    greedy = metered(METHODS["greedy"].search(problem), [capability.meter])
    found = {
        "model": fingerprint,
        "effects": alone.effect.tolist(),
        "wanted": [column for column in alone.needed(TOP) if alone.q[column] < CLEAR],
        "greedy": greedy.found.ranking[:TOP],
        "greedy_rows": greedy.rows,
    }
    file.write_text(json.dumps(found) + "\n")
    return found


def described(capability: Capability, known: Entry, best: float) -> Entry:
    """The truth, for the reader."""
    intact = np.nanmean(
        [row.outcome for row in capability.under(column_mask(capability.heads, []))]
    )
    names = capability.names(known["wanted"])
    effects = [round(known["effects"][column], 3) for column in known["wanted"]]
    return {
        "intact": round(float(intact), 4),
        "wanted": dict(zip(names, effects, strict=True)),
        "greedy": capability.names(known["greedy"]),
        "greedy_drop": round(best, 4),
        "greedy_rows": known["greedy_rows"],
    }


def outcomes(capability: Capability, seed: int, extent: Extent) -> Iterator[tuple[str, str, Done]]:
    """Every method with one seed: its name, its setting and what it found."""
    order = designs.generator(seed).permutation(capability.pool).tolist()
    for trial in trials(seed, extent.budgets, capability.heads):
        if extent.methods and trial.method not in extent.methods:
            continue
        problem = Problem(
            heads=capability.heads,
            examples=order[: trial.examples],
            settings=trial.settings,
            fresh=order[trial.examples :] if trial.fresh else (),
            chance=capability.meter.task.chance,
        )
        yield trial.method, trial.setting, metered(trial.search(problem), [capability.meter])
        say(f"{capability.name}, seed {seed}: {trial.method}, {trial.setting}")
    problem = Problem(capability.heads, order[:GRADED], Settings(seed=seed, top=TOP))
    loaded = capability.engine.loaded
    for method, done in graded(loaded, capability.meter, problem, extent.methods):
        yield method, f"{GRADED} examples", done
        say(f"{capability.name}, seed {seed}: {method}")


def trials(seed: int, budgets: Sequence[int], heads: int) -> list[Trial]:
    """Every method at every budget."""
    found = []
    for rows in budgets:
        setting = f"{rows:,}"
        for goal in ("heads", "set"):
            settings = Settings(seed=seed, goal=goal, budget=rows, recall=1.0)
            search = METHODS["adaptive"].search
            found.append(Trial(f"adaptive ({goal})", setting, search, settings, FINDING, 1))
        free = Settings(seed=seed, budget=rows, rate=START)
        masks = Settings(seed=seed, masks=rows // CROSSED, rate=RATE)
        alone = rows // heads
        found += [
            Trial("flat rows", setting, rivals.flat, free, FINDING),
            Trial("css", setting, METHODS["css"].search, masks, CROSSED),
            Trial("csb", setting, METHODS["csb"].search, masks, CROSSED),
            Trial("ridge regression", setting, rivals.regression, masks, CROSSED),
            Trial("one-shot", setting, METHODS["one-shot"].search, Settings(seed=seed), alone),
            Trial("halving", setting, rivals.halving, free, FINDING),
        ]
    own = Settings(seed=seed)
    search = METHODS["adaptive"].search
    return [*found, Trial("adaptive (own stop)", "default", search, own, FINDING, 1)]
