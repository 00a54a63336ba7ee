"""What a reproduction would measure, counted without loading a model.

The same exhibits are filled by a laboratory that measures nothing, and the rows that it is asked
for are counted, each once. It pretends that heads are found as the paper finds them: a few
universal ones, one that the subjects of knowledge share, and otherwise each benchmark its own.
Searches are driven by outcomes of chance, with which the settings that one tries seldom agree: with
a model they agree more often, and take the rows of fewer sets.
"""

from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np

from caploc import designs
from caploc.cache import digest
from caploc.heads import Head
from caploc.recovery import Measurements
from caploc.reproduce.laboratory import Heads, ScoredTask, Searched
from caploc.reproduce.preset import Benchmark, Preset, PresetModel
from caploc.search import METHODS, Plan, Problem
from caploc.store import pack

UNIVERSAL = 3  # heads; the paper names three or four a model
UNKNOWN_SIZE = 1000  # examples of a benchmark whose preset names no number
# Of one NVIDIA H200: 989 dense bfloat16 TFLOP/s by its data sheet, and the shares of it that
# reading and saying are assumed to reach. Assumed, not measured.
PEAK, READING, SAYING = 989e12, 0.4, 0.1

Asked = list[tuple[bytes, int]]  # masks, packed, and the examples of each as the bits of a number


@dataclass
class Bill:
    """What one model would be asked."""

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

    def hours(self, parameters: int) -> float:
        """On one H200 in bfloat16, at two operations a parameter and token."""
        work = 2 * parameters * (self.read / READING + self.said / SAYING)
        return work / PEAK / 3600


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
        """The model's count so far."""
        return self.bills.setdefault(model.label, Bill())

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
        own = bits(tuple(problem.examples))
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
    own, fresh = tuple(problem.examples), tuple(problem.fresh)
    parts: list[tuple[int, ...]] = [own[::2], own[1::2], fresh[::2], fresh[1::2]]
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
        for mask, examples in group_by_mask(plan):
            asked[mask] = asked.get(mask, 0) | examples
        outcomes = random.integers(0, 2, len(plan.mask)).astype(float)
        if not plan.masks.any():
            outcomes = np.ones(len(plan.mask))
        try:
            plan = generator.send(Measurements(plan.masks, plan.mask, plan.example, outcomes))
        except StopIteration:
            return list(asked.items())


def group_by_mask(plan: Plan) -> Asked:
    """The masks of a plan and the examples of each."""
    order = np.argsort(plan.mask, kind="stable")
    ends = np.searchsorted(plan.mask[order], np.arange(len(plan.masks)), side="right")
    parts = np.split(plan.example[order], ends[:-1])
    pairs = zip(plan.masks, parts, strict=True)
    return [(pack(mask), bits(tuple(part.tolist()))) for mask, part in pairs]


@lru_cache(maxsize=4096)
def bits(examples: tuple[int, ...]) -> int:
    """Examples as the bits of a number."""
    return sum(1 << example for example in set(examples))
