"""Methods, tasks and models side by side, for the page over several runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caploc.report.charts import (
    NOTE,
    ROW,
    Chart,
    by_series,
    chart,
    horizontal_channel,
    named_rows,
    rows_of,
)
from caploc.report.method import format_duration
from caploc.report.plots import POINT
from caploc.report.reading import called, counted, inline, name_list, numeral
from caploc.report.sentence import check_of
from caploc.report.standing import percent
from caploc.report.units import significant
from caploc.result import Result

Told = Mapping[str, Any]  # the content of compare.json, or a part of it
Results = Mapping[str, Result]  # of each run, by its name


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
    lines: list[str]
    tables: list[Table]
    charts: list[Chart]


def comparison_headline(told: Told) -> str:
    """The answer: what the runs have in common."""
    runs = told["runs"]
    if not runs:
        return "There are no runs here yet."
    tasks, models, methods = (
        list(dict.fromkeys(str(run[field]) for run in runs))
        for field in ("task", "model", "method")
    )
    weights = {(run["model"], run["fingerprint"]) for run in runs}
    if len(weights) > 1:
        what = f"{_capital(numeral(len(weights)))} models on {_these(tasks, 'task')}"
        return f"{what}: where their heads lie, and what they carry."
    if len(tasks) > 1:
        return _tasks_headline(told, tasks, models[0])
    if len(methods) > 1:
        return _methods_headline(told, tasks[0], methods)
    return f"{counted(len(runs), 'run')} of {called(tasks[0])} in {called(models[0])}."


def _these(names: Sequence[str], noun: str) -> str:
    return called(names[0]) if len(names) == 1 else f"{numeral(len(names))} {noun}s"


def _tasks_headline(told: Told, tasks: Sequence[str], model: str) -> str:
    rows = told["models"][0]["shared"]
    most = [row for row in rows if row["heads"]]
    start = f"{_capital(_these(tasks, 'task'))} in {called(model)}: "
    if not most:
        return f"{start}no head is among the top of two of them."
    first, last = most[0], most[-1]
    count = len(first["heads"])
    verb = "is" if count == 1 else "are"
    text = f"{start}{counted(count, 'head')} {verb} among the top of two of them or more"
    if last["tasks"] > 2:
        text += f", and {name_list(list(last['heads']))} of {numeral(last['tasks'])}"
    by_chance = significant(first["chance"]["expected_in_layers"], 2)
    return f"{text}; random heads of the same layers would share {by_chance}."


def _methods_headline(told: Told, task: str, methods: Sequence[str]) -> str:
    runs = told["runs"]
    same = set.intersection(*(set(run["top"]) for run in runs))
    names = [name for name in runs[0]["top"] if name in same]
    agree = f"all name {name_list(names)}" if names else "no head is named by all"
    start = f"{_capital(numeral(len(methods)))} methods on {called(task)}: {agree}"
    best = _breaks_most(runs)
    return f"{start}; the heads of {_label(best, runs)} break most." if best else f"{start}."


def _breaks_most(runs: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The run whose heads break most, if all were measured alike and one is ahead."""
    if any(run["damage"] is None for run in runs) or len({run["held_out"] for run in runs}) > 1:
        return None
    first, second = sorted(runs, key=lambda run: -run["damage"])[:2]
    return first if first["damage"] > max(0.0, second["damage"]) else None


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def comparison_parts(told: Told, results: Results) -> list[PagePart]:
    """What is held against each other: methods, heads that tasks share, models."""
    found = [methods_section(each, told, results) for each in told["methods"]]
    found += [shared_heads(each) for each in told["models"] if each["shared"]]
    found += [models_section(each, told, results) for each in told["across"]]
    return found


def _row_of(told: Told, name: str) -> Mapping[str, Any]:
    row: Mapping[str, Any] = next(run for run in told["runs"] if run["name"] == name)
    return row


def _label(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """The method, and where another run has the same one, the run's name."""
    method = inline(row["method"])
    twins = [one for one in rows if one["method"] == row["method"]]
    return method if len(twins) == 1 else f"{method}, {inline(row['name'])}"


def methods_section(question: Told, told: Told, results: Results) -> PagePart:
    """Several runs of one task in one model: damage for rows, and heads in common."""
    rows = [_row_of(told, name) for name in question["runs"]]
    labels = {row["name"]: _label(row, rows) for row in rows}
    lines = [_method_line(row, labels[row["name"]], results[row["name"]]) for row in rows]
    columns = ["Method", "Heads", "Intact", "Knocked out", "Random heads", "Rows", "Time"]
    pairs = [_pair_line(pair, labels) for pair in question["pairs"]]
    drawn = draw_damage(rows, labels, results)
    title = f"{called(question['task'])} in {called(question['model'])}, run by run"
    return PagePart(
        title,
        [],
        [
            Table("What each one breaks, and what it costs", columns, lines),
            Table("Heads in common", PAIRS, pairs, CHANCE),
        ],
        [drawn] if drawn else [],
    )


PAIRS = ["Runs", "Heads in common", "By chance", "p", "Rank correlation of effects"]
CHANCE = (
    "By chance: the mean number of heads that two random sets of these sizes have in common; p is "
    "the chance of as many or more. The rank correlation is Spearman's, over all heads that both "
    "measured."
)


def _method_line(row: Mapping[str, Any], label: str, result: Result) -> list[str]:
    unit = check_of(result).unit
    rows = row["rows"]
    return [
        label,
        name_list(row["top"]) or "none",
        unit.score(row["intact"]),
        unit.score(row["knocked_out"]),
        unit.score(row["random_heads"]),
        "not recorded" if rows is None else f"{rows:,.0f}",
        format_duration(row["seconds"]) or "not recorded",
    ]


def _pair_line(pair: Mapping[str, Any], labels: Mapping[str, str]) -> list[str]:
    rank, chance = pair["rank_correlation"], pair["chance"]
    heads = name_list(pair["heads"])
    return [
        f"{labels[pair['first']]} and {labels[pair['second']]}",
        f"{len(pair['heads'])} of {pair['of']}" + (f": {heads}" if heads else ""),
        significant(chance["expected"], 2),
        _p(chance["p"]),
        "–" if rank is None else significant(rank, 2),
    ]


def _p(value: float) -> str:
    return "<\u00a00.001" if value < 0.001 else significant(value, 2)


def draw_damage(
    rows: Sequence[Mapping[str, Any]], labels: Mapping[str, str], results: Results
) -> Chart | None:
    """Score without each run's heads against the rows it took; lower has found more."""
    unit = check_of(results[rows[0]["name"]]).unit
    factor = unit.factor
    values = [
        {
            "rows": row["rows"],
            "score": factor * row["knocked_out"],
            "series": labels[row["name"]],
            "noteOf": f"{labels[row['name']]}: {unit.score(row['knocked_out'])} after "
            f"{row['rows']:,.0f} rows",
        }
        for row in rows
        if row["rows"] and row["knocked_out"] is not None
    ]
    if not values:
        return None
    series = by_series([str(value["series"]) for value in values])
    x = horizontal_channel("rows", "rows measured", type="log")
    x["axis"] = {"format": "~s", "tickCount": 4}
    y = horizontal_channel("score", f"score without its heads ({unit.measure})")
    spec = {
        "data": rows_of(values),
        "height": 200,
        "mark": {"type": "point", **POINT, "size": 110},
        "encoding": {
            "x": x,
            "y": y,
            "color": {**series["color"], "legend": {}},
            "shape": {**series["shape"], "legend": {}},
            "description": NOTE,
        },
    }
    return chart("Score without each run's heads against the rows it took; see the table.", spec)


def shared_heads(model: Told) -> PagePart:
    """Heads that several tasks of one model name, beside what chance gives."""
    counts = [
        [
            f"{row['tasks']} or more",
            str(len(row["heads"])),
            significant(row["chance"]["expected"], 2),
            _p(row["chance"]["p"]),
            significant(row["chance"]["expected_in_layers"], 2),
            _p(row["chance"]["p_in_layers"]),
        ]
        for row in model["shared"]
        if row["heads"]
    ]
    first = model["shared"][0]["heads"]
    often = sorted(first, key=lambda head: -len(first[head]))
    owners = [[head, name_list([called(task) for task in first[head]], 12)] for head in often]
    met = [pair for pair in model["overlaps"] if pair["heads"]]
    met.sort(key=lambda pair: pair["head_chance"]["p"])
    pairs = [
        [
            f"{called(pair['first'])} and {called(pair['second'])}",
            name_list(pair["heads"]),
            significant(pair["head_chance"]["expected"], 2),
            _p(pair["head_chance"]["p"]),
        ]
        for pair in met
    ]
    none = len(model["overlaps"]) - len(met)
    rest = f"{counted(none, 'other pair')} of tasks have no head in common." if none else ""
    columns = ["Tasks", "Heads", "By chance", "p", "By chance within layers", "p"]
    tables = [
        Table(
            "How many tasks name a head",
            columns,
            counts,
            "p is the chance that random sets of heads, as many for each task, share as many; "
            "within layers, sets that keep each task's number of heads in every layer.",
        ),
        Table("Heads of several tasks", ["Head", "Tasks"], owners),
        Table("Pairs of tasks", ["Tasks", "Heads", "By chance", "p"], pairs, rest),
    ]
    return PagePart(
        f"Heads that tasks share in {called(model['model'])}",
        [_universal_line(model)],
        [table for table in tables if table.rows],
        [],
    )


def _universal_line(model: Told) -> str:
    """What is known of heads that break everything."""
    found = model["universal"]
    if not found:
        return (
            "Whether a head that several tasks name is universal, and so of no one capability, is "
            "not known from these runs: caploc universal, with the folders of these runs, tries "
            "each on all their tasks."
        )
    said = [f"{each['head']} ({name_list(each['found_by'])})" for each in found]
    verb = "breaks" if len(found) == 1 else "break"
    return f"Universal, found by what stands in brackets: {name_list(said)} {verb} other tasks too."


def models_section(task: Told, told: Told, results: Results) -> PagePart:
    """One task in several models."""
    rows, lines = [_row_of(told, each["run"]) for each in task["models"]], []
    for row, each in zip(rows, task["models"], strict=True):
        unit = check_of(results[row["name"]]).unit
        lines.append(
            [
                _in_model(row, rows),
                f"{each['layers']} x {each['heads'] // max(1, each['layers'])}",
                f"{len(row['top'])} ({percent(each['share'] or 0.0)})",
                unit.score(row["intact"]),
                unit.score(row["knocked_out"]),
                unit.score(row["random_heads"]),
                name_list(row["top"]) or "none",
            ]
        )
    columns = ["Model", "Layers x heads", "Named", "Intact", "Knocked out", "Random heads", "Heads"]
    drawn = draw_depths(task["models"], [_in_model(row, rows) for row in rows])
    note = "Heads of different models are different heads, even where they share a name."
    return PagePart(
        f"{called(task['task'])}, model by model",
        [],
        [Table("What the heads of each model carry", columns, lines, note)],
        [drawn] if drawn else [],
    )


def _in_model(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    model = called(row["model"])
    twins = [one for one in rows if called(one["model"]) == model]
    return model if len(twins) == 1 else f"{model}, {inline(row['name'])}"


def draw_depths(models: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> Chart | None:
    """Where the named heads lie between the first layer and the last, a row a model."""
    values = [
        {
            "name": label,
            "depth": 100 * depth,
            "noteOf": f"{label}: {inline(head)}",
        }
        for each, label in zip(models, labels, strict=True)
        for head, depth in each["depths"].items()
    ]
    if not values:
        return None
    encoding = {
        "y": named_rows(labels),
        "x": horizontal_channel(
            "depth", "depth of the head's layer (%, first to last)", domain=[0, 100]
        ),
        "description": NOTE,
    }
    mark = {"type": "point", "color": "var(--needed)", **POINT, "opacity": 0.7}
    spec = {"data": rows_of(values), "height": {"step": ROW}, "mark": mark, "encoding": encoding}
    return chart("Depth of each model's named heads; the heads are in the table below.", spec)
