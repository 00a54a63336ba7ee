"""Finished runs side by side: tasks, models and methods. No model is run.

    compare(folders, out)     # compare.json, compare.html

Runs of one model share a grid of heads, so that their heads can be held against each other; heads
of different models cannot, and there only places (relative depth) and losses are compared.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from caploc.components import Grid
from caploc.contents import Universal, read_file
from caploc.errors import UserError
from caploc.folder import (
    COMPARISON,
    RESULT,
    UNIVERSAL,
    finished_in,
    package_versions,
    write_json,
)
from caploc.report.overview import ComparedRun, write_comparison
from caploc.result import Result
from caploc.stats import chance
from caploc.verdict import make_card
from caploc.wording import called_apart, unit_of

DRAWS = 1_999  # random sets of heads, to tell chance; no p is below 1 / (1 + DRAWS)


def compare(folders: Sequence[Path], out: Path, *, command: str = "") -> dict[str, Any]:
    """Hold finished runs against each other; write `compare.json` and `compare.html`.

    A folder is a run's, or one of runs. What `caploc universal` left in one is read as well. Raises
    UserError if a folder holds no finished run, or there is none; StoreFailed if the result cannot
    be written; OSError if the page cannot be.
    """
    return compare_runs(read_runs(folders), folders, out, command=command)


def compare_runs(
    runs: Sequence[ComparedRun],
    folders: Sequence[Path],
    out: Path,
    *,
    command: str = "",
) -> dict[str, Any]:
    """Hold runs that were read against each other, as `compare`."""
    told: dict[str, Any] = {
        "schema": 1,
        "runs": [describe_run(run) for run in runs],
        "models": [one_model(group, folders) for group in grouped(runs, lambda run: run.weights)],
        "methods": [
            compare_methods(group)
            for group in grouped(runs, lambda run: (*run.weights, run.result.task.name))
            if len(group) > 1
        ],
        "across": [
            {"task": group[0].result.task.name, "models": [in_model(run) for run in group]}
            for group in grouped(runs, lambda run: run.result.task.name)
            if len({run.weights for run in group}) > 1
        ],
        "command": command,
        "versions": package_versions(),
    }
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / COMPARISON, told)
    write_comparison(out, runs, told)
    return told


def read_runs(folders: Sequence[Path]) -> list[ComparedRun]:
    """The runs of the folders, in their order; a folder of runs stands for all of them."""
    found: dict[Path, Path] = {}
    for folder in folders:
        runs = finished_in(folder)
        if (folder / UNIVERSAL).exists() and not (runs[0] / RESULT).exists():
            continue  # what it says of heads is read beside the runs
        found |= {path.resolve(): path for path in runs}
    if not found:
        raise UserError("There is no run to compare; name folders of finished `caploc locate`.")
    names = called_apart([real.as_posix() for real in found])
    return [
        ComparedRun(names[real.as_posix()], path, read_file(path / RESULT, Result))
        for real, path in found.items()
    ]


def grouped(
    runs: Sequence[ComparedRun], key: Callable[[ComparedRun], Any]
) -> list[list[ComparedRun]]:
    """Runs of the same key together, in the order of the first of each."""
    groups: dict[Any, list[ComparedRun]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return list(groups.values())


def describe_run(run: ComparedRun) -> dict[str, Any]:
    """What one run found; missing is None."""
    result, card = run.result, make_card(run.result)
    controls, others = result.validation.controls, result.validation.other_tasks
    before, after = card.rows[0].intact, card.rows[0].without
    worse = unit_of(result).harm
    return {
        "name": run.name,
        "folder": str(run.folder),
        "model": result.model.shown,
        "fingerprint": result.model.fingerprint,
        "task": result.task.name,
        "metric": result.task.metric,
        "method": result.method.name,
        "seed": result.seed,
        "top": result.top,
        "heads": result.grid.grid().size,
        "intact": before,
        "knocked_out": after,
        "held_out": card.held_out,
        "random_heads": controls.mean if controls else None,
        "damage": None if before is None or after is None else worse(after - before),
        "verdict": card.verdict.value,
        "other_tasks": [
            dict(zip(("name", "intact", "knocked_out"), (each.name, *each.scores), strict=True))
            for each in others
        ],
        "rows": result.cost.rows,
        "seconds": result.cost.seconds,
    }


def one_model(runs: Sequence[ComparedRun], folders: Sequence[Path]) -> dict[str, Any]:
    """The tasks of one model: effects of every named head on each, and heads that tasks share.

    Of several runs of a task the first one speaks for it where tasks are held against each other.
    """
    grid = runs[0].result.grid.grid()
    first = {run.result.task.name: run for run in reversed(runs)}
    found = {
        run.result.task.name: run.top_heads
        for run in runs
        if first[run.result.task.name] is run and run.top_heads
    }
    named = sorted({head for run in runs for head in run.top_heads})
    rows = []
    for run in runs:
        effects = list(map(run.effects.get, named))
        rows.append({"run": run.name, "task": run.result.task.name, "effects": effects})
    return {
        "model": runs[0].result.model.shown,
        "fingerprint": runs[0].result.model.fingerprint,
        "layers": grid.layers,
        "heads": list(grid.per_layer),
        "runs": [run.name for run in runs],
        "matrix": {"heads": [str(head) for head in named], "rows": rows},
        "shared": [each.as_dict() for each in chance.shared(found, grid, draws=DRAWS)],
        "overlaps": [each.as_dict() for each in chance.overlaps(found, grid)],
        "universal": universal_heads(runs, folders),
    }


def universal_heads(runs: Sequence[ComparedRun], folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Heads that were tried and found universal, and by what: a run's search, or `universal`."""
    said: dict[str, list[str]] = {}
    for run in runs:
        for name in run.result.search.universal:
            said.setdefault(name, []).append(run.name)
    model = runs[0].result.model.shown
    for folder in folders:
        if (folder / UNIVERSAL).exists():
            tried = read_file(folder / UNIVERSAL, Universal)
            for name in tried.universal if tried.model == model else ():
                said.setdefault(name, []).append(folder.name)
    return [{"head": head, "found_by": names} for head, names in said.items()]


def compare_methods(runs: Sequence[ComparedRun]) -> dict[str, Any]:
    """Several runs of one task in one model: what each names, how much it breaks, what it cost."""
    result = runs[0].result
    grid = result.grid.grid()
    by_name = {run.name: run for run in runs}
    found = {name: run.top_heads for name, run in by_name.items()}
    pairs = []
    for overlap in chance.overlaps(found, grid):
        one, other = by_name[overlap.first], by_name[overlap.second]
        pairs.append(
            {
                "first": one.name,
                "second": other.name,
                "heads": overlap.heads,
                "of": min(len(one.result.top), len(other.result.top)),
                "chance": overlap.head_chance.as_dict(),
                "rank_correlation": rank_agreement(one, other, grid),
            }
        )
    told = {"model": result.model.shown, "task": result.task.name, "runs": list(by_name)}
    return told | {"pairs": pairs}


def rank_agreement(one: ComparedRun, other: ComparedRun, grid: Grid[Any]) -> float | None:
    """Spearman's, of the effects of all heads that both measured; None where there is no order."""
    sides = one.effects, other.effects
    both = [[side.get(head) for side in sides] for head in grid.components]
    values = np.array([pair for pair in both if None not in pair], dtype=float)
    if len(values) < 3 or any(len(set(column)) < 2 for column in values.T):
        return None
    return float(spearmanr(values[:, 0], values[:, 1]).statistic)


def in_model(run: ComparedRun) -> dict[str, Any]:
    """Where a run's heads lie in its model, 0 the first layer and 1 the last."""
    grid = run.result.grid.grid()
    depths = {str(head): head.layer / max(1, grid.layers - 1) for head in run.top_heads}
    return {
        "run": run.name,
        "model": run.result.model.shown,
        "layers": grid.layers,
        "heads": grid.size,
        "share": len(run.result.top) / grid.size if grid.size else None,
        "depths": {name: depths[name] for name in run.result.top if name in depths},
    }
