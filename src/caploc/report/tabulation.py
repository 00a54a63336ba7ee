"""Tables filled by description: `tabulation.yaml` says what each page of results shows.

A table has rows, one for each of what its expression over the page's results gives, and columns,
each an expression over `each` of these (and its `name`, or number). Numbers, intervals, counts and
answers are written by one rule; a dash stands for what is not known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, Undefined

from caploc.report import drawing
from caploc.report.charts import Spec
from caploc.report.exhibits import NOTHING, Cell, Exhibit, Value
from caploc.report.wording import read_yaml
from caploc.stats.intervals import Interval

YES_NO = {True: "yes", False: "no", None: NOTHING}
Scope = Mapping[str, Any]  # what an expression may name


def fill_tables(page: str, results: Scope) -> list[Exhibit]:
    """Fill the tables of a page from the results that its file holds.

    A table whose `when` is false, or that has no row, is left out.
    """
    found = []
    for name, spec in read_tables()[page].items():
        if "when" not in spec or work_out(spec["when"], results):
            exhibit = fill_table(name, spec, results)
            found += [exhibit] if exhibit.rows else []
    return found


@cache
def read_tables() -> dict[str, Any]:
    """Read the description of every page's tables."""
    return read_yaml(Path(__file__).with_name("tabulation.yaml"))


def fill_table(name: str, spec: Scope, results: Scope) -> Exhibit:
    """Fill one table: its rows, its notes, and its picture if there is what to draw."""
    items = work_out(spec["rows"], results) or []
    named = items.items() if isinstance(items, Mapping) else enumerate(items)
    scopes = [{**results, "name": key, "each": each} for key, each in named]
    spread = spec.get("spread") or {"over": "[]"}
    over = list(work_out(spread["over"], results) or [])
    rows: list[dict[str, Cell]] = []
    for scope in scopes:
        row = {head: as_cell(work_out(each, scope)) for head, each in spec["columns"].items()}
        for place, item in enumerate(over):
            inner = {**scope, "item": item, "place": place}
            row[write_text(spread["head"], inner)] = as_cell(work_out(spread["cell"], inner))
        rows.append(row)
    notes = [write_text(note, results) for note in spec.get("notes", ())]
    title = write_text(spec["title"], results)
    drawn = draw_spec(spec.get("picture"), rows, scopes, results)
    exhibit = Exhibit.of(write_text(name, results), title, rows, [n for n in notes if n])
    return exhibit if drawn is None else replace(exhibit, draw=lambda: drawn)


def draw_spec(
    picture: Scope | None,
    rows: Sequence[Mapping[str, Cell]],
    scopes: Sequence[Scope],
    results: Scope,
) -> Spec | None:
    """Draw the picture of a table: `points` of rows, `curves`, or a `matrix` of its cells.

    None where nothing is known, or all of it is 0.
    """
    if picture is None or not rows:
        return None
    names = [str(next(iter(row.values()))) for row in rows]
    words: dict[str, Any] = {
        key: write_text(picture[key], results)
        for key in ("label", "across", "up")
        if key in picture
    }
    if picture["kind"] == "points":
        series = {
            name: [bounds(work_out(each, scope)) for scope in scopes]
            for name, each in picture["series"].items()
        }
        known = any(mean is not None for each in series.values() for mean, *_ in each)
        return drawing.draw_points(names, series, label=words["label"]) if known else None
    if picture["kind"] == "curves":
        pairs = zip(names, scopes, strict=True)
        lines = {name: work_out(picture["points"], scope) or [] for name, scope in pairs}
        lines = {name: [tuple(point[:2]) for point in line] for name, line in lines.items()}
        words["logarithmic"] = bool(picture.get("logarithmic"))
        longest = max(map(len, lines.values()))  # a single point is no curve
        return drawing.curves(lines, **words) if longest > 1 else None
    heads = list(rows[0])[int(picture.get("skip", 1)) :]
    table = np.array([[number_of(row[head]) for head in heads] for row in rows], dtype=float)
    if not np.nan_to_num(table).any():
        return None
    words["digits"] = int(picture.get("digits", 2))
    return drawing.draw_matrix(names, heads, table, **words)


def drop_empty(exhibit: Exhibit) -> Exhibit:
    """Leave out the columns of which nothing is known."""
    kept = [
        place
        for place in range(len(exhibit.columns))
        if any(str(row[place]) != NOTHING for row in exhibit.rows)
    ]
    columns = tuple(exhibit.columns[place] for place in kept)
    rows = [tuple(row[place] for place in kept) for row in exhibit.rows]
    return replace(exhibit, columns=columns, rows=rows)


def number_of(cell: Cell) -> float:
    """Read the number of a cell; NaN where it has none."""
    text = cell.number if isinstance(cell, Value) else cell.replace(",", "")
    try:
        return float(np.nan if text is None else text)
    except ValueError:
        return float("nan")


def as_cell(value: Any) -> Cell:
    """Write what a file holds as a table has it."""
    if value is None or isinstance(value, Undefined):
        return NOTHING
    if isinstance(value, bool | np.bool_):
        return YES_NO[bool(value)]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return Value(value)
    return ranged(value) if isinstance(value, Mapping) else value


def bounds(interval: Interval | Scope | None) -> drawing.Interval:
    """Take mean, low and high of an interval, fresh or from a file; None for what is not known."""
    if interval is None or isinstance(interval, Undefined):
        return None, None, None
    if isinstance(interval, float):
        return interval, None, None
    found = interval.as_dict() if isinstance(interval, Interval) else interval
    return found["mean"], found["low"], found["high"]


def ranged(interval: Interval | Scope | None, digits: int = 3) -> str:
    """Write the mean of an interval and its bounds."""
    mean, low, high = bounds(interval)
    if mean is None:
        return NOTHING
    ends = None if low is None or high is None else (low, high)
    return str(Value(mean, digits=digits, ends=ends))


def as_text(value: float | None) -> str:
    """Write a number in a sentence."""
    return "not known" if value is None else f"{value:.3f}"


def work_out(expression: str, scope: Scope) -> Any:
    """Work out an expression; None where it names what is not there."""
    found = compile_once(expression)(**scope)
    return None if isinstance(found, Undefined) else found


@cache
def compile_once(expression: str) -> Any:
    """Compile an expression once."""
    return EXPRESSIONS.compile_expression(expression, undefined_to_none=False)


def write_text(template: str, scope: Scope) -> str:
    """Fill in a sentence."""
    return template if "{" not in template else EXPRESSIONS.from_string(template).render(scope)


# Expressions are those of `tabulation.yaml`; pages escape what comes out.
EXPRESSIONS = Environment()  # noqa: S701
EXPRESSIONS.filters |= {
    "digits": lambda value, digits: None if value is None else Value(value, digits=digits),
    "figure": as_text,
    "ranged": ranged,
}
