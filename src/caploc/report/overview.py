"""The page over several runs: their heads, tasks, methods and models side by side."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os.path import relpath
from pathlib import Path
from typing import Any
from urllib.parse import quote

from caploc.components import Head
from caploc.report.advice import NextStep, is_handed_over
from caploc.report.charts import Chart
from caploc.report.headtable import head_map
from caploc.report.method import format_duration
from caploc.report.plots import FIGURES, draw_damage, draw_depths, write_matrices
from caploc.report.sentence import HURT, check_of, doubt_of_twins, surviving_twin
from caploc.report.templates import COMPARE, write_page
from caploc.report.wording import (
    SPACE,
    called,
    capital,
    counted,
    inline,
    name_list,
    numeral,
    percent,
    significant,
    unit_of_other,
    visible,
)
from caploc.result import Result

Told = Mapping[str, Any]  # the content of compare.json, or a part of it
Shown = Mapping[str, dict[str, Any]]  # each run in words, by its name


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A run to be held against others: a name of its own, its folder and its result."""

    name: str
    folder: Path
    result: Result

    @property
    def weights(self) -> tuple[str, str | None]:
        """What two runs of one model have in common: heads of others are not the same heads."""
        return self.result.model.name, self.result.model.fingerprint

    @property
    def effects(self) -> dict[Head, float | None]:
        return {entry.place: entry.effect for entry in self.result.heads}

    @property
    def top_heads(self) -> list[Head]:
        """The heads that the run names, where it has an effect of them."""
        return [entry.place for entry in self.result.heads if entry.head in self.result.top]


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a title; its first column names the row."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class PagePart:
    """A part of the page: tables and charts about one question."""

    title: str
    tables: list[Table]
    lines: list[str] = field(default_factory=list)
    chart: Chart | None = None


def write_comparison(
    folder: Path, compared: Sequence[ComparedRun], told: Told, *, figures: bool = True
) -> Path:
    """Write `folder/compare.html`, and the matrix of tasks and heads as figures if wanted.

    `told` is the content of compare.json; its runs are those of `compared`, in their order. Returns
    the path of the page; raises OSError if the folder or a file cannot be written.
    """
    shown = {one.name: _run(folder, one) for one in compared}
    models = list(dict.fromkeys(one.weights for one in compared))
    parts = [_methods_part(each, told, shown) for each in told["methods"]]
    parts += [_shared_part(each) for each in told["models"] if each["shared"]]
    parts += [_models_part(each, told, shown) for each in told["across"]]
    return write_page(
        folder,
        "overview.html.j2",
        name=COMPARE,
        headline=_headline(told),
        runs=list(shown.values()),
        matrices=[_matrix([o.result for o in compared if o.weights == key]) for key in models],
        several_models=len(models) > 1,
        handed_over=len(models) > 1 and any(is_handed_over(one.result) for one in compared),
        held_out=any(run["held_out"] for run in told["runs"]),
        parts=parts,
        steps_next=_steps(compared),
        figures=write_matrices(folder / FIGURES, told) if figures else [],
        command=visible(told["command"]),
    )


def _headline(told: Told) -> str:
    """Say what the runs have in common."""
    runs = told["runs"]
    if not runs:
        return "There are no runs here yet."
    tasks, models, methods = (
        list(dict.fromkeys(str(run[field]) for run in runs))
        for field in ("task", "model", "method")
    )
    these = called(tasks[0]) if len(tasks) == 1 else f"{numeral(len(tasks))} tasks"
    weights = {(run["model"], run["fingerprint"]) for run in runs}
    if len(weights) > 1:
        what = f"{capital(numeral(len(weights)))} models on {these}"
        return f"{what}: where their heads lie, and what is lost without them."
    if len(tasks) > 1:
        sharing = _shared_heads(told) + _left_out_elsewhere(told)
        return f"{capital(these)} in {called(models[0])}: {sharing}."
    if len(methods) > 1:
        return _methods_headline(told, tasks[0], methods)
    return f"{counted(len(runs), 'run')} of {called(tasks[0])} in {called(models[0])}."


def _left_out_elsewhere(told: Told) -> str:
    """Tell of heads that one task names and another leaves out since they break other tasks too."""
    tasks = {run["name"]: (called(run["task"]), run["top"]) for run in told["runs"]}
    parts = []
    for each in told["models"][0]["universal"]:
        naming = [task for task, top in tasks.values() if each["head"] in top]
        leaving = [tasks[name][0] for name in each["found_by"] if name in tasks]
        if naming and leaving:
            parts.append(
                f"{inline(each['head'])}, of {name_list(naming)}, is left out of "
                f"{name_list(leaving)}, since it breaks another task too"
            )
    return "".join(f"; {part}" for part in parts)


def _shared_heads(told: Told) -> str:
    """Tell which heads tasks have in common, beside what chance gives."""
    most = [row for row in told["models"][0]["shared"] if row["heads"]]
    if not most:
        return "no head is among the top of two of them"
    first, last = most[0], most[-1]
    verb = "is" if len(first["heads"]) == 1 else "are"
    text = f"{counted(len(first['heads']), 'head')} {verb} among the top of two of them or more"
    if last["tasks"] > 2:
        text += f", and {name_list(list(last['heads']))} of {numeral(last['tasks'])}"
    by_chance, p = _chance(first["chance"])
    return f"{text}; random heads of the same layers would share {by_chance} (p {p})"


def _methods_headline(told: Told, task: str, methods: Sequence[str]) -> str:
    runs = told["runs"]
    same = set.intersection(*(set(run["top"]) for run in runs))
    names = [name for name in runs[0]["top"] if name in same]
    agree = f"all name {name_list(names)}" if names else "no head is named by all"
    text = f"{capital(numeral(len(methods)))} methods on {called(task)}: {agree}"
    if None not in [run["damage"] for run in runs] and len({run["held_out"] for run in runs}) == 1:
        first, second = sorted(runs, key=lambda run: -run["damage"])[:2]
        if first["damage"] > max(0.0, second["damage"]):
            labels = _labels(runs, [inline(run["method"]) for run in runs])
            text += f"; the heads of {labels[first['name']]} break most"
    return f"{text}."


def _labels(rows: Sequence[Told], shown: Sequence[str]) -> dict[str, str]:
    """Label runs, by name, as `shown`; those that are shown alike with their names besides."""
    return {
        row["name"]: text if shown.count(text) == 1 else f"{text}, {inline(row['name'])}"
        for row, text in zip(rows, shown, strict=True)
    }


def _rows_of(told: Told, names: Sequence[str]) -> list[Told]:
    runs = {run["name"]: run for run in told["runs"]}
    return [runs[name] for name in names]


def _run(folder: Path, one: ComparedRun) -> dict[str, Any]:
    """Describe a run as the tables and the maps show it."""
    result, check = one.result, check_of(one.result)
    controls, rows = result.validation.controls, result.cost.rows
    cost = None if rows is None else f"{rows:,.0f}", format_duration(result.cost.seconds)
    scores = check.intact, check.knocked_out, controls.mean if controls else None
    way = relpath(one.folder, folder).replace("\\", "/")
    general = [
        f"{called(entry.name)}: "
        + f"{SPACE}→{SPACE}".join(map(unit_of_other(entry, check.unit).score, entry.scores))
        for entry in result.validation.other_tasks
    ]
    return {
        # The leading dot keeps a folder named like `javascript:` from being taken for a scheme.
        "link": f"./{quote(way, errors='replace')}/report.html",
        "task": check.task,
        "model": called(result.model.shown),
        "method": inline(result.method.name),
        "unit": check.unit,
        "scores": list(map(check.unit.score, scores)),  # intact, knocked out, without random heads
        "verdict": check.verdict.value
        + (f"; {doubt_of_twins(result)}" if surviving_twin(result) else ""),
        "general": general,  # each other task, before and after
        "named": bool(check.top),
        "top": name_list(check.top) or "none",
        "cost": [text or "not recorded" for text in cost],
        "map": head_map(result),
    }


def _matrix(results: Sequence[Result]) -> dict[str, Any]:
    """Hold runs of one model against all heads that are among the top of any of them."""
    names = {name for result in results for name in result.top}
    heads = {entry.place for result in results for entry in result.heads if entry.head in names}
    several = len({result.method.name for result in results}) > 1
    rows = []
    for result in results:
        task = called(result.task.name)
        cells = [cell for layer in head_map(result).layers for cell in layer if cell.head in heads]
        rows.append((f"{task} · {inline(result.method.name)}" if several else task, cells))
    return {"model": called(results[0].model.shown), "heads": sorted(heads), "rows": rows}


def _steps(compared: Sequence[ComparedRun]) -> list[NextStep]:
    """Say what to do next: what heads have in common, what a run found, what one did not."""
    found = [one for one in compared if check_of(one.result).verdict in HURT]
    open_ = [called(one.result.task.name) for one in compared if one not in found]
    steps = []
    if found:
        weights, task = found[0].weights, called(found[0].result.task.name)
        alike = {one.result.task.name: one.folder for one in found if one.weights == weights}
        places = [shlex.quote(visible(folder)) for folder in (found[0].folder, *alike.values())]
        if len(alike) > 1:
            why = "See which of these heads most tasks need: they are of no single capability."
            steps.append(NextStep(why, f"caploc universal {' '.join(places[1:])}"))
        why = f"Ask the model with and without the heads of {task}, on prompts of your own."
        steps.append(NextStep(why, f"caploc view {places[0]}"))
        why = f"Write a model without the heads of {task}, to use or to share."
        steps.append(NextStep(why, f"caploc export {places[0]} --to PATH"))
    if open_:
        why = "no heads are shown to matter: the end of that report says what may help."
        steps.append(NextStep(f"For {name_list(list(dict.fromkeys(open_)))} {why}"))
    return steps


def _methods_part(question: Told, told: Told, shown: Shown) -> PagePart:
    """Hold several runs of one task in one model together: damage for rows, heads in common."""
    runs = _rows_of(told, question["runs"])
    labels = _labels(runs, [inline(run["method"]) for run in runs])
    lines = [
        [label, shown[name]["top"], *shown[name]["scores"], *shown[name]["cost"]]
        for name, label in labels.items()
    ]
    pairs = []
    for pair in question["pairs"]:
        rank, heads = pair["rank_correlation"], name_list(pair["heads"])
        common = f"{len(pair['heads'])} of {pair['of']}" + (f": {heads}" if heads else "")
        named = f"{labels[pair['first']]} and {labels[pair['second']]}"
        agreement = "–" if rank is None else significant(rank, 2)
        pairs.append([named, common, *_chance(pair["chance"], "p_of_pairs"), agreement])
    columns = ["Method", "Heads", "Intact", "Knocked out", "Random heads", "Rows", "Time"]
    in_common = ["Runs", "Heads in common", "By chance", "p", "Rank correlation of effects"]
    note = (
        "By chance: the mean number of heads that two random sets of these sizes and from the same "
        f"layers have in common; p is the chance of as many or more{_corrected(len(pairs))}. The "
        "rank correlation is Spearman's, over all heads that both measured."
    )
    tables = [
        Table("What each one breaks, and what it costs", columns, lines),
        Table("Heads in common", in_common, pairs, note),
    ]
    title = f"{called(question['task'])} in {called(question['model'])}, run by run"
    unit = shown[runs[0]["name"]]["unit"]
    return PagePart(title, tables, chart=draw_damage(runs, labels, unit))


def _chance(chance: Told, which: str = "p_in_layers") -> list[str]:
    """Write how many heads chance gives in the same layers, and how surprising as many are."""
    p = chance[which]
    few = "<\u00a00.001" if p < 0.001 else significant(p, 2)
    return [significant(chance["expected_in_layers"], 2), few]


def _corrected(pairs: int) -> str:
    """Say that p values account for their number."""
    return f", corrected for {pairs} pairs (Holm)" if pairs > 1 else ""


def _shared_part(model: Told) -> PagePart:
    """Show heads that several tasks of one model name, beside what chance gives."""
    counts = [
        [f"{row['tasks']} or more", str(len(row["heads"]))] + _chance(row["chance"])
        for row in model["shared"]
        if row["heads"]
    ]
    first = model["shared"][0]["heads"]
    often = sorted(first, key=lambda head: -len(first[head]))
    owners = [[head, name_list([called(task) for task in first[head]], 12)] for head in often]
    met = [pair for pair in model["overlaps"] if pair["heads"]]
    pairs = [
        [f"{called(pair['first'])} and {called(pair['second'])}", name_list(pair["heads"])]
        + _chance(pair["head_chance"], "p_of_pairs")
        for pair in sorted(met, key=lambda pair: pair["head_chance"]["p_in_layers"])
    ]
    none = len(model["overlaps"]) - len(met)
    rest = f"{counted(none, 'other pair')} of tasks have no head in common. " if none else ""
    rest += f"p is matched by layer{_corrected(len(model['overlaps']))}."
    note = (
        "p is the chance that random sets of heads share as many, drawn so that each task keeps "
        "its number of heads in every layer."
    )
    columns = ["Tasks", "Heads", "By chance", "p"]
    tables = [
        Table("How many tasks name a head", columns, counts, note),
        Table("Heads of several tasks", ["Head", "Tasks"], owners),
        Table("Pairs of tasks", ["Tasks", "Heads", "By chance", "p"], pairs, rest),
    ]
    found = model["universal"]
    said = name_list([f"{each['head']} (found by {name_list(each['found_by'])})" for each in found])
    verb = "breaks" if len(found) == 1 else "break"
    line = f"{said} {verb} another task too."
    if not found:
        line = (
            "Whether a head that several tasks name is universal, and so of no one capability, is "
            "not known from these runs: caploc universal, with the folders of these runs, tries "
            "each on all their tasks."
        )
    title = f"Heads that tasks share in {called(model['model'])}"
    return PagePart(title, [table for table in tables if table.rows], [line])


def _models_part(task: Told, told: Told, shown: Shown) -> PagePart:
    """Hold runs of one task in several models together."""
    runs = _rows_of(told, [each["run"] for each in task["models"]])
    labels = list(_labels(runs, [called(run["model"]) for run in runs]).values())
    lines = []
    for run, each, label in zip(runs, task["models"], labels, strict=True):
        shape = f"{each['layers']} x {each['heads'] // max(1, each['layers'])}"
        named = f"{len(run['top'])} ({percent(each['share'] or 0.0)})"
        words = shown[run["name"]]
        lines.append([label, shape, named, *words["scores"], words["top"]])
    columns = ["Model", "Layers x heads", "Named", "Intact", "Knocked out", "Random heads", "Heads"]
    note = "Heads of different models are different heads, even where they share a name."
    table = Table("What is lost without the heads of each model", columns, lines, note)
    title = f"{called(task['task'])}, model by model"
    return PagePart(title, [table], chart=draw_depths(task["models"], labels))
