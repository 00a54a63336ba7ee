"""Universal heads first or afterwards: what published searches have left of the true heads.

python bench/universal.py --worlds 10

Four tasks of a simulated model of 1,024 heads share its universal heads. Each search is judged by
its recall of the first task's five most needed heads, three ways: universal heads taken out of what
it found, taken out before it chooses (as `caploc reproduce` does), and with the true ones known.
"""

import argparse
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from caploc import designs
from caploc.heads import Head, HeadGrid
from caploc.recovery import Measurements
from caploc.reproduce.laboratory import ScoredTask, Searched
from caploc.reproduce.selection import named_heads, universal_heads
from caploc.search import METHODS, Problem, Settings, column_mask
from fixtures import KINDS, World
from specific import draw_world

LAYERS, WIDTH, TASKS, TOP = 32, 32, 4, 5
EXAMPLES, SCORED = 100, 100  # that heads are found on, and that a head is scored on
GRID = HeadGrid((WIDTH,) * LAYERS)
METHOD = {"CSS": "css-search", "Greedy": "greedy"}


def related(kind: str, seed: int) -> list[World]:
    """Tasks with heads of their own and universal heads in common."""
    count = KINDS[kind].universal
    random = designs.generator(seed)
    universal = random.choice(2 * WIDTH, count, replace=False)
    breaking = random.uniform(5, 9, count)
    worlds = []
    for task in range(TASKS):
        world = draw_world(kind, 100 * seed + task, LAYERS, WIDTH)
        shifts = world.shifts.copy()
        shifts[universal] = breaking
        worlds.append(replace(world, shifts=shifts, universal=tuple(map(int, universal))))
    return worlds


@dataclass
class Simulated:
    """A laboratory whose tasks are worlds; each benchmark is a family of its own."""

    worlds: list[World]
    seed: int
    settings: dict[str, Any]
    struck: dict[str, list[Head]] = field(default_factory=dict)
    draws: int = 1
    known: dict[Any, Searched] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """A preset of what exhibits ask a preset for."""
        marks = [SimpleNamespace(label=str(n), kin=str(n)) for n in range(len(self.worlds))]
        self.preset = SimpleNamespace(
            benchmarks=marks,
            localized=marks,
            main="CSS",
            top=TOP,
            search=lambda label: SimpleNamespace(method=METHOD[label], top=None),
        )

    def score(self, model: Any, benchmark: Any, heads: Any, limit: int | None = None) -> ScoredTask:
        """A benchmark with heads knocked out, on so many examples."""
        world, examples = self.worlds[int(benchmark.label)], np.arange(limit or SCORED)
        mask = column_mask(world.heads, [GRID.column(head) for head in heads])
        before, after = (
            world.outcomes(np.tile(each, (len(examples), 1)), examples)
            for each in (np.zeros_like(mask), mask)
        )
        error = [x.std(ddof=1) / np.sqrt(len(x)) for x in (before, after, before - after)]
        drop = float(np.mean(before - after))
        return ScoredTask(
            float(before.mean()), error[0], float(after.mean()), error[1], drop, error[2],
            len(examples), 0.0,
        )  # fmt: skip

    def search(self, model: Any, benchmark: Any, label: str, excluded: Any = ()) -> Searched:
        """What a search finds."""
        key = (benchmark.label, label, tuple(sorted(excluded)))
        if key not in self.known:
            world = self.worlds[int(benchmark.label)]
            examples = range(1000, 1000 + (EXAMPLES if label == "CSS" else EXAMPLES // 5))
            problem = Problem(
                world.heads,
                examples,
                Settings(top=TOP, seed=self.seed, **self.settings),
                excluded=tuple(map(GRID.column, excluded)),
            )
            searching = METHODS[METHOD[label]].search(problem)
            plan = next(searching)
            try:
                while True:
                    outcomes = world.outcomes(plan.masks[plan.mask], plan.example)
                    plan = searching.send(
                        Measurements(plan.masks, plan.mask, plan.example, outcomes)
                    )
            except StopIteration as end:
                ranking = tuple(GRID.heads[column] for column in end.value.ranking)
                self.known[key] = Searched(ranking, len(end.value.chosen), 0, 0, {})
        return self.known[key]


def recalls(lab: Simulated, label: str) -> tuple[float, float, float]:
    """Recall of the first task's heads: universal heads struck afterwards, first, and known."""
    world, model, first = (
        lab.worlds[0],
        SimpleNamespace(label="", grid=GRID),
        lab.preset.localized[0],
    )
    effects = np.where(np.isin(np.arange(world.heads), world.universal), 0, world.single_effects())
    true = {GRID.heads[column] for column in np.argsort(effects)[:TOP]}
    struck = universal_heads(lab, model)  # type: ignore[arg-type]
    blind = [h for h in lab.search(model, first, label).ranking if h not in struck][:TOP]
    ours = named_heads(lab, model, first, label)  # type: ignore[arg-type]
    truth = [GRID.heads[column] for column in world.universal]
    knowing = lab.search(model, first, label, truth).ranking[:TOP]
    return tuple(len(true & set(heads)) / TOP for heads in (blind, ours, knowing))  # type: ignore[return-value]


def main() -> None:
    """Print mean recall and its standard error over worlds, for each kind and search."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--worlds", type=int, default=10)
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=["strong", "fragile"])
    arguments = parser.parse_args()
    settings = {"mask_counts": (100, 200, 400), "rates": (0.01, 0.02, 0.03)}
    print("| kind | search | afterwards | first | known | universal heads found |")
    print("|---|---|--:|--:|--:|--:|")
    for kind in arguments.kinds:
        found: dict[str, list[tuple[float, float, float]]] = {label: [] for label in METHOD}
        hits = []
        for seed in range(arguments.worlds):
            lab = Simulated(related(kind, seed), seed, settings)
            for label in METHOD:
                found[label].append(recalls(lab, label))
            true = {GRID.heads[column] for column in lab.worlds[0].universal}
            hits.append(f"{len(true & set(lab.struck['']))}/{len(true)}")
        for label, rows in found.items():
            cells = [
                f"{mean:.2f} ± {error:.2f}"
                for mean, error in zip(
                    np.mean(rows, axis=0), np.std(rows, axis=0, ddof=1) / np.sqrt(len(rows)),
                    strict=True,
                )
            ]  # fmt: skip
            print(f"| {kind} | {label} | {' | '.join(cells)} | {' '.join(hits)} |", flush=True)


if __name__ == "__main__":
    main()
