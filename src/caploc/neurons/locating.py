"""Find every task's neurons, and hold them against each other."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from caploc.errors import BadOption, UserError
from caploc.folder import NEURONS, OVERLAP
from caploc.neurons.erasure import YES_NO, Erased, Eraser, tabulate_arms
from caploc.neurons.finding import FEW, TaskNeurons
from caploc.neurons.model import NeuronGrid
from caploc.neurons.options import LAYERS, LOCATED, Erasing, NeuronStudy, Rule
from caploc.neurons.report import (
    NOTHING,
    Exhibit,
    Found,
    Reported,
    chart_curves,
    chart_matrix,
    chart_points,
    points_of,
    report,
    write_interval,
    write_number,
)
from caploc.neurons.sets import COMPARED, Cohesion, Overlaps, between, cohesion, rates_between
from caploc.neurons.study import NeuronSession, open_study, read_located
from caploc.progress import Progress, tell_once
from caploc.stats import Interval
from caploc.stats.chance import count_shared
from caploc.wording import inline

NAMED, HIGHEST = 8, 4  # neurons in common, and of the highest scores, that a table names
WRITTEN = {COMPARED: "by the larger set", "iou": "as IoU"}


@dataclass(frozen=True)
class LocatedNeurons:
    """The neurons of several tasks of one model, and what their subsets have in common.

    `kinds` says which tasks are of one kind (each its own if it is not named); `erased` what each
    loses without its neurons, where that was measured.
    """

    grid: NeuronGrid
    rule: Rule
    found: dict[str, TaskNeurons]
    kinds: Mapping[str, str]
    erased: Mapping[str, Erased] = field(default_factory=dict)

    @classmethod
    def by(cls, session: NeuronSession, kinds: Mapping[str, str]) -> "LocatedNeurons":
        found = {task: session.found(task) for task in session.study.tasks}
        judged = [
            task for task, each in found.items() if session.study.judged and each.located.any()
        ]
        erased = {task: erase_own(session, task) for task in judged}
        return cls(session.model.grid, session.study.rule, found, kinds, erased)

    def overlaps(self) -> Overlaps:
        """Compute the five rates between every two tasks, on the diagonal within each."""
        return rates_between(
            {task: each.located for task, each in self.found.items()},
            {task: each.subsets for task, each in self.found.items()},
        )

    def cohesion(self) -> Cohesion:
        """Ask whether sets are alike within a task and a kind, and unlike across."""
        overlaps = self.overlaps()
        kinds = {task: self.kinds.get(task, task) for task in self.found}
        return cohesion(overlaps.rates[COMPARED], overlaps.datasets, kinds)

    def apart(self, task: str) -> Interval | None:
        """Tell how alike a task's subsets are to other tasks'; None for a single task."""
        others = {name: each.subsets for name, each in self.found.items() if name != task}
        return between(self.found[task].subsets, others, COMPARED) if others else None

    def separate(self, task: str) -> bool | None:
        """Ask whether the interval within a task lies above that across; None if not known."""
        within, other = self.found[task].within().rates[COMPARED], self.apart(task)
        if other is None or np.isnan(within.low) or np.isnan(other.high):
            return None
        return within.low > other.high

    def by_chance(self, task: str) -> float | None:
        """Average the overlap of two subsets' sets if each kept only its numbers in the layers."""
        shares = [
            count_shared(one, other, self.grid).expected_in_layers / max(one.sum(), other.sum())
            for one, other in combinations(self.found[task].subsets, 2)
            if one.any() or other.any()
        ]
        return float(np.mean(shares)) if shares else None

    def as_dict(self) -> dict[str, Any]:
        several = len(self.found) > 1
        apart = {task: self.apart(task) for task in self.found}
        return {
            "grid": {
                "layers": self.grid.layers,
                "neurons": list(self.grid.neurons_per_layer),
            },
            "tasks": [
                each.as_dict(self.grid, self.rule)
                | {
                    "by_chance": self.by_chance(task),
                    "across": other.as_dict() if (other := apart[task]) else None,
                    "separate": self.separate(task),
                    "erased": self.erased[task].as_dict() if task in self.erased else None,
                }
                for task, each in self.found.items()
            ],
            "overlaps": self.overlaps().as_dict() if several else None,
            "cohesion": self.cohesion().as_dict() if several else None,
        }


def erase_own(session: NeuronSession, task: str) -> Erased:
    """Measure what a task loses without its neurons, and without others as many in each layer."""
    asked = Erasing(limit=session.study.judged, seed=session.study.seed)
    eraser = Eraser(session.meters, asked, session.found(task), session.progress)
    return eraser.erase(session.sources[task], (LOCATED, LAYERS))


def locate(
    study: NeuronStudy,
    folder: Path,
    progress: Progress | None = None,
    *,
    kinds: Mapping[str, str] | None = None,
    command: str = "",
) -> Reported:
    """Find the neurons of every task; write `neurons.json` and `report.html`."""
    check_kinds(kinds or {}, study.tasks, "the run", "they are")
    with open_study(study, folder, progress, command) as session:
        located = LocatedNeurons.by(session, kinds or {})
        uncovered = session.model.uncovered
        for part in uncovered:
            tell_once(session.progress, f"Not covered: {part}, with weights that no neuron reads.")
        model: dict[str, Any] = {"name": study.model.name, "fingerprint": session.model.fingerprint}
        model |= {"uncovered": [*uncovered]} if uncovered else {}
        results = {
            "model": model,
            "rule": str(study.rule),
            "attribution": study.attribution.method,
            **located.as_dict(),
        }
        title, shown = f"Neurons of {study.model.name}", located_exhibits(results)
        return report(folder / NEURONS, results, shown, title, command, [describe_locating(study)])


def check_kinds(kinds: Mapping[str, str], tasks: Iterable[str], where: str, are: str) -> None:
    """Refuse kinds of tasks that are not there."""
    if strange := [task for task in kinds if task not in set(tasks)]:
        raise BadOption(
            f"--kind names {strange[0]}, which is no task of {where}; {are} "
            f"{', '.join(dict.fromkeys(tasks))}."
        )


def describe_locating(study: NeuronStudy) -> str:
    """Say by which score and rule neurons are chosen, and on how many subsets."""
    asked = study.attribution
    points = f" with {asked.steps} points" if asked.copies > 1 else ""
    return (
        f"Scores: {asked.method}{points} of {asked.target} at {asked.positions} positions, mean "
        f"over the examples of each of {study.subsets} subsets. Chosen: {study.rule}, in "
        f"{100 * study.least:g} % of the subsets or more."
    )


def located_exhibits(results: Found) -> list[Exhibit]:
    """Show the neurons of each task, what they are needed for, and how tasks overlap."""
    tasks, layers = results["tasks"], results["grid"]["layers"]
    erased = [task["erased"] for task in tasks if task["erased"]]
    growth = [
        {"series": task["task"], "x": size, "y": largest}
        for task in tasks
        for size, largest, _ in task["curve"]
    ]
    exhibits = [
        Exhibit.of(
            "Neurons of each task",
            map(describe_task, tasks),
            [
                "Overlap is the number in common by the larger set, averaged over pairs of "
                "subsets, with 95 % intervals from resampling subsets (across: and tasks). "
                "Halves: the overlap of two halves of the subsets. By chance: that of random sets "
                "with as many neurons in each layer. Apart: the interval within lies above the "
                "one across."
            ],
            chart_points(
                [
                    point
                    for task in tasks
                    for point in points_of(
                        task["task"],
                        {
                            "within the task": task["within"]["rates"][COMPARED],
                            "across tasks": task["across"],
                        },
                    )
                ],
                "overlap of subsets' sets, by the larger",
            ),
        ),
        *([tabulate_arms({own["judged"]: own for own in erased})] if erased else []),
        Exhibit.of(
            "Neurons in each layer",
            [
                {"task": task["task"]}
                | {f"L{layer}": str(task["layers"][layer]) for layer in range(layers)}
                for task in tasks
            ],
            chart=chart_matrix(
                [
                    {"row": inline(task["task"]), "column": f"L{layer}", "value": count}
                    for task in tasks
                    for layer, count in enumerate(task["layers"])
                ],
                "",
            ),
        ),
        Exhibit.of(
            "How many neurons a threshold chooses",
            [
                {"task": task["task"]}
                | {level_of(each): f"{each['neurons']:,}" for each in task["sweep"]}
                for task in tasks
            ],
            [
                "Whatever the scores, at most a share 1 / (1 + sigma²) of the neurons can pass a "
                "threshold (Cantelli): 2.7 % at 6 sigma. What counts is whether the same ones are "
                "chosen again."
            ],
        ),
        Exhibit.of(
            "Overlap within a task by examples in a subset",
            [
                {"task": task["task"]}
                | {str(size): write_number(largest) for size, largest, _ in task["curve"]}
                for task in tasks
            ],
            chart=chart_curves(
                growth, "examples in each subset", "overlap by the larger set", logarithmic=True
            ),
        ),
    ]
    if results["overlaps"]:
        exhibits.append(tabulate_overlaps(results["overlaps"], results["cohesion"], COMPARED))
    return exhibits


def describe_task(task: Found) -> dict[str, str]:
    """Describe a task's neurons in a row."""
    neurons, weigh = task["neurons"], task["effective_examples"]
    few = f", weighing as {weigh:.0f}" if weigh and weigh <= FEW * task["examples"] else ""
    highest = " ".join(each["neuron"] for each in neurons[:HIGHEST])
    halves = task["halves"]
    return {
        "task": task["task"],
        "examples": f"{task['examples']:,}{few}",
        "neurons": f"{len(neurons):,}",
        "share, %": write_number(100 * task["share"], 2),
        "overlap within": write_interval(task["within"]["rates"][COMPARED]),
        "IoU within": write_interval(task["within"]["rates"]["iou"]),
        "halves": write_number(sum(halves) / len(halves) if halves else None),
        "by chance, in layers": write_number(task["by_chance"]),
        "overlap across": write_interval(task["across"]),
        "apart": YES_NO[task["separate"]],
        "highest scores": f"{highest}{' …' * (len(neurons) > HIGHEST)}" or NOTHING,
    }


def level_of(each: Found) -> str:
    """Write a level of a sweep."""
    return f"{each['level']:g} sigma" if each["rule"] == "sigma" else f"{100 * each['level']:g} %"


def tabulate_overlaps(overlaps: Found, cohesion: Found, rate: str) -> Exhibit:
    """Show one rate between every two tasks, on the diagonal within each."""
    names, matrix = overlaps["datasets"], overlaps["rates"][rate]
    figures = {
        "mean of the diagonal": "cohesion",
        "of the rest": "separability",
        "tasks of one kind": "same_kind",
        "of different kinds": "across_kinds",
        "p of kinds": "p",
    }
    told = [
        f"{words} {write_number(cohesion[figure])}"
        for words, figure in figures.items()
        if cohesion[figure] is not None
    ]
    cells = [
        {"row": inline(row), "column": inline(column), "value": matrix[y][x]}
        for y, row in enumerate(names)
        for x, column in enumerate(names)
    ]
    return Exhibit.of(
        f"Overlap of the tasks' neurons, {WRITTEN[rate]}",
        [
            {"task": row} | dict(zip(names, map(write_number, values), strict=True))
            for row, values in zip(names, matrix, strict=True)
        ],
        ["On the diagonal, of the sets of a task's own subsets.", *told] * (rate == COMPARED),
        chart_matrix(cells, ""),
    )


def overlap(
    folders: Sequence[Path], kinds: Mapping[str, str], out: Path | None = None, *, command: str = ""
) -> Reported:
    """Hold the neurons of every task of some `locate` runs against each other; no model is needed.

    Writes `overlap.json` and `report.html` into `out`, without it both beside those of the first
    run, the page in a folder `overlap`. Raises UserError if a folder holds no such run, runs are of
    different models, one is named twice, there is a single task, or a kind is given to a task that
    no run has.
    """
    grid, located, splits, tasks = gather_runs(folders)
    if len(located) < 2:
        raise UserError("Overlap needs two tasks or more; name further runs.")
    check_kinds(kinds, tasks.values(), "the runs", "they have")
    overlaps = rates_between(located, splits)
    named = {name: kinds.get(task, name) for name, task in tasks.items()}
    summary = cohesion(overlaps.rates[COMPARED], overlaps.datasets, named).as_dict()
    results = {**overlaps.as_dict(), "cohesion": summary, "pairs": pairs_of(grid, located)}
    shown = [
        *(tabulate_overlaps(results, summary, rate) for rate in WRITTEN),
        Exhibit.of("Neurons in common", map(describe_pair, results["pairs"])),
    ]
    out, page = (out, "") if out else (folders[0], "overlap")
    out.mkdir(parents=True, exist_ok=True)
    return report(out / OVERLAP, results, shown, "Neurons in common", command, page=page)


def pairs_of(grid: NeuronGrid, located: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Count the neurons in common of every two tasks beside what chance gives."""
    rows = []
    for first, second in combinations(located, 2):
        common = grid.named(located[first] & located[second])
        names = " ".join(map(str, common[:NAMED]))
        found = count_shared(located[first], located[second], grid).as_dict()
        rows.append({"tasks": f"{first}, {second}", "neurons": names, **found})
    return rows


def describe_pair(pair: Found) -> dict[str, str]:
    """Describe in a row what two tasks' neurons have in common."""
    return {
        "tasks": pair["tasks"],
        "in common": f"{pair['count']:,}",
        "by chance": write_number(pair["expected"], 2),
        "p": write_number(pair["p"], 4),
        "by chance in layers": write_number(pair["expected_in_layers"], 2),
        "p in layers": write_number(pair["p_in_layers"], 4),
        "neurons": pair["neurons"] or NOTHING,
    }


def gather_runs(
    folders: Sequence[Path],
) -> tuple[NeuronGrid, dict[str, np.ndarray], dict[str, np.ndarray], dict[str, str]]:
    """Read the grid, and by name each task's neurons, those of its subsets, and the task itself.

    A task of several runs (other seeds, other scores) goes by its name and its run's folder.
    """
    places = Counter(folder.resolve() for folder in folders)
    if twice := [folder for folder in folders if places[folder.resolve()] > 1]:
        raise UserError(f"{twice[0]} is named twice; name each run once.")
    results = [read_located(folder) for folder in folders]
    models = {result.model.fingerprint: result.model.name for result in results}
    if len(models) > 1:
        raise UserError(
            f"The runs are of different models ({', '.join(models.values())}); name runs of one."
        )
    often = Counter(task.task for result in results for task in result.tasks)
    located: dict[str, np.ndarray] = {}
    splits: dict[str, np.ndarray] = {}
    tasks: dict[str, str] = {}
    for folder, result in zip(folders, results, strict=True):
        for task, (own, sets) in result.sets().items():
            name = task if often[task] == 1 else f"{task} ({folder})"
            located[name], splits[name], tasks[name] = own, sets, task
    return results[0].grid, located, splits, tasks
