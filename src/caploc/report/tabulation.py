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

from caploc.report import charts
from caploc.report.charts import Spec
from caploc.report.exhibits import NOTHING, Cell, Exhibit, Value
from caploc.stats import Interval
from caploc.wording import read_yaml

YES_NO = {True: "yes", False: "no", None: NOTHING}
Scope = Mapping[str, Any]  # what an expression may name


def fill_tables(page: str, results: Scope) -> list[Exhibit]:
    """Fill the tables of a page from the results that its file holds.

    A table whose `when` is false, or that has no row, is left out.
    """
    found = []
    for name, spec in read_yaml(Path(__file__).with_name("tabulation.yaml"))[page].items():
        if "when" not in spec or work_out(spec["when"], results):
            exhibit = fill_table(name, spec, results)
            found += [exhibit] if exhibit.rows else []
    return found


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
    drawn = draw_spec(spec.get("picture"), rows, scopes, {**results, "over": over})
    exhibit = Exhibit.of(write_text(name, results), title, rows, [n for n in notes if n])
    return exhibit if drawn is None else replace(exhibit, draw=lambda: drawn)


def draw_spec(
    picture: Scope | None,
    rows: Sequence[Mapping[str, Cell]],
    scopes: Sequence[Scope],
    results: Scope,
) -> Spec | None:
    """Draw the picture of a table: `points` of rows, `curves`, or a `matrix` of its cells.

    A matrix with a `value` is one of effects, which is drawn of that and not of the cells. None
    where nothing is known, or all of it is 0.
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
        known = {n: each for n, each in series.items() if any(m is not None for m, *_ in each)}
        return charts.draw_points(names, known, label=words["label"]) if known else None
    if picture["kind"] == "curves":
        lines = {
            name + also: [tuple(point[:2]) for point in work_out(points, scope) or []]
            for name, scope in zip(names, scopes, strict=True)
            for also, points in picture["points"].items()
        }
        words["logarithmic"] = bool(picture.get("logarithmic"))
        longest = max(map(len, lines.values()))  # a single point is no curve
        return charts.curves(lines, **words) if longest > 1 else None
    heads = list(rows[0])[int(picture.get("skip", 1)) :]
    table = np.array([[number_of(row[head]) for head in heads] for row in rows], dtype=float)
    if "value" in picture:
        places = [{"item": item, "place": place} for place, item in enumerate(results["over"])]
        value = picture["value"]
        table = np.array([[work_out(value, {**s, **p}) for p in places] for s in scopes], float)
    if not np.nan_to_num(table).any():
        return None
    words |= {"digits": int(picture.get("digits", 2)), "diverging": "value" in picture}
    return charts.draw_matrix(names, heads, table, **words)


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


Known = Interval | Scope | float | None
NOT_KNOWN: charts.Interval = (None, None, None)


def bounds(interval: Known | Sequence[Known]) -> charts.Interval:
    """Take mean, low and high of an interval, fresh or from a file; None for what is not known.

    Of several draws these are their mean, the least and the most.
    """
    if interval is None or isinstance(interval, Undefined):
        return NOT_KNOWN
    if isinstance(interval, Sequence):
        if len(interval) == 1:
            return bounds(interval[0])
        means = [mean for mean, _, _ in map(bounds, interval) if mean is not None]
        return (float(np.mean(means)), min(means), max(means)) if means else NOT_KNOWN
    if isinstance(interval, float):
        return interval, None, None
    found = interval.as_dict() if isinstance(interval, Interval) else interval
    return found["mean"], found["low"], found["high"]


def ranged(interval: Known | Sequence[Known], digits: int = 3) -> str:
    """Write the mean of an interval and its bounds; of several draws mean, least and most."""
    mean, low, high = bounds(interval)
    if mean is None:
        return NOTHING
    if isinstance(interval, Sequence) and len(interval) > 1:
        return f"{mean:z.{digits}f} ({low:z.{digits}f} to {high:z.{digits}f})"
    ends = None if low is None or high is None else (low, high)
    return str(Value(mean, digits=digits, ends=ends))


def as_text(value: float | None) -> str:
    """Write a number in a sentence."""
    return "not known" if value is None else f"{value:.3f}"


def work_out(expression: str, scope: Scope) -> Any:
    """Work out an expression; None where it names what is not there."""
    return compile_once(expression)(**scope)


def write_text(template: str, scope: Scope) -> str:
    """Fill in a sentence."""
    return template if "{" not in template else EXPRESSIONS.from_string(template).render(scope)


Effects = Mapping[tuple[str, str], float | None]  # by the task whose parts it is, and the judged


def view_effects(located: Effects, random: Effects) -> dict[str, Any]:
    """Put together what a table of effects of one task's parts on every task shows."""
    tasks, judged = (list(dict.fromkeys(names)) for names in zip(*located, strict=True))
    return {"effects": {"tasks": tasks, "judged": judged, "located": located, "random": random}}


def beside(own: float | None, drawn: float | None) -> str:
    """Write an effect, and in brackets that of random parts, as far as they are known."""
    told = NOTHING if own is None else f"{own:z.3f}"
    return told if drawn is None else f"{told} ({drawn:z.3f})"


def known_of(arms: Sequence[Scope], arm: str, figure: str) -> list[Any]:
    """List a figure of every draw of an arm that is known."""
    return [each[figure] for each in arms if each["arm"] == arm and each[figure] is not None]


def with_digits(value: float | None, digits: int = 3, stderr: float | None = None) -> Value:
    """Write a number with so many digits and its error, whether it is known or not."""
    return Value(None if isinstance(value, Undefined) else value, stderr, digits=digits)


# Expressions are those of `tabulation.yaml`; pages escape what comes out.
EXPRESSIONS = Environment()  # noqa: S701
compile_once = cache(EXPRESSIONS.compile_expression)
EXPRESSIONS.filters |= {
    "beside": beside,
    "bounds": bounds,
    "curve": lambda points, across, up: [
        (100 * point[across], point[up]["mean"]) for point in points
    ],
    "digits": with_digits,
    "draws": known_of,
    "figure": as_text,
    "ranged": ranged,
}
