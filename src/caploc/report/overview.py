"""The page over several runs: their verdicts, heads, tasks, methods and models side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os.path import relpath
from pathlib import Path
from typing import Any
from urllib.parse import quote

from caploc.components import Component
from caploc.report.card import cells, label
from caploc.report.headtable import head_map
from caploc.report.templates import COMPARE, write_page
from caploc.result import Result
from caploc.verdict import make_card
from caploc.wording import called, inline, name_list, percent, significant, visible

Told = Mapping[str, Any]  # the content of compare.json, or a part of it


@dataclass(frozen=True, slots=True)
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

    @property
    def effects(self) -> dict[Component, float | None]:
        return {entry.place: entry.effect for entry in self.result.heads}

    @property
    def top_heads(self) -> list[Component]:
        """The heads that the run names, where it has an effect of them."""
        return [entry.place for entry in self.result.heads if entry.head in self.result.top]


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a title; its first column names the row."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""


def write_comparison(folder: Path, compared: Sequence[ComparedRun], told: Told) -> Path:
    """Write `folder/compare.html`.

    `told` is the content of compare.json; its runs are those of `compared`, in their order. Returns
    the path of the page; raises OSError if the folder or the file cannot be written.
    """
    models = list(dict.fromkeys(one.weights for one in compared))
    tables = [tabulate_methods(each) for each in told["methods"]]
    tables += [table for each in told["models"] for table in tabulate_shared(each)]
    tables += [tabulate_models(each) for each in told["across"]]
    return write_page(
        folder,
        "overview.html.j2",
        name=COMPARE,
        runs=[describe_run(folder, one) for one in compared],
        matrices=[_matrix([o.result for o in compared if o.weights == key]) for key in models],
        several_models=len(models) > 1,
        tables=[table for table in tables if table.rows],
        command=visible(told["command"]),
    )


def describe_run(folder: Path, one: ComparedRun) -> dict[str, Any]:
    """Return a run's card, its link and its map."""
    card = make_card(one.result)
    way = relpath(one.folder, folder).replace("\\", "/")
    return {
        # The leading dot keeps a folder named like `javascript:` from being taken for a scheme.
        "link": f"./{quote(way, errors='replace')}/report.html",
        "task": called(one.result.task.name),
        "method": inline(one.result.method.name),
        "card": card,
        "label": label(card),
        "cells": cells(card.rows[0]),
        "rows": one.result.cost.rows,
        "map": head_map(one.result),
    }


def _matrix(results: Sequence[Result]) -> dict[str, Any]:
    """Hold runs of one model against all heads that are among the top of any of them."""
    names = {name for result in results for name in result.top}
    heads = {entry.place for result in results for entry in result.heads if entry.head in names}
    several = len({result.method.name for result in results}) > 1
    rows = []
    for result in results:
        task = called(result.task.name)
        row = [cell for layer in head_map(result).layers for cell in layer if cell.head in heads]
        rows.append((f"{task} · {inline(result.method.name)}" if several else task, row))
    return {"model": called(results[0].model.shown), "heads": sorted(heads), "rows": rows}


def tabulate_methods(question: Told) -> Table:
    """Tabulate pairs of runs of one task in one model: heads in common, and the ranks."""
    rows = []
    for pair in question["pairs"]:
        rank, heads = pair["rank_correlation"], name_list(pair["heads"])
        common = f"{len(pair['heads'])} of {pair['of']}" + (f": {heads}" if heads else "")
        named = f"{inline(pair['first'])}, {inline(pair['second'])}"
        agreement = "–" if rank is None else significant(rank, 2)
        rows.append([named, common, *write_chance(pair["chance"], "p_of_pairs"), agreement])
    columns = ["runs", "heads in common", "by chance", "p", "rank correlation"]
    title = f"Runs of {called(question['task'])} in {called(question['model'])}"
    return Table(title, columns, rows, P_VALUES)


P_VALUES = (
    "By chance: the mean number that random heads of the same layers have in common; p: the chance "
    "of as many or more, corrected for the number of pairs (Holm)."
)


def write_chance(chance: Told, which: str = "p_in_layers") -> list[str]:
    """Write how many heads chance gives in the same layers, and how surprising as many are."""
    p = chance[which]
    few = "<\u00a00.001" if p < 0.001 else significant(p, 2)
    return [significant(chance["expected_in_layers"], 2), few]


def tabulate_shared(model: Told) -> list[Table]:
    """Tabulate heads that several tasks of one model name, beside what chance gives."""
    shared, name = model["shared"], called(model["model"])
    counts = [
        [f"{row['tasks']} or more", str(len(row["heads"])), *write_chance(row["chance"])]
        for row in shared
        if row["heads"]
    ]
    first = shared[0]["heads"] if shared else {}
    found = {each["head"]: each["found_by"] for each in model["universal"]}
    owners = [
        [head, name_list(list(map(called, first[head])), 12), name_list(found.get(head, []))]
        for head in sorted(first, key=lambda head: -len(first[head]))
    ]
    pairs = [
        [f"{called(pair['first'])}, {called(pair['second'])}", name_list(pair["heads"])]
        + write_chance(pair["head_chance"], "p_of_pairs")
        for pair in model["overlaps"]
        if pair["heads"]
    ]
    columns = ["heads", "by chance", "p"]
    return [
        Table(f"Tasks that name a head in {name}", ["tasks", *columns], counts),
        Table(f"Heads of several tasks in {name}", ["head", "tasks", "breaks others in"], owners),
        Table(f"Pairs of tasks in {name}", ["tasks", *columns], pairs, P_VALUES),
    ]


def tabulate_models(task: Told) -> Table:
    """Tabulate runs of one task in several models."""
    rows = []
    for each in task["models"]:
        shape = f"{each['layers']} x {each['heads'] // max(1, each['layers'])}"
        depths = name_list([f"{head} ({percent(at)})" for head, at in each["depths"].items()])
        rows.append([called(each["model"]), shape, percent(each["share"] or 0.0), depths])
    columns = ["model", "layers x heads", "named", "heads (depth)"]
    note = "Heads of different models are different heads, even where they share a name."
    return Table(f"{called(task['task'])}, model by model", columns, rows, note)
