"""Find every task's neurons, and hold them against each other."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from caploc.errors import BadOption, UserError
from caploc.folder import NEURONS, OVERLAP, package_versions
from caploc.neurons.chance import count_shared
from caploc.neurons.erasure import YES_NO, Eraser, tabulate_arms
from caploc.neurons.finding import FEW, TaskNeurons
from caploc.neurons.model import NeuronGrid
from caploc.neurons.options import LAYERS, LOCATED, Erasing, NeuronStudy, Rule
from caploc.neurons.report import (
    NOTHING,
    Exhibit,
    chart_curves,
    chart_matrix,
    chart_points,
    over_draws,
    points_of,
    report,
    write_interval,
    write_number,
    write_p,
)
from caploc.neurons.result import (
    Erased,
    LocatedFile,
    LocatedGrid,
    LocatedModel,
    LocatedNeuron,
    OverlapFile,
    SharedNeurons,
    TaskRecord,
)
from caploc.neurons.sets import COMPARED, Cohesion, Overlaps, between, cohesion, rates_between
from caploc.neurons.study import NeuronSession, open_study, read_located
from caploc.pairs import identify
from caploc.progress import Progress
from caploc.wording import called_apart

NAMED, HIGHEST = 8, 4  # neurons in common, and of the highest scores, that a table names
WRITTEN = {COMPARED: "by the larger set", "iou": "as IoU"}


@dataclass(frozen=True)
class LocatedNeurons:
    """The neurons of several tasks of one model, and what their subsets have in common.

    `kinds` says which tasks are of one kind (each its own if it is not named).
    """

    grid: NeuronGrid
    rule: Rule
    found: dict[str, TaskNeurons]
    kinds: Mapping[str, str]

    def overlaps(self) -> Overlaps:
        """Compute the rates between every two tasks, on the diagonal within each."""
        return rates_between(
            {task: each.located for task, each in self.found.items()},
            {task: each.subsets for task, each in self.found.items()},
        )

    def cohesion(self) -> Cohesion:
        """Ask whether sets are alike within a task and a kind, and unlike across."""
        overlaps = self.overlaps()
        kinds = {task: self.kinds.get(identify(task), task) for task in self.found}
        return cohesion(np.array(overlaps.rates[COMPARED]), overlaps.datasets, kinds)

    def by_chance(self, task: str) -> float | None:
        """Average the overlap of two subsets' sets if each kept only its numbers in the layers."""
        shares = [
            count_shared(one, other, self.grid).expected_in_layers / max(one.sum(), other.sum())
            for one, other in combinations(self.found[task].subsets, 2)
            if one.any() or other.any()
        ]
        return float(np.mean(shares)) if shares else None

    def task(self, task: str, erased: Erased | None = None) -> TaskRecord:
        """Describe a task's neurons."""
        found, grid, moments = self.found[task], self.grid, self.found[task].moments
        alike, across, separate = found.within(), None, None
        others = {name: each.subsets for name, each in self.found.items() if name != task}
        if others:
            across, within = between(found.subsets, others, COMPARED), alike.rates[COMPARED]
            if not np.isnan([within.low, across.high]).any():
                separate = within.low > across.high
        return TaskRecord(
            task=task,
            examples=found.examples,
            effective_examples=moments.effective_items,
            neurons=[
                LocatedNeuron(
                    str(grid.component(column)),
                    float(moments.mean[column]),
                    float(moments.standard_error[column]),
                )
                for column in found.ordered
            ],
            subsets=[[str(n) for n in grid.named(chosen)] for chosen in found.subsets],
            share=float(found.located.mean()),
            layers=grid.counts(found.located),
            within=alike,
            curve=found.curve,
            halves=found.halves,
            by_chance=self.by_chance(task),
            across=across,
            separate=separate,
            erased=erased,
        )


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
) -> tuple[LocatedFile, list[Exhibit]]:
    """Find the neurons of every task; write `neurons.json` and `report.html`."""
    check_kinds(kinds or {}, map(identify, study.tasks), "the run", "they are")
    with open_study(study, folder, progress, command) as session:
        found = {task: session.found(task) for task in study.tasks}
        judged = [task for task, each in found.items() if study.judged and each.located.any()]
        erased = {task: erase_own(session, task) for task in judged}
        model, several = session.model, len(found) > 1
        for part in model.uncovered:
            session.progress.tell(f"Not covered: {part}, with weights that no neuron reads.")
        located = LocatedNeurons(model.grid, study.rule, found, kinds or {})
        result = LocatedFile(
            model=LocatedModel(
                name=study.model.name,
                fingerprint=model.fingerprint,
                uncovered=list(model.uncovered),
            ),
            rule=str(study.rule),
            attribution=study.attribution.method,
            grid=LocatedGrid(layers=model.grid.layers, neurons=list(model.grid.neurons_per_layer)),
            tasks=[located.task(task, erased.get(task)) for task in found],
            overlaps=located.overlaps() if several else None,
            cohesion=located.cohesion() if several else None,
            command=command,
            versions=package_versions(),
        )
        title, shown = f"Neurons of {study.model.name}", located_exhibits(result)
        return report(folder / NEURONS, result, shown, title, [describe_locating(study)])


def check_kinds(kinds: Mapping[str, str], tasks: Iterable[str], where: str, are: str) -> None:
    """Refuse kinds of tasks that are not there."""
    known = dict.fromkeys(tasks)
    if strange := [task for task in kinds if task not in known]:
        raise BadOption(
            f"--kind names {strange[0]}, which is no task of {where}; {are} {', '.join(known)}."
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


def located_exhibits(result: LocatedFile) -> list[Exhibit]:
    """Show the neurons of each task, what they are needed for, and how tasks overlap."""
    tasks = result.tasks
    erased = {task.task: task.erased for task in tasks if task.erased}
    alike = [
        point
        for task in tasks
        for point in points_of(
            task.task,
            {"within the task": task.within.rates[COMPARED], "across tasks": task.across},
        )
    ]
    counts = [
        {"row": task.task, "column": f"L{layer}", "value": count}
        for task in tasks
        for layer, count in enumerate(task.layers)
    ]
    growth = [
        {"series": task.task, "x": size, "y": largest}
        for task in tasks
        for size, largest, _ in task.curve
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
            chart_points(alike, "overlap of subsets' sets, by the larger"),
        ),
        *([tabulate_arms(erased)] if erased else []),
        Exhibit.of(
            "Neurons in each layer",
            [
                {"task": task.task} | {f"L{n}": str(count) for n, count in enumerate(task.layers)}
                for task in tasks
            ],
            chart=chart_matrix(counts, ""),
        ),
        Exhibit.of(
            "Overlap within a task by examples in a subset",
            [
                {"task": task.task}
                | {str(size): write_number(largest) for size, largest, _ in task.curve}
                for task in tasks
            ],
            chart=chart_curves(
                growth, "examples in each subset", "overlap by the larger set", logarithmic=True
            ),
        ),
    ]
    if result.overlaps and result.cohesion:
        exhibits.append(tabulate_overlaps(result.overlaps, result.cohesion, COMPARED))
    return exhibits


def describe_task(task: TaskRecord) -> dict[str, str]:
    """Describe a task's neurons in a row."""
    neurons, weigh = task.neurons, task.effective_examples
    few = f", weighing as {weigh:.0f}" if weigh <= FEW * task.examples else ""
    highest = " ".join(each.neuron for each in neurons[:HIGHEST])
    return {
        "task": task.task,
        "examples": f"{task.examples:,}{few}",
        "neurons": f"{len(neurons):,}",
        "share, %": write_number(100 * task.share, 2),
        "overlap within": write_interval(task.within.rates[COMPARED]),
        "IoU within": write_interval(task.within.rates["iou"]),
        "halves": write_number(over_draws(task.halves).mean),
        "by chance, in layers": write_number(task.by_chance),
        "overlap across": write_interval(task.across),
        "apart": YES_NO[task.separate],
        "highest scores": f"{highest}{' …' * (len(neurons) > HIGHEST)}" or NOTHING,
    }


def tabulate_overlaps(overlaps: Overlaps, cohesion: Cohesion, rate: str) -> Exhibit:
    """Show one rate between every two tasks, on the diagonal within each."""
    names, matrix = overlaps.datasets, overlaps.rates[rate]
    figures = {
        "mean of the diagonal": cohesion.cohesion,
        "of the rest": cohesion.separability,
        "tasks of one kind": cohesion.same_kind,
        "of different kinds": cohesion.across_kinds,
        "p of kinds": cohesion.p,
    }
    told = [f"{words} {write_number(n)}" for words, n in figures.items() if n is not None]
    cells = [
        {"row": row, "column": column, "value": matrix[y][x]}
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
) -> tuple[OverlapFile, list[Exhibit]]:
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
    named = {name: kinds.get(task, task) for name, task in tasks.items()}
    summary = cohesion(np.array(overlaps.rates[COMPARED]), overlaps.datasets, named)
    result = OverlapFile(
        datasets=overlaps.datasets,
        rates=overlaps.rates,
        cohesion=summary,
        pairs=pairs_of(grid, located),
        command=command,
        versions=package_versions(),
    )
    shown = [
        *(tabulate_overlaps(overlaps, summary, rate) for rate in WRITTEN),
        Exhibit.of("Neurons in common", map(describe_pair, result.pairs)),
    ]
    out, page = (out, "") if out else (folders[0], "overlap")
    out.mkdir(parents=True, exist_ok=True)
    return report(out / OVERLAP, result, shown, "Neurons in common", page=page)


def pairs_of(grid: NeuronGrid, located: Mapping[str, np.ndarray]) -> list[SharedNeurons]:
    """Count the neurons in common of every two tasks beside what chance gives."""
    rows = []
    for first, second in combinations(located, 2):
        common = grid.named(located[first] & located[second])
        names = " ".join(map(str, common[:NAMED]))
        chance = count_shared(located[first], located[second], grid)
        rows.append(SharedNeurons(task=first, other=second, neurons=names, **vars(chance)))
    return rows


def describe_pair(pair: SharedNeurons) -> dict[str, str]:
    """Describe in a row what two tasks' neurons have in common."""
    return {
        "task": pair.task,
        "other": pair.other,
        "in common": f"{pair.count:,}",
        "by chance": write_number(pair.expected, 2),
        "p": write_p(pair.p),
        "by chance in layers": write_number(pair.expected_in_layers, 2),
        "p in layers": write_p(pair.p_in_layers),
        "neurons": pair.neurons or NOTHING,
    }


def gather_runs(
    folders: Sequence[Path],
) -> tuple[NeuronGrid, dict[str, np.ndarray], dict[str, np.ndarray], dict[str, str]]:
    """Read the grid, and by name each task's neurons, those of its subsets, and which task it is.

    A task of several runs (other seeds, other scores) goes by its name and its run's folder.
    """
    places = Counter(folder.resolve() for folder in folders)
    if twice := [folder for folder in folders if places[folder.resolve()] > 1]:
        raise UserError(f"{twice[0]} is named twice; name each run once.")
    results = [read_located(folder) for folder in folders]
    if len({result.model.fingerprint for result in results}) > 1:
        pairs = zip(folders, results, strict=True)
        models = ", ".join(f"{result.model.name} in {folder}" for folder, result in pairs)
        raise UserError(f"The runs are of different models ({models}); name runs of one.")
    often = Counter(identify(task.task) for result in results for task in result.tasks)
    first = {identify(task.task): task.task for result in results for task in result.tasks}
    short = called_apart(first.values())
    located: dict[str, np.ndarray] = {}
    splits: dict[str, np.ndarray] = {}
    tasks: dict[str, str] = {}
    for folder, result in zip(folders, results, strict=True):
        for task, (own, sets) in result.sets().items():
            same = identify(task)
            name = task if often[same] == 1 else f"{short[first[same]]} ({folder})"
            located[name], splits[name], tasks[name] = own, sets, same
    return results[0].grid, located, splits, tasks
