"""The heads paper again: its tables and figures from one command, on any models.

`preset` says what is measured on what, and reads it; `laboratory` measures; `selection` takes
universal heads out and knows the paper's figures; `exhibits` and `analyses` fill tables and
figures, whose words `exhibits.yaml` holds. `cnl` and `verdicts` do the same for the neurons paper,
`cnl_preset` says on what.

Here exhibits are filled, model after model, and written; or it is counted, without a model, what
that takes. For that the same exhibits are filled by a laboratory that measures nothing, and the
rows that it is asked for are counted, each once. It pretends that heads are found as the paper
finds them: a few universal ones, one that the subjects of knowledge share, and otherwise each
benchmark its own. Searches are driven by outcomes of chance, with which the settings that one tries
seldom agree: with a model they agree more often, and take the rows of fewer sets.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from caploc import designs
from caploc.cache import digest
from caploc.errors import pick, raise_together
from caploc.heads import Head
from caploc.progress import Progress, Silent, expect
from caploc.recovery import Measurements
from caploc.report.exhibits import Exhibit, Value, escape_markdown, write, write_index
from caploc.reproduce import analyses, exhibits
from caploc.reproduce.laboratory import (
    Heads,
    Lab,
    Laboratory,
    ScoredTask,
    Searched,
    open_laboratory,
)
from caploc.reproduce.preset import PEAK, Benchmark, Preset, PresetModel, SearchSpec, read_preset
from caploc.search import METHODS, Problem
from caploc.store import pack
from caploc.tasks.catalog import check_task_name

__all__ = ["EXHIBITS", "plan_exhibits", "read_preset", "reproduce"]

UNIVERSAL = 3  # heads; the paper names three or four a model
UNKNOWN_SIZE = 1000  # examples of a benchmark whose preset names no number
READING_SHARE, SAYING_SHARE = 0.4, 0.1  # of an H200's peak, which they are assumed to reach

Asked = list[tuple[bytes, int]]  # masks, packed, and the examples of each as the bits of a number


@dataclass
class Bill:
    """What one model would be asked, and what that would take."""

    model: str
    heads: int
    parameters: int
    masks: int = 0
    rows: int = 0
    read: int = 0  # tokens of prompts
    said: int = 0  # tokens of answers

    def add(self, benchmark: Benchmark, rows: int) -> None:
        """Rows of a mask; what all its prompts begin with is read once."""
        tokens = benchmark.tokens
        self.masks += 1
        self.rows += rows
        self.read += tokens.shared + rows * tokens.prompt
        self.said += rows * tokens.answer

    @property
    def hours(self) -> float:
        """On one H200 in bfloat16, at two operations a parameter and token; assumed."""
        work = 2 * self.parameters * (self.read / READING_SHARE + self.said / SAYING_SHARE)
        return work / PEAK / 3600

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"h200_hours": self.hours}


@dataclass
class PresetDryRun:
    """A laboratory that counts. `asked` holds of every task the masks and their examples so far."""

    preset: Preset
    struck: dict[str, list[Head]] = field(default_factory=dict)
    draws: int = 1
    bills: dict[str, Bill] = field(default_factory=dict)
    asked: dict[tuple[str, ...], dict[bytes, int]] = field(default_factory=dict)
    found: dict[tuple[str, ...], Searched] = field(default_factory=dict)

    def bill(self, model: PresetModel) -> Bill:
        if model.label not in self.bills:
            self.bills[model.label] = Bill(model.label, model.grid.size, model.parameters)
        return self.bills[model.label]

    def ask(self, model: PresetModel, benchmark: Benchmark, task: str, asked: Asked) -> None:
        """Count the rows that were not asked before."""
        key = (model.label, task, repr(benchmark.options(allow_code=True)))
        known, bill = self.asked.setdefault(key, {}), self.bill(model)
        for mask, examples in asked:
            before = known.get(mask, 0)
            if fresh := examples & ~before:
                known[mask] = before | examples
                bill.add(benchmark, fresh.bit_count())

    def score(
        self, model: PresetModel, benchmark: Benchmark, heads: Heads, limit: int | None = None
    ) -> ScoredTask:
        """Count the rows of `Lab.score`; the numbers are pretended."""
        examples = benchmark.examples or UNKNOWN_SIZE
        for most in (limit, self.preset.limit):
            examples = min(examples, (most or examples) * benchmark.parts)
        mask = model.grid.mask(heads)
        first = (1 << examples) - 1
        self.ask(model, benchmark, benchmark.task, [(pack(m), first) for m in (mask & False, mask)])
        lost = 0.5 if mask[:UNIVERSAL].any() else 0.01
        return ScoredTask(0.7, 0.01, 0.7 - lost, 0.01, lost, 0.01, examples, 0.0)

    def failures(self, model: PresetModel, benchmark: Benchmark, heads: Heads) -> dict[str, Any]:
        """Count the rows of `Lab.failures`; how a model fails is not known."""
        self.score(model, benchmark, heads)
        return {"verdict": None, "categories": {}, "samples": {}}

    def search(
        self, model: PresetModel, benchmark: Benchmark, label: str, excluded: Heads = ()
    ) -> Searched:
        """Count the rows of `Lab.search`; the heads are drawn at random."""
        key = (model.label, benchmark.label, label, *map(str, excluded))
        if key in self.found:
            return self.found[key]
        spec, grid = self.preset.search(label), model.grid
        sizes = benchmark.part_sizes or [UNKNOWN_SIZE]
        problem = self.preset.problem(spec, grid, sizes, excluded)
        asked = asked_by(spec.method, problem)
        self.ask(model, benchmark, benchmark.searched, asked)
        own = bits(problem.examples)
        rows = sum((examples & own).bit_count() for mask, examples in asked if any(mask))
        usual = list(range(UNIVERSAL + (benchmark in self.preset.subjects)))
        random = designs.generator(int(digest({"asked": (model.label, benchmark.label)})[:8], 16))
        order = [int(c) for c in random.permutation(grid.size) if c not in usual]
        ranking = [grid.heads[column] for column in usual + order]
        ranking = [*(head for head in ranking if head not in excluded), *excluded]
        masks = rows // len(problem.examples)
        self.found[key] = Searched(tuple(ranking), self.preset.top, masks, rows, {})
        return self.found[key]


def asked_by(method: str, problem: Problem) -> Asked:
    """The rows that a search asks for, driven by outcomes of chance.

    Most ask all examples whatever they ask one: they are driven on two to find heads on and two
    fresh ones, each of which stands for half of the real ones.
    """
    own, fresh = problem.examples, problem.fresh
    parts: list[Sequence[int]] = [own[::2], own[1::2], fresh[::2], fresh[1::2]]
    wanted = 2
    if METHODS[method].adaptive:
        parts, wanted = [(example,) for example in (*own, *fresh)], len(own)
    stands_for = [bits(part) for part in parts]  # disjoint, so that they can be added
    fewer = replace(problem, examples=range(wanted), fresh=range(wanted, len(parts)))
    asked = driven(method, fewer)
    meant = {
        places: sum(part for place, part in enumerate(stands_for) if places >> place & 1)
        for _, places in asked
    }
    return [(mask, meant[places]) for mask, places in asked]


@cache
def driven(method: str, problem: Problem) -> Asked:
    """The rows of a search of examples that are numbered from 0, fresh ones after the others."""
    generator, random = METHODS[method].search(problem), designs.generator(problem.settings.seed)
    asked: dict[bytes, int] = {}
    plan = next(generator)
    while True:
        packed = [pack(mask) for mask in plan.masks]
        for number, example in zip(plan.mask.tolist(), plan.example.tolist(), strict=True):
            asked[packed[number]] = asked.get(packed[number], 0) | 1 << example
        outcomes = random.integers(0, 2, len(plan.mask)).astype(float)
        if not plan.masks.any():
            outcomes = np.ones(len(plan.mask))
        try:
            plan = generator.send(Measurements(plan.masks, plan.mask, plan.example, outcomes))
        except StopIteration:
            return list(asked.items())


def bits(examples: Sequence[int]) -> int:
    """Write examples, each of them once, as the bits of a number."""
    return sum(1 << example for example in examples)


Fill = Callable[[Lab], Exhibit]
EXHIBITS: dict[str, Fill] = {
    "table1": exhibits.table1,
    "table2": exhibits.table2,
    "table3": exhibits.table3,
    "table4": exhibits.table4,
    "table5": exhibits.table5,
    "table6": exhibits.table6,
    "table7": exhibits.table7,
    "table8": exhibits.table8,
    "table9": exhibits.table9,
    "fig1": exhibits.fig1,
    "fig2": exhibits.fig2,
    "fig3": exhibits.fig3,
    "fig4": exhibits.fig4,
    "sharing": analyses.sharing_exhibit,
    "scale": analyses.scale,
    "failures": analyses.failures_exhibit,
    "choice": analyses.choice,
    "rules": analyses.rules,
}
# Those about one model: the one that leads.
OF_LEADER = {"table4", "table6", "fig1", "fig2", "fig4", "failures", "choice"}
# The one that asks a model nothing: its benchmarks need not be there.
UNASKED = "table1"
# Those without a score, which a limit on scores does not touch.
SCORELESS = {"table1", "table9", "sharing", "choice"}
ALL = "all"
READING = (
    "± is a standard error over examples, of a drop that of paired differences. Heads are found "
    "with {} unless a table says otherwise. A dash is something that was not measured, or is not "
    "defined."
)


def choose_exhibits(names: Sequence[str]) -> dict[str, Fill]:
    """The exhibits of these names, or all; raises UnknownName, naming the nearest there is."""
    wanted = list(EXHIBITS) if ALL in names else list(names)
    return {name: pick(EXHIBITS, name, "table or figure") for name in wanted}


def plan_exhibits(preset: Preset, names: Sequence[str]) -> list[Bill]:
    """What filling the exhibits would take, model by model; no weights are read.

    Raises UserError if an exhibit is unknown or a configuration cannot be read.
    """
    dry_run = PresetDryRun(preset)
    for fill in choose_exhibits(names).values():
        fill(dry_run)
    return [dry_run.bill(model) for model in preset.models]


def reproduce(
    preset: Preset,
    names: Sequence[str],
    folder: Path,
    progress: Progress | None = None,
    *,
    command: str = "",
    allow_code: bool = False,
) -> list[Exhibit]:
    """Measure what the exhibits need and write them into the folder.

    Whatever was measured there before is used. Models are taken one after another, so that each is
    loaded once. Raises UserError for a mistake, before a model is loaded where possible; RunFailed
    if the machine gives up, and then what was measured is kept.
    """
    fills = choose_exhibits(names)
    asking = set(fills) != {UNASKED}
    check_preset(preset, preset.benchmarks if asking else (), allow_code=allow_code)
    with open_laboratory(
        preset, folder, progress or Silent(), command, allow_code=allow_code
    ) as laboratory:
        foretell(laboratory, names)
        for model in preset.models:
            alone = replace(laboratory, preset=preset.alone(model), draws=1)
            for name, fill in fills.items():
                if preset.leads(model) or name not in OF_LEADER:
                    fill(alone)
        filled = [limited(fill(laboratory), preset) for fill in fills.values()]
        for exhibit in filled:
            write(exhibit, folder)
        title = f"{preset.name}: {preset.about}"
        words = READING.format(escape_markdown(preset.main))
        write_index(folder, title, words, filled, command)
    return filled


def foretell(laboratory: Laboratory, names: Sequence[str]) -> None:
    """Say how many rows are to come, unless rows of other exhibits may be among those stored."""
    preset, stored = laboratory.preset, laboratory.store.count_rows()
    rows = sum(bill.rows for bill in plan_exhibits(preset, names)) - stored
    if rows > 0 and (not stored or set(choose_exhibits(names)) == set(EXHIBITS)):
        expect(laboratory.progress, rows)


def limited(exhibit: Exhibit, preset: Preset) -> Exhibit:
    """The same with a note of how few examples its scores are on, if that is not all."""
    if preset.limit is None or exhibit.name in SCORELESS:
        return exhibit
    note = f"Scores are on the first {preset.limit} examples of every task"
    values = (cell for row in exhibit.rows for cell in row if isinstance(cell, Value))
    if any(value.published is not None for value in values):
        note += ", the paper's on all"
    return replace(exhibit, notes=[*exhibit.notes, f"{note}."])


def check_preset(preset: Preset, benchmarks: Sequence[Benchmark], *, allow_code: bool) -> None:
    """Refuse models, tasks, searches and options that cannot be; raises UserError, naming all."""
    attempts: list[Callable[[], object]] = [
        partial(check_preset_model, preset, model) for model in preset.models
    ]
    for benchmark in benchmarks:
        options = benchmark.options(allow_code)
        attempts.append(options.check)
        for name in dict.fromkeys((benchmark.task, benchmark.searched)):
            attempts.append(partial(check_task_name, name, options))
    raise_together(attempts)


def check_preset_model(preset: Preset, model: PresetModel) -> None:
    """Refuse a model that cannot be loaded or is too small for a search, in a sentence for each."""
    grid = model.options().check()

    def check(spec: SearchSpec) -> None:
        method = METHODS[spec.method]
        if method.draws_masks:
            designs.check_mask_size(grid.size, spec.rate)
        method.check(preset.problem(spec, grid, [spec.examples]))

    raise_together(partial(check, spec) for spec in preset.searches)
