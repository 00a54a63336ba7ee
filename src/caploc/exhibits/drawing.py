"""Pictures of exhibits, as Vega-Lite: matrices, points with intervals, curves, bars, a radar.

Each function gives a specification; a page draws it as part of itself, and files hold it in print
colours (`caploc.report.pictures`). Colours and shapes are told apart in grey and with every kind of
colour vision; what is not known, None or NaN, is left out.
"""

import json
from collections.abc import Mapping, Sequence
from math import cos, pi, sin
from typing import Any

import numpy as np
from jaxtyping import Float

from caploc.report import colours
from caploc.report.charts import SERIES, Spec, by_series, rows_of
from caploc.report.pictures import shortened
from caploc.result import number as known

LONGEST = 40  # characters of a name
RINGS = (0.25, 0.5, 0.75, 1.0)
ZERO = {"color": "var(--quiet)", "strokeWidth": 0.6}
POINT = {"type": "point", "filled": True, "opacity": 1, "size": 45}
Interval = tuple[float | None, float | None, float | None]  # mean, low, high
Curve = Sequence[tuple[float | None, ...]]  # x, y and, where it is known, y's error
Row = dict[str, Any]


def drawable(text: str) -> str:
    """Shorten a name to one line, □ for characters that break where the picture cuts them."""
    return "".join(sign if ord(sign) < 0x10000 else "□" for sign in shortened(text, LONGEST))


def _names(field: str, names: Sequence[str], **axis: Any) -> Row:
    """Make the channel of a place in a list of names, which may be of any text, and equal."""
    shown = json.dumps([drawable(name) for name in names], ensure_ascii=False)
    axis = {"labelExpr": f"{shown}[datum.value] || ''", "labelLimit": 220, **axis}
    domain = list(range(max(1, len(names))))
    return {"field": field, "type": "ordinal", "scale": {"domain": domain}, "axis": axis}


def _number(field: str, title: str, **scale: Any) -> Row:
    return {
        "field": field,
        "type": "quantitative",
        "title": title,
        "scale": {"nice": True, **scale},
        "axis": {"tickCount": 6, "labelOverlap": True},
    }


def _looks(names: Sequence[str]) -> Row:
    """Make colour, shape and, where colours begin again, dashes of the series."""
    looks = by_series(names)
    dashes = [[1, 0] if place < len(SERIES) else [4, 2] for place in range(len(names))]
    dash = {**looks["color"], "scale": {"domain": list(names), "range": dashes}}
    return {**looks, "strokeDash": dash}


def draw_matrix(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Float[np.ndarray, "rows columns"],
    *,
    label: str,
    digits: int = 2,
    diverging: bool = False,
) -> Spec:
    """Write numbers in a table of shades; `diverging` centres the shades at 0, for changes."""
    finite = np.abs(values[np.isfinite(values)])
    most = float(finite.max()) if finite.size and finite.max() > 0 else 1.0
    steps = range(-colours.STEPS if diverging else 0, colours.STEPS + 1)
    cells = [
        {
            "row": int(row),
            "column": int(column),
            "value": float(values[row, column]),
            "text": f"{values[row, column]:z.{digits}f}",
            "ink": colours.ink(colours.shade(-colours.step(float(values[row, column]), most))),
        }
        for row, column in np.argwhere(np.isfinite(values))
    ]
    scale = {
        "domain": [most * number / colours.STEPS for number in steps],
        "range": [colours.shade(-number) for number in steps],
    }
    legend = {"title": drawable(label), "orient": "right", "columns": 1}
    shade = {"field": "value", "type": "quantitative", "scale": scale, "legend": legend}
    ink = {"condition": {"test": "datum.ink == '#ffffff'", "value": "#ffffff"}, "value": "#000000"}
    flat = {"ticks": False, "domain": False, "title": None}
    squares = {
        "mark": {"type": "rect", "stroke": "white", "strokeWidth": 0.5},
        "encoding": {"color": shade},
    }
    texts = {
        "mark": {"type": "text", "fontSize": 9},
        "encoding": {"text": {"field": "text"}, "color": ink},
    }
    return {
        "data": rows_of(cells),
        "width": {"step": 46},
        "height": {"step": 24},
        "encoding": {
            "x": _names("column", columns, labelAngle=-60, **flat),
            "y": _names("row", rows, **flat),
        },
        "layer": [squares, texts],
    }


def draw_points(
    names: Sequence[str], series: Mapping[str, Sequence[Interval]], *, label: str
) -> Spec:
    """Draw a mark with its interval for each name and series, names from top to bottom."""
    cells = [
        {
            "name": place,
            "series": drawable(kind),
            "mean": known(mean),
            "low": known(low),
            "high": known(high),
        }
        for kind, values in series.items()
        for place, (mean, low, high) in enumerate(values)
        if known(mean) is not None
    ]
    shown = list(dict.fromkeys(str(cell["series"]) for cell in cells)) or [""]
    offset = {"field": "series", "type": "nominal", "sort": shown, "scale": {"domain": shown}}
    place = {"y": _names("name", names, title=None), "yOffset": offset}
    x = _number("mean", label)
    return {
        "data": rows_of(cells),
        "height": {"step": 14 * max(2, len(shown)), "for": "position"},
        "layer": [
            {"data": rows_of([{"at": 0}]), "mark": {"type": "rule", **ZERO},
             "encoding": {"x": {"field": "at", "type": "quantitative"}}},
            {
                "transform": [{"filter": "isValid(datum.low) && isValid(datum.high)"}],
                "mark": {"type": "rule", "strokeWidth": 1.3},
                "encoding": {**place, "x": {**x, "field": "low"}, "x2": {"field": "high"},
                             "color": by_series(shown)["color"]},
            },
            {"mark": POINT, "encoding": {**place, "x": x, **by_series(shown)}},
        ],
    }  # fmt: skip


def curves(
    series: Mapping[str, Curve],
    *,
    across: str,
    up: str,
    logarithmic: bool = False,
    zero: bool = False,
) -> Spec:
    """Draw a line through the known points of each series, with one error each way.

    `zero` begins the scale of `up` at 0.
    """
    cells: list[Row] = []
    for kind, values in series.items():
        for x, y, *error in values:
            across_, up_ = known(x), known(y)
            if across_ is not None and up_ is not None and (across_ > 0 or not logarithmic):
                e = error[0] if error else None
                ends = {"low": up_ - e, "high": up_ + e} if e else {}
                cells.append({"series": drawable(kind), "x": across_, "y": up_, **ends})
    shown = list(dict.fromkeys(str(cell["series"]) for cell in cells)) or [""]
    looks, y_ = _looks(shown), _number("y", up, zero=zero)
    x_, color = _number("x", across, zero=False), looks["color"]
    if all(cell["x"] == round(cell["x"]) for cell in cells):
        x_["axis"]["tickMinStep"] = 1
    if logarithmic:
        x_["scale"] = {"type": "log"}
    line = {
        "mark": {"type": "line", "strokeWidth": 1.5},
        "encoding": {"y": y_, "color": color, "strokeDash": looks["strokeDash"]},
    }
    dots = {"mark": POINT, "encoding": {"y": y_, "color": color, "shape": looks["shape"]}}
    layers = [line, _errors(y_, color=color), dots]
    return {"data": rows_of(cells), "height": 240, "encoding": {"x": x_}, "layer": layers}


def _errors(y: Row, **channels: Any) -> Row:
    """Make a line from `low` to `high` where they are known."""
    return {
        "transform": [{"filter": "isValid(datum.low)"}],
        "mark": {"type": "rule", "color": "var(--quiet)"},
        "encoding": {"y": {**y, "field": "low"}, "y2": {"field": "high"}, **channels},
    }


def draw_bars(
    names: Sequence[str],
    series: Mapping[str, Sequence[tuple[float | None, float]]],
    marks: Sequence[float | None],
    *,
    up: str,
    mark: str,
) -> Spec:
    """Draw a group of bars for each name, one bar with its error a series; a line at `marks`."""
    cells = [
        {"name": place, "series": drawable(kind), "y": known(y)}
        | ({"low": y - error, "high": y + error} if y is not None and error else {})
        for kind, values in series.items()
        for place, (y, error) in enumerate(values)
    ]
    shown = list(dict.fromkeys(map(drawable, series)))
    lines = [{"name": place, "at": at, "series": mark} for place, at in enumerate(marks) if at]
    offset = {"field": "series", "type": "nominal", "sort": shown, "scale": {"domain": shown}}
    y, color = _number("y", up, zero=True), by_series(shown)["color"]
    dash = {"field": "series", "type": "nominal", "scale": {"range": [[2, 2]]}}
    tick = {"type": "tick", "color": "var(--ink)", "thickness": 2, "bandSize": 60}
    return {
        "data": rows_of(cells),
        "height": 240,
        "encoding": {"x": _names("name", names, labelAngle=-30, title=None)},
        "layer": [
            {"mark": "bar", "encoding": {"y": y, "xOffset": offset, "color": color}},
            _errors(y, xOffset={**offset, "bandPosition": 0.5}),
            {
                "data": rows_of(lines),
                "mark": tick,
                "encoding": {"y": {**y, "field": "at"}, "strokeDash": dash},
            },
        ],
    }


def radar(axes: Sequence[str], series: Mapping[str, Sequence[float | None]]) -> Spec:
    """Draw each series as a ring of shares; the first axis is at the top, others clockwise.

    A ring of which every share is known is filled lightly, but the first.
    """
    most = max([1.05, *(known(share) or 0.0 for each in series.values() for share in each)])

    def place(number: float, radius: float | None) -> Row:
        angle, at = 2 * pi * number / len(axes), known(radius)
        if at is None:
            return {"x": None, "y": None}
        return {"x": at * sin(angle), "y": at * cos(angle)}

    def ring(values: Sequence[float | None], **fields: Any) -> list[Row]:
        closed = [*values, values[0]]
        return [
            {**place(number, each), "order": number, **fields} for number, each in enumerate(closed)
        ]

    lines = [row for radius in RINGS for row in ring([radius] * len(axes), ring=radius)]
    spokes = [{**place(n, 0), "x2": place(n, most)["x"], "y2": place(n, most)["y"]}
              for n in range(len(axes))]  # fmt: skip
    rings = [row for name, each in series.items() for row in ring(each, series=drawable(name))]
    whole = [
        drawable(name) for name, each in list(series.items())[1:] if None not in map(known, each)
    ]
    labels = [{**place(0.5, radius), "text": f"{100 * radius:.0f} %"} for radius in RINGS]
    labels += [{**place(n, most * 1.14), "text": drawable(name)}
               for n, name in enumerate(axes)]  # fmt: skip
    shown = list(map(drawable, series))
    # the intact model, which stands first, is black whatever stands beside it
    palette = [SERIES[-1], *(SERIES[place % (len(SERIES) - 1)] for place in range(len(shown)))]
    field = {"field": "series", "type": "nominal", "sort": shown}
    looks = by_series(shown)
    looks["color"]["scale"]["range"] = palette[: len(shown)]
    limit = {"scale": {"domain": [-1.3 * most, 1.3 * most]}, "axis": None}
    at = {name: {"field": name, "type": "quantitative", **limit} for name in ("x", "y")}
    order = {"field": "order", "type": "quantitative"}
    grid = {"stroke": "var(--line)", "strokeWidth": 0.7}
    return {
        "width": 420,
        "height": 420,
        "layer": [
            {"data": rows_of(lines), "mark": {"type": "line", **grid},
             "encoding": {**at, "order": order, "detail": {"field": "ring", "type": "nominal"}}},
            {"data": rows_of(spokes), "mark": {"type": "rule", **grid},
             "encoding": {**at, "x2": {"field": "x2"}, "y2": {"field": "y2"}}},
            {"data": rows_of([row for row in rings if row["series"] in whole]),
             "mark": {"type": "line", "strokeWidth": 0, "fillOpacity": 0.06},
             "encoding": {**at, "order": order, "detail": field,
                          "fill": {**looks["color"], "legend": None}}},
            {"data": rows_of(rings), "mark": {"type": "line", "strokeWidth": 1.5},
             "encoding": {**at, "order": order, "color": looks["color"]}},
            {"data": rows_of(rings), "mark": POINT, "encoding": {**at, **looks}},
            {"data": rows_of(labels),
             "mark": {"type": "text", "fontSize": 10, "color": "var(--ink)"},
             "encoding": {**at, "text": {"field": "text"}}},
        ],
    }  # fmt: skip
