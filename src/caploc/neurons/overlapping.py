"""What the neurons of several finished runs have in common."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from caploc.commonality import COMPARED, RATES, across, chance, cohesion
from caploc.contents import read_contents
from caploc.errors import BadOption, UserError
from caploc.exhibits import drawing
from caploc.exhibits.exhibit import NOTHING, Exhibit, Value
from caploc.folder import NEURONS, OVERLAP, versions, write_json
from caploc.neurons.exhibits.intervals import figure, known
from caploc.neurons.grid import NeuronGrid
from caploc.neurons.located import restored

Row = tuple[str | Value, ...]
TITLES = {
    "reference": "of the row's neurons",
    "largest": "by the larger set",
    "smallest": "by the smaller set",
    "dice": "Dice",
    "iou": "IoU",
}


def overlap(
    folders: Sequence[Path], kinds: Mapping[str, str], out: Path, *, command: str = ""
) -> tuple[dict[str, Any], list[Exhibit]]:
    """Hold the neurons of every task of some `locate` runs against each other; no model is needed.

    Writes `overlap.json` into `out`.

    Raises:
        UserError: if a folder holds no such run, runs are of different models, one is named twice,
            there is a single task, or a kind is given to a task that no run has.
    """
    grid, located, splits, tasks = gathered(folders)
    if len(located) < 2:
        raise UserError("Overlap needs two tasks or more; name further runs.")
    if strange := [task for task in kinds if task not in tasks.values()]:
        raise BadOption(
            f"--kind names {strange[0]}, which is no task of the runs; they have "
            f"{', '.join(dict.fromkeys(tasks.values()))}."
        )
    overlaps = across(located, splits)
    named = {name: kinds.get(task, name) for name, task in tasks.items()}
    summary = cohesion(overlaps.rates[COMPARED], overlaps.datasets, named)
    result = {
        "schema": 1,
        **overlaps.as_dict(),
        "cohesion": summary.as_dict(),
        "command": command,
        "versions": versions(),
    }
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / OVERLAP, result)
    exhibits = [table(rate, overlaps.datasets, overlaps.rates[rate]) for rate in RATES]
    exhibits.append(pairs(grid, located))
    exhibits[RATES.index(COMPARED)].notes.append(
        f"Cohesion {figure(summary.cohesion)}, separability {figure(summary.separability)}; of "
        f"one kind {figure(summary.same_kind)}, of different kinds {figure(summary.across_kinds)}."
    )
    return result, exhibits


def gathered(
    folders: Sequence[Path],
) -> tuple[NeuronGrid, dict[str, np.ndarray], dict[str, np.ndarray], dict[str, str]]:
    """The grid, and by name each task's neurons, those of its subsets, and the task itself.

    A task of several runs (other seeds, other scores) goes by its name and its run's folder.
    """
    places = Counter(folder.resolve() for folder in folders)
    if twice := [folder for folder in folders if places[folder.resolve()] > 1]:
        raise UserError(f"{twice[0]} is named twice; name each run once.")
    results = [read_contents(folder / NEURONS) for folder in folders]
    models = {result["model"]["fingerprint"] for result in results}
    if len(models) > 1:
        names = ", ".join(dict.fromkeys(result["model"]["name"] for result in results))
        raise UserError(f"The runs are of different models ({names}); name runs of one.")
    often = Counter(task["task"] for result in results for task in result["tasks"])
    located: dict[str, np.ndarray] = {}
    splits: dict[str, np.ndarray] = {}
    tasks: dict[str, str] = {}
    for folder, result in zip(folders, results, strict=True):
        grid, found = restored(result)
        for task, (own, sets) in found.items():
            name = task if often[task] == 1 else f"{task} ({folder})"
            located[name], splits[name], tasks[name] = own, sets, task
    return grid, located, splits, tasks


def table(rate: str, tasks: Sequence[str], values: np.ndarray) -> Exhibit:
    """One rate between every two tasks."""
    rows: list[Row] = [
        (task, *(Value(known(float(value)), digits=3) for value in row))
        for task, row in zip(tasks, values, strict=True)
    ]
    draw = partial(drawing.matrix, tasks, tasks, values, label=f"overlap, {TITLES[rate]}")
    return Exhibit(
        f"overlap-{rate}",
        f"Overlap of the tasks' neurons, {TITLES[rate]}",
        ("task", *tasks),
        rows,
        ["On the diagonal, within the task: of the sets of its own subsets."],
        draw if rate == COMPARED else None,
    )


def pairs(grid: NeuronGrid, located: Mapping[str, np.ndarray]) -> Exhibit:
    """The neurons in common of every two tasks beside what chance gives."""
    rows: list[Row] = []
    names = list(located)
    for place, first in enumerate(names):
        for second in names[place + 1 :]:
            found = chance(located[first], located[second], grid)
            common = grid.named(located[first] & located[second])
            rows.append(
                (
                    f"{first}, {second}",
                    str(found.count),
                    Value(found.expected, digits=2),
                    Value(found.p, digits=4),
                    Value(found.expected_in_layers, digits=2),
                    Value(found.p_in_layers, digits=4),
                    " ".join(map(str, common[:8])) or NOTHING,
                )
            )
    columns = "tasks; in common; by chance; p; by chance in layers; p in layers; neurons"
    return Exhibit("overlap-pairs", "Neurons in common", tuple(columns.split("; ")), rows)
