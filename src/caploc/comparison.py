"""Finished runs side by side: their cards, and every named head in each. No model is run.

    compare(folders, out)     # compare.json, compare.html

Runs of one model share a grid of heads, so that their heads can be held against each other; heads
of different models cannot.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from os.path import relpath
from pathlib import Path
from typing import Any
from urllib.parse import quote

from caploc.contents import read_file
from caploc.errors import UserError
from caploc.folder import COMPARISON, RESULT, finished_in, package_versions, write_json
from caploc.report.card import cells, label
from caploc.report.headtable import Cell, head_map
from caploc.report.templates import COMPARE, write_page
from caploc.result import Card, Result
from caploc.verdict import make_card
from caploc.wording import called, called_apart, inline, visible


@dataclass(frozen=True)
class ComparedRun:
    """A run to be held against others: a name of its own, its folder and its result."""

    name: str
    folder: Path
    result: Result

    @property
    def weights(self) -> tuple[str, str | None, str]:
        """What two runs of one model have in common: heads of others are not the same heads."""
        model = self.result.model
        return model.name, model.fingerprint, self.result.grid.components

    @cached_property
    def card(self) -> Card:
        return make_card(self.result)

    def as_dict(self) -> dict[str, Any]:
        """Return what compare.json says of it."""
        told = {"name": self.name, "folder": str(self.folder), "method": self.result.method.name}
        return told | {"rows": self.result.cost.rows} | self.card.as_dict()


def compare(folders: Sequence[Path], out: Path, *, command: str = "") -> list[ComparedRun]:
    """Hold finished runs against each other; write `compare.json` and `compare.html`.

    A folder is a run's, or one of runs. Raises UserError if a folder holds no finished run, or
    there is none; StoreFailed if the result cannot be written; OSError if the page cannot be.
    """
    runs = read_runs(folders)
    models = list(dict.fromkeys(run.weights for run in runs))
    told = {
        "schema": 1,
        "runs": [run.as_dict() for run in runs],
        "command": command,
        "versions": package_versions(),
    }
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / COMPARISON, told)
    write_page(
        out,
        "compare.html.j2",
        name=COMPARE,
        runs=[describe_run(out, run) for run in runs],
        matrices=[lay_out_heads([run for run in runs if run.weights == key]) for key in models],
        command=visible(command),
    )
    return runs


def read_runs(folders: Sequence[Path]) -> list[ComparedRun]:
    """The runs of the folders, in their order; a folder of runs stands for all of them."""
    found = {path.resolve(): path for folder in folders for path in finished_in(folder)}
    if not found:
        raise UserError("There is no run to compare; name folders of finished `caploc locate`.")
    names = called_apart([real.as_posix() for real in found])
    return [
        ComparedRun(names[real.as_posix()], path, read_file(path / RESULT, Result))
        for real, path in found.items()
    ]


def describe_run(folder: Path, run: ComparedRun) -> dict[str, Any]:
    """Return what the page's row of a run is filled with."""
    way = relpath(run.folder, folder).replace("\\", "/")
    return {
        # The leading dot keeps a folder named like `javascript:` from being taken for a scheme.
        "link": f"./{quote(way, errors='replace')}/report.html",
        "task": called(run.result.task.name),
        "method": inline(run.result.method.name),
        "card": run.card,
        "label": label(run.card),
        "cells": cells(run.card.rows[0]),
        "rows": run.result.cost.rows,
    }


def lay_out_heads(runs: Sequence[ComparedRun]) -> dict[str, Any]:
    """Hold runs of one model against all heads that any of them names: a row for each run."""
    named = {name for run in runs for name in run.result.top}
    rows: list[tuple[str, list[Cell]]] = []
    for run in runs:
        row = [c for layer in head_map(run.result).layers for c in layer if str(c.head) in named]
        rows.append((f"{called(run.result.task.name)} · {inline(run.result.method.name)}", row))
    return {"model": runs[0].card.model, "heads": [cell.head for cell in rows[0][1]], "rows": rows}
