"""What exhibits ask for, measured: models in turn, one store, every answer found once."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import sqrt
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from scipy.stats import binomtest

from caploc.components import Head
from caploc.errors import BadOption
from caploc.folder import claim
from caploc.measurement import search
from caploc.models.loading import LoadedModel
from caploc.progress import Progress
from caploc.recovery import smoothed
from caploc.reproduce.preset import Benchmark, Preset, PresetModel
from caploc.result import Change, number
from caploc.search import METHODS, Found, Problem, Search
from caploc.stats.chance import DRAWS
from caploc.store import Store
from caploc.tasks.catalog import wants_chat_template
from caploc.tasks.task import Task
from caploc.validation import Comparison, score_both
from caploc.validation.failures import categorize_failures
from caploc.workbench import Workbench

Heads = Sequence[Head]


@dataclass(frozen=True)
class ScoredTask:
    """A benchmark's score intact and with some heads knocked out, on the same examples.

    Scores and `drop`, what the knockout takes, are in the benchmark's own unit; errors are over
    examples, `drop_stderr` of paired differences. None is what is not defined or not known.
    """

    intact: float | None
    intact_stderr: float | None
    score: float | None
    stderr: float | None
    drop: float | None
    drop_stderr: float | None
    examples: int
    chance: float
    ends: tuple[float, float] | None = None

    def unsure(self, heads: Heads) -> "ScoredTask":
        """The same, its errors at least what a sample of this size leaves open.

        Where all examples are right, all wrong, or all changed alike, nothing varies and the plain
        error is 0. A score then has that of two more right and two more wrong answers (Agresti and
        Coull, 1998) and, as `ends`, Wilson's interval; a drop that of half a pair more of each of
        the four kinds of matched pairs (Agresti and Min, 2005). Without heads nothing can change.
        """
        n = self.examples
        changes: dict[str, Any] = {}
        for value, error in ((self.intact, "intact_stderr"), (self.score, "stderr")):
            if n and value in (0.0, 1.0) and not getattr(self, error):
                share = (value * n + 2) / (n + 4)
                changes[error] = sqrt(share * (1 - share) / (n + 4))
        if "stderr" in changes and self.score is not None:
            whole = binomtest(round(self.score * n), n).proportion_ci(method="wilson")
            changes["ends"] = float(whole.low), float(whole.high)
        if heads and n and self.drop in (-1.0, 0.0, 1.0) and not self.drop_stderr:
            changes["drop_stderr"] = smoothed(np.full(n, -self.drop))[1]
        return replace(self, **changes)


@dataclass(frozen=True)
class Searched:
    """What a search found, and what it took.

    `ranking` holds the heads whose loss costs something, the most needed first; the search itself
    names the first `chosen` of them. `rows` are those asked with heads knocked out on the examples
    that heads are found on, and `masks` how many times all of these examples that is; rows that
    only check are not counted. `steps` are heads taken one after another, and what each added to
    the loss.
    """

    ranking: tuple[Head, ...]
    chosen: int
    masks: int
    rows: int
    told: dict[str, Any]
    steps: tuple[tuple[Head, float | None], ...] = ()


class Lab(Protocol):
    """What exhibits need.

    `struck` keeps each model's universal heads, by its label, once they are known. `draws` is the
    number of random sets of heads that chance is told from: 1 where no number will be read.
    """

    preset: Preset
    draws: int
    struck: dict[str, list[Head]]

    def score(
        self, model: PresetModel, benchmark: Benchmark, heads: Heads, limit: int | None = None
    ) -> ScoredTask:
        """Score a benchmark with heads knocked out, against none; on fewer examples if told."""
        ...

    def failures(self, model: PresetModel, benchmark: Benchmark, heads: Heads) -> dict[str, Any]:
        """Tell how the knocked-out model fails."""
        ...

    def search(
        self, model: PresetModel, benchmark: Benchmark, label: str, excluded: Heads = ()
    ) -> Searched:
        """Find heads for a benchmark by a search of the preset, some heads left in."""
        ...


@dataclass
class Laboratory:
    """Measures what exhibits ask for, on one model after another; `known` has what it found."""

    preset: Preset
    folder: Path
    store: Store
    progress: Progress
    allow_code: bool = False
    struck: dict[str, list[Head]] = field(default_factory=dict)
    draws: int = DRAWS
    known: dict[tuple[object, ...], Any] = field(default_factory=dict)
    loaded: dict[str, Workbench[LoadedModel]] = field(default_factory=dict)
    tasks: dict[tuple[str, str, str], Task] = field(default_factory=dict)

    def bench(self, model: PresetModel) -> Workbench[LoadedModel]:
        """The model, loaded; the one before makes room.

        Its tasks come first, so that what is wrong with one is said before weights are read.
        """
        if model.label not in self.loaded:
            for benchmark in self.preset.benchmarks:
                self.task(model, benchmark, benchmark.task)
                if benchmark.localize:
                    self.task(model, benchmark, benchmark.searched)
            self.loaded.clear()
            gc.collect()  # a model is full of cycles
            self.loaded[model.label] = Workbench(model.options().engine(), self.store)
        return self.loaded[model.label]

    def task(self, model: PresetModel, benchmark: Benchmark, name: str) -> Task:
        """A benchmark's task, or the one that heads are found on, as this model is asked it.

        Raises UserError if it cannot be loaded, or what it measures is better when lower.
        """
        chatting = benchmark.chat_template or wants_chat_template(name)
        key = (model.label if chatting else "", benchmark.label, name)
        if key not in self.tasks:
            (task,) = model.options().tasks([name], benchmark.options(self.allow_code))
            if not task.higher_is_better:
                raise BadOption(
                    f"Benchmark {benchmark.label}: {task.metric} of {name} is better when lower, "
                    "and a drop is of a score that is better when higher; choose another metric."
                )
            self.tasks[key] = task
        return self.tasks[key]

    def score(
        self, model: PresetModel, benchmark: Benchmark, heads: Heads, limit: int | None = None
    ) -> ScoredTask:
        return self.compare(model, benchmark, heads, limit)[0].unsure(heads)

    def failures(self, model: PresetModel, benchmark: Benchmark, heads: Heads) -> dict[str, Any]:
        return self.compare(model, benchmark, heads, None)[1]

    def compare(
        self, model: PresetModel, benchmark: Benchmark, heads: Heads, limit: int | None
    ) -> tuple[ScoredTask, dict[str, Any]]:
        """Measure the score and the failures."""
        limits = [number for number in (limit, self.preset.limit) if number is not None]
        most = min(limits, default=None)
        key = (model.label, repr(benchmark), frozenset(heads), most)
        if key not in self.known:
            bench, task = self.bench(model), self.task(model, benchmark, benchmark.task)
            mask = bench.engine.loaded.grid.mask(heads)
            what = score_both(bench.meter(task), mask, task.first(most), self.progress)
            found = categorize_failures(task, what.intact_rows, what.knocked_out_rows)
            self.known[key] = score_with_change(what), found.as_dict()
        score, failures = self.known[key]
        return score, failures

    def search(
        self, model: PresetModel, benchmark: Benchmark, label: str, excluded: Heads = ()
    ) -> Searched:
        key = (model.label, repr(benchmark), label, frozenset(excluded))
        if key not in self.known:
            spec, bench = self.preset.search(label), self.bench(model)
            grid, task = bench.engine.loaded.grid, self.task(model, benchmark, benchmark.searched)
            starts = task.first(1) if benchmark.each_part else [0]
            sizes = np.diff([*starts, task.size]).tolist()
            problem = self.preset.problem(spec, grid, sizes, excluded)
            problem = replace(problem, chance=task.chance)
            tally: list[int] = []
            generator = tallied(METHODS[spec.method].search(problem), problem, tally)
            found = search({problem.probe: bench.meter(task)}, generator, self.progress)
            self.known[key] = Searched(
                ranking=tuple(grid.components[column] for column in needed_columns(found)),
                chosen=len(found.chosen),
                masks=round(sum(tally) / len(problem.examples)),
                rows=sum(tally),
                told=found.diagnostics,
                steps=tuple(
                    (grid.components[step["head"]], step["added"])
                    for step in found.diagnostics.get("steps", ())
                ),
            )
        searched: Searched = self.known[key]
        return searched


def needed_columns(found: Found) -> list[int]:
    """Columns that a search found: those named, and others of a negative effect, in its order.

    The rest of a ranking stands in the order of the grid, and nobody found it.
    """
    effect = found.estimate.effect
    return [column for column in found.ranking if column in found.chosen or effect[column] < 0]


def tallied(search: Search, problem: Problem, tally: list[int]) -> Search:
    """The same search; how many rows its plans ask, but intact ones and those that only check."""
    plan = next(search)
    while True:
        if plan.masks.any():
            tally.append(int((~np.isin(plan.example, problem.fresh)).sum()))
        measured = yield plan
        try:
            plan = search.send(measured)
        except StopIteration as end:
            found: Found = end.value
            return found


def score_with_change(comparison: Comparison) -> ScoredTask:
    """The score and its paired change."""
    intact, cut, change = comparison.intact, comparison.knocked_out, comparison.change or Change()
    before, after = number(intact.score), number(cut.score)
    drop = None if before is None or after is None else before - after
    errors = number(intact.stderr), number(cut.stderr), number(change.stderr)
    examples, chance = cut.examples or 0, comparison.task.chance
    return ScoredTask(before, errors[0], after, errors[1], drop, errors[2], examples, chance)


@contextmanager
def open_laboratory(
    preset: Preset, folder: Path, progress: Progress, command: str, *, allow_code: bool = False
) -> Iterator[Laboratory]:
    """Open a laboratory in a folder; rows that lie there are used.

    Raises UserError if the folder belongs to something else.
    """
    with claim(folder, {"reproduce": preset.name}, command) as store:
        yield Laboratory(preset, folder, store, progress, allow_code)
