"""Double dissociation: does a task's set of heads take it and spare another, and the reverse?

    python bench/dissociation.py smollm2 --tasks words/past,words/upper   search, measure, judge
    python bench/dissociation.py --page                 figure and counts again, from the JSON

Each task's set is what `caploc locate --goal set` names after its check, or `--goal specific` that
spares the other tasks, in a run folder below build/dissociation. Every set, and random sets with
as many heads in each layer, are then knocked out on examples of every task that the set's search
did not see, in the task's own words and in other words (its twin). Rows are stored and asked once;
what came out is kept in bench/dissociation.json.

A set *takes* a task if in both wordings the task loses more than by random sets beyond doubt, more
than by each of these, and for sure more than a margin; it *spares* a task if in both wordings the
change lies within the margin for sure. Both are corrected for the number of cells: Holm's method
for taking, Benjamini and Hochberg's for sparing.
"""

import argparse
import json
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import torch
from scipy import stats

import figures
from caploc import designs
from caploc.components import Grid, Mask, Masks
from caploc.declaration import split_examples
from caploc.finished import FinishedRun
from caploc.folder import RESULT
from caploc.measurement import Meter, Meters
from caploc.options import TaskOptions
from caploc.progress import Silent
from caploc.recovery import falls_short, paired
from caploc.report.colours import shade_scale
from caploc.search import Plan
from caploc.store import Store, reading
from caploc.tasks.catalog import load_task
from caploc.tasks.defects import one_of_each_question
from caploc.tasks.task import Task

FIGURES = Path(__file__).with_suffix(".json")
DRAWING = Path(__file__).parents[1] / "docs" / "results" / "dissociation.png"
RUNS = Path("build/dissociation")
TOP = 3  # heads of a set, at most
FOUND_ON, SHARE = 90, 0.46  # examples of a search, at most; of a small task's examples
CHECKED, CONTROLS = 40, 5  # examples and random sets of a run's own check
BUDGET = 1600  # rows of a search: two examples for each of SmolLM2's heads, twice
BUDGET_SPECIFIC, PRICE, JUDGED = 2000, 0.05, 100  # the same of a set that spares the others
HELD_OUT = 120  # examples of a task in each wording, at most; 60 are too few to show that many stay
RANDOM_SETS = 10
AGAINST_OWN, AGAINST_OTHERS = 40, 20  # examples of them for random sets
MARGIN = 0.1
LEAST = 0.3  # intact score of a task that the model can do
LEVEL = 0.05
FEW = 3  # tasks, of which no picture is drawn
SEED = 54
OWN, OTHER = "own words", "other words"
ROWS = "rows.sqlite"
ASKED = "SELECT DISTINCT q.question, r.example FROM questions q JOIN rows r ON r.question = q.id"
Pair = tuple[str, str]
Wordings = Mapping[str, "Outcomes"]


# --- what follows from outcomes ---------------------------------------------------------------


@dataclass(frozen=True)
class Outcomes:
    """Right and wrong answers (1 and 0) to the same examples of a task in one wording.

    `random` holds those under each random set, to the first of the examples.
    """

    intact: np.ndarray
    without: np.ndarray
    random: np.ndarray

    @classmethod
    def read(cls, written: Mapping[str, Any]) -> "Outcomes":
        """From digits, as the JSON has them."""
        intact, without = (digits(written[name]) for name in ("intact", "without"))
        return cls(intact, without, np.array([digits(each) for each in written["random"]]))

    def written(self) -> dict[str, Any]:
        """Write them as digits."""
        return {
            "intact": text(self.intact),
            "without": text(self.without),
            "random": [text(each) for each in self.random],
        }

    @property
    def change(self) -> np.ndarray:
        """What each example changes by without the set."""
        return self.without - self.intact

    @property
    def random_change(self) -> np.ndarray:
        """The mean change under each random set."""
        count = self.random.shape[-1]
        means: np.ndarray = (self.random - self.intact[:count]).mean(axis=-1)
        return means

    def p_of_taking(self) -> float:
        """The larger p value of two two-sided tests: a loss, and a larger one than by random sets.

        1 where there is no loss, no random set was asked, or one of them costs as much.
        """
        change = self.change
        if change.mean() >= 0 or not self.random.size:
            return 1.0
        count = self.random.shape[1]
        if change[:count].mean() >= self.random_change.min():
            return 1.0
        more = self.without[:count] - self.random.mean(axis=0)
        return max(paired(change, binary=True)[3], paired(more, binary=False)[3])

    def p_of_sparing(self) -> float:
        """The larger p value of a change by the margin or more, down and up."""
        return max(falls_short(side * self.change, MARGIN, binary=True) for side in (1, -1))

    def interval(self) -> tuple[float, float, float]:
        """Mean change, and its 95 % interval."""
        return paired(self.change, binary=True)[:3]


def digits(written: str) -> np.ndarray:
    """Turn `"101"` into numbers."""
    return np.array([*map(int, written)], dtype=float)


def text(outcomes: np.ndarray) -> str:
    """Turn numbers into `"101"`."""
    return "".join(str(int(each)) for each in outcomes)


@dataclass(frozen=True)
class Cell:
    """One task under one task's set: what the wordings that count say together."""

    able: bool  # the intact model can do the task
    p_of_taking: float
    p_of_sparing: float
    beyond: bool  # every interval of the change lies below the margin
    within: bool  # every interval lies within it
    lost: float  # share of the intact score, mean of the wordings

    @classmethod
    def of(cls, wordings: Sequence[Outcomes]) -> "Cell":
        """Put wordings together: a claim must hold of each."""
        ends = [each.interval()[1:] for each in wordings]
        intact = [max(each.intact.mean(), 1 / len(each.intact)) for each in wordings]
        change = [each.change.mean() for each in wordings]
        return cls(
            able=min(intact) >= LEAST,
            p_of_taking=max(each.p_of_taking() for each in wordings),
            p_of_sparing=max(each.p_of_sparing() for each in wordings),
            beyond=all(high < -MARGIN for _, high in ends),
            within=all(low >= -MARGIN and high <= MARGIN for low, high in ends),
            lost=float(-np.mean(np.divide(change, intact))),
        )


def holm(p: Sequence[float]) -> np.ndarray:
    """Correct p values for their number by Holm's method."""
    values = np.asarray(p, dtype=float)
    order = np.argsort(values, kind="stable")
    corrected = np.empty(len(values))
    factors = len(values) - np.arange(len(values))
    corrected[order] = np.minimum(np.maximum.accumulate(values[order] * factors), 1.0)
    return corrected


def judge(cells: Mapping[Pair, Cell]) -> dict[Pair, str]:
    """Say of each set and task whether the set takes it, spares it, or neither is sure (open).

    What the intact model cannot do stays open. Taking is corrected for all cells, sparing for those
    of a set and another task.
    """
    keys, others = [*cells], [key for key in cells if key[0] != key[1]]
    taking = dict(zip(keys, holm([cells[key].p_of_taking for key in keys]), strict=True))
    rates = stats.false_discovery_control([cells[key].p_of_sparing for key in others] or [1.0])
    sparing = dict(zip(others, rates, strict=False))

    def say_of(key: Pair) -> str:
        cell = cells[key]
        if cell.able and cell.beyond and taking[key] < LEVEL:
            return "takes"
        spared = cell.able and cell.within and sparing.get(key, 1) < LEVEL
        return "spares" if spared else "open"

    return {key: say_of(key) for key in keys}


def judge_pair(said: Mapping[Pair, str], first: str, second: str) -> str:
    """Say whether two sets dissociate their tasks: doubly, one way (single), or not.

    *Not testable* where a task has no set, or one that does not surely take it.
    """
    if any(said.get((task, task)) != "takes" for task in (first, second)):
        return "not testable"
    spared = [said[first, second], said[second, first]].count("spares")
    return ("none", "single", "double")[spared]


# --- measuring --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """A task in its own and in other words, and its finished run."""

    run: FinishedRun
    task: Task
    twin: Task
    asked: Mapping[str, set[str]]  # keys of the examples of each task that the run asked

    @classmethod
    def read(cls, folder: Path, name: str) -> "Subject":
        """Open the run folder of a task."""
        run = FinishedRun.read(folder)
        tasks = run.study.model.tasks([name, f"{name}_twin"], TaskOptions())
        task, twin = (one_of_each_question(each, 0.0, Silent()) for each in tasks)
        asked = defaultdict(set)
        with reading(folder / ROWS) as database:
            for question, example in database.execute(ASKED):
                asked[json.loads(question)["task"]].add(example)
        return cls(run, task, twin, asked)

    @property
    def name(self) -> str:
        """The task's."""
        return self.task.name

    @property
    def heads(self) -> list[str]:
        """Those that the run names."""
        return self.run.result.top

    @property
    def same_questions(self) -> bool:
        """Whether example n of both wordings asks for the same."""
        golds = [
            [each.example(n).gold for n in range(each.size)] for each in (self.task, self.twin)
        ]
        return golds[0] == golds[1]

    def order(self) -> list[int]:
        """Its examples: first those that its run did not ask, then those that only its check saw.

        Those that its search saw come last.
        """
        searched, asked = self.searched(self.task), self.asked[self.name]
        return sorted(shuffled(self.task), key=lambda e: (e in searched, self.task.key(e) in asked))

    def searched(self, task: Task) -> set[int]:
        """The examples of a task that its search asked; or its run, where that is all we know."""
        study, asked = self.run.study, self.asked[task.name]
        known = {example for example in range(task.size) if task.key(example) in asked}
        if task.name == self.name:
            draw = study.draw(task.size)
            return known & {*draw.searched, *draw.fresh}
        if study.seeks_specific and task.name in (*study.twins, *study.spare):
            return known & set(split_examples(task.size, study.settings.seed)[0])
        return known


def shuffled(task: Task) -> list[int]:
    """List all examples of a task in a random order."""
    return designs.draw_examples(task.size, task.size, seed=SEED)


def choose_examples(one: Subject, other: Subject, wording: str) -> list[int]:
    """Choose the examples of a task on which the set of `one` is judged.

    None that its search asked; first those that its run did not ask at all.
    """
    task, order = other.task, other.order()
    searched = one.searched(other.task)
    if other.same_questions:
        searched |= one.searched(other.twin)
    elif wording == OTHER:
        task, order, searched = other.twin, shuffled(other.twin), one.searched(other.twin)
    order.sort(key=lambda example: task.key(example) in one.asked[task.name])
    return [example for example in order if example not in searched][:HELD_OUT]


def draw_random(grid: Grid[Any], heads: Sequence[str]) -> Masks:
    """Draw different sets with as many heads in each layer, none of the set's own."""
    mask = grid.mask(heads)
    if not mask.any():
        return np.zeros((0, mask.size), dtype=bool)
    drawn = designs.layer_matched_masks(mask, grid.layer_slices, 50 * RANDOM_SETS, seed=SEED)
    layers = [drawn[:, own].sum(axis=1) == mask[own].sum() for own in grid.layer_slices]
    whole = drawn[np.all(layers, axis=0)]
    _, first = np.unique(whole, axis=0, return_index=True)
    return whole[np.sort(first)[:RANDOM_SETS]]


def measure(bench: Meters[Any], one: Subject, other: Subject, against: int) -> Wordings:
    """Ask a task in both wordings intact, without the set of `one`, and without random sets.

    Random sets are asked the first `against` of the examples; none are if that is 0.
    """
    mask = bench.grid.mask(one.heads)
    random = draw_random(bench.grid, one.heads if against else [])
    found = {}
    for wording, task in ((OWN, other.task), (OTHER, other.twin)):
        examples = choose_examples(one, other, wording)
        meter = bench.meter(task.in_metric())
        whole = ask(meter, np.stack([np.zeros_like(mask), mask]), examples)
        under = ask(meter, random, examples[:against])
        found[wording] = Outcomes(whole[0], whole[1], under)
    return found


def ask(meter: Meter, masks: Masks, examples: Sequence[int]) -> np.ndarray:
    """Return the outcomes of every mask on every example: masks x examples."""
    rows = meter.measure(Plan.crossed(meter.task.name, masks, examples), Silent(), "")
    return np.array([row.outcome for row in rows]).reshape(len(masks), len(examples))


def locate(model: str, task: str, folder: Path, dtype: str, spare: Sequence[str]) -> None:
    """Find a task's set in a run folder, unless that was done; one that spares tasks, if any."""
    if (folder / RESULT).is_file():
        return
    size = load_task(task).size
    options: dict[str, Any] = {
        "--task": task,
        "--dtype": dtype,
        "--goal": "set",
        "--top": TOP,
        "--budget": BUDGET,
        "--examples": min(FOUND_ON, round(SHARE * size)),
        "--limit": CHECKED,
        "--controls": CONTROLS,
        "--out": folder,
    }
    if spare:
        options |= {"--goal": "specific", "--spare": ",".join(spare), "--price": PRICE}
        options |= {"--limit": JUDGED, "--budget": BUDGET_SPECIFIC}
    words = [str(word) for pair in options.items() for word in pair]
    command = [sys.executable, "-m", "caploc", "locate", model, *words, "--quick", "--quiet"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def run(model: str, names: Sequence[str], goal: str, dtype: str) -> None:
    """Search, measure and judge; what is known is written after every round."""
    name = model if goal == "set" else f"{model}-{goal}"
    folders = {task: RUNS / name / task.rpartition("/")[2] for task in names}
    for task, folder in folders.items():
        print(f"{name}: searching {task}", flush=True)
        spare = [other for other in names if other != task] if goal == "specific" else []
        locate(model, task, folder, dtype, spare)
    torch.set_num_threads(1)
    subjects = [Subject.read(folder, task) for task, folder in folders.items()]
    if goal == "specific":  # where nothing spares the others, the set that was found without them
        subjects = [
            each if each.heads else Subject.read(RUNS / model / folders[each.name].name, each.name)
            for each in subjects
        ]
    named = [each for each in subjects if each.heads]
    with Store(RUNS / name / ROWS) as store, subjects[0].run.answering() as engine:
        bench = Meters(engine, store)
        found: dict[Pair, Wordings] = {}
        for against in (0, AGAINST_OWN, AGAINST_OTHERS):
            for one in named:
                print(f"{name}: {one.name}, random sets on {against} examples", flush=True)
                for other in subjects:
                    key = one.name, other.name
                    if against == 0 or wants_random(found[key], own=one is other) == against:
                        found[key] = measure(bench, one, other, against)
            write(name, subjects, found, bench)


def wants_random(wordings: Wordings, *, own: bool) -> int:
    """Say how many examples random sets are asked; none where another task surely keeps."""
    hurt = any(each.interval()[2] < 0 for each in wordings.values())
    return AGAINST_OWN if own else AGAINST_OTHERS if hurt else 0


def write(
    model: str, subjects: Sequence[Subject], found: Mapping[Pair, Wordings], bench: Meters[Any]
) -> None:
    """Write a model's sets, outcomes and verdicts into the JSON."""
    outcomes: dict[str, dict[str, Any]] = {}
    for (one, other), wordings in found.items():
        written = {wording: each.written() for wording, each in wordings.items()}
        outcomes.setdefault(one, {})[other] = written
    kept = figures.read(FIGURES)
    kept[model] = {
        "fingerprint": bench.engine.loaded.fingerprint,
        "dtype": bench.engine.loaded.dtype,
        "rows_of_searches": sum(each.run.result.cost.rows or 0 for each in subjects),
        "rows": bench.cost.rows,
        "heads": {each.name: each.heads for each in subjects},
        "goals": {each.name: each.run.study.settings.goal for each in subjects},
        "random_sets": {
            each.name: [names_of(bench.grid, mask) for mask in draw_random(bench.grid, each.heads)]
            for each in subjects
        },
        "verdicts": verdicts([each.name for each in subjects], found),
        "outcomes": outcomes,
    }
    figures.write(FIGURES, kept)


def names_of(grid: Grid[Any], mask: Mask) -> list[str]:
    """Name the heads of a mask."""
    return [str(grid.components[column]) for column in np.flatnonzero(mask)]


def verdicts(tasks: Sequence[str], found: Mapping[Pair, Wordings]) -> list[dict[str, str]]:
    """Judge every pair of tasks: by both wordings, and by the task's own words alone."""
    both = judge({key: Cell.of([*wordings.values()]) for key, wordings in found.items()})
    own = judge({key: Cell.of([wordings[OWN]]) for key, wordings in found.items()})
    return [
        {
            "first": first,
            "second": second,
            "verdict": judge_pair(both, first, second),
            OWN: judge_pair(own, first, second),
        }
        for first, second in combinations(tasks, 2)
    ]


# --- the page ---------------------------------------------------------------------------------


def page() -> None:
    """Draw the figure; print the counts of the page."""
    charts = []
    for name, one in figures.read(FIGURES).items():
        cells = read_cells(one)
        tasks, said = list(dict.fromkeys(task for key in cells for task in key)), judge(cells)
        pairs = Counter(judge_pair(said, *pair) for pair in combinations(tasks, 2))
        print(name, dict(pairs), summary(cells, said))
        if len(tasks) > FEW:
            charts.append(chart(name, tasks, cells, said))
    alt.concat(*charts, columns=2).configure_view(stroke=None).save(DRAWING, ppi=80)


def read_cells(kept: Mapping[str, Any]) -> dict[Pair, Cell]:
    """Make the cells of a model's outcomes."""
    return {
        (one, other): Cell.of([Outcomes.read(each) for each in wordings.values()])
        for one, row in kept["outcomes"].items()
        for other, wordings in row.items()
    }


def summary(cells: Mapping[Pair, Cell], said: Mapping[Pair, str]) -> dict[str, Any]:
    """Count cells, and take medians of what sets take from their own and from other tasks."""
    own = [key for key in cells if key[0] == key[1]]
    others = [key for key in cells if key[0] != key[1]]
    return {
        f"{name} tasks": [dict(Counter(said[key] for key in keys)), median_lost(cells, keys)]
        for name, keys in (("own", own), ("other", others))
    }


def median_lost(cells: Mapping[Pair, Cell], keys: Sequence[Pair]) -> float:
    """The median share of the intact score that is lost."""
    return round(float(np.median([cells[key].lost for key in keys])), 2)


def chart(
    model: str, tasks: Sequence[str], cells: Mapping[Pair, Cell], said: Mapping[Pair, str]
) -> Any:
    """Draw the share of each task that each set takes, and what is sure of it."""
    marks = {"takes": "●", "spares": "○", "open": ""}
    data = pd.DataFrame(
        {
            "set": one.rpartition("/")[2],
            "task": other.rpartition("/")[2],
            "change": -cell.lost,
            "text": f"{round(-100 * cell.lost) + 0:+d} {marks[said[one, other]]}",
        }
        for (one, other), cell in cells.items()
    )
    names = [each.rpartition("/")[2] for each in tasks]
    base = alt.Chart(data, title=f"{model}").encode(
        x=alt.X("task:N", sort=names, title="task", axis=alt.Axis(orient="top", labelAngle=-40)),
        y=alt.Y("set:N", sort=names, title="without the heads of"),
    )
    colour = alt.Color("change:Q", scale=alt.Scale(**shade_scale(1.0)), legend=None)
    ink = alt.condition("datum.change < -0.7", alt.value("white"), alt.value("#16181d"))
    text = base.mark_text(fontSize=11).encode(text="text:N", color=ink)
    return (base.mark_rect().encode(color=colour) + text).properties(
        width=alt.Step(52), height=alt.Step(24)
    )


def main() -> None:
    """Measure what was asked for, or draw what is known."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", help="such as smollm2")
    parser.add_argument("--tasks", type=lambda names: names.split(","), help="joined by commas")
    parser.add_argument("--goal", choices=["set", "specific"], default="set")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--page", action="store_true", help="figure and counts from the JSON")
    asked = parser.parse_args()
    if asked.page:
        return page()
    if not asked.model or not asked.tasks:
        parser.error("name a model and --tasks, or ask for --page")
    return run(asked.model, asked.tasks, asked.goal, asked.dtype)


if __name__ == "__main__":
    main()
