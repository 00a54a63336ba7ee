"""Pictures of exhibits, as Vega-Lite: matrices, points with intervals, curves, bars, a radar.

Each function gives a specification; a page draws it as part of itself, and files hold it in print
colours. Colours and shapes are told apart in grey and with every kind of colour vision; what is not
known, None or NaN, is left out.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from math import cos, pi, sin
from typing import Any

import numpy as np
from jaxtyping import Float

from caploc.report import colours
from caploc.report.charts import Spec, by_series, fill_spec, horizontal_channel, shortened
from caploc.result import number as known

LONGEST = 40  # characters of a name
RINGS = (0.25, 0.5, 0.75, 1.0)
Interval = tuple[float | None, float | None, float | None]  # mean, low, high
# x, y and, where they are known, y's error, or the ends of its interval
Curve = Sequence[tuple[float | None, ...]]
Palette = Mapping[str, str]  # colours of series, by name
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
    axis = {"tickCount": 6, "labelOverlap": True}
    return {**horizontal_channel(field, title, **scale), "axis": axis}


def _series(names: Iterable[str]) -> list[str]:
    """List names as they are drawn, each once; one empty name where there are none."""
    return list(dict.fromkeys(names)) or [""]


def _offset(shown: Sequence[str]) -> Row:
    """Make the channel that sets series beside one another."""
    return {"field": "series", "type": "nominal", "sort": shown, "scale": {"domain": shown}}


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
    flat = {"ticks": False, "domain": False, "title": None}
    return fill_spec(
        "table",
        cells=[
            {
                "row": int(row),
                "column": int(column),
                "value": float(values[row, column]),
                "text": f"{values[row, column]:z.{digits}f}",
                "ink": colours.ink(colours.shade(-colours.step(float(values[row, column]), most))),
            }
            for row, column in np.argwhere(np.isfinite(values))
        ],
        domain=[most * number / colours.STEPS for number in steps],
        range=[colours.shade(-number) for number in steps],
        label=drawable(label),
        columns=_names("column", columns, labelAngle=-60, **flat),
        rows=_names("row", rows, **flat),
    )


def draw_points(
    names: Sequence[str], series: Mapping[str, Sequence[Interval]], *, label: str
) -> Spec:
    """Draw a mark with its interval for each name and series, names from top to bottom."""
    cells: list[Row] = [
        {"name": place, "series": drawable(kind)}
        | {"mean": known(mean), "low": known(low), "high": known(high)}
        for kind, values in series.items()
        for place, (mean, low, high) in enumerate(values)
        if known(mean) is not None
    ]
    shown = _series(cell["series"] for cell in cells)
    x = _number("mean", label)
    return fill_spec(
        "points",
        rows=cells,
        names=_names("name", names, title=None),
        offset=_offset(shown),
        mean=x,
        low={**x, "field": "low"},
        step=14 * max(2, len(shown)),
        **by_series(shown),
    )


def curves(
    series: Mapping[str, Curve],
    *,
    across: str,
    up: str,
    logarithmic: bool = False,
    zero: bool = False,
    palette: Palette | None = None,
) -> Spec:
    """Draw a line through the known points of each series, with one error each way.

    The scale of `up` holds 0 with `zero`. Lines of a colour that another one has are dashed.
    """
    cells: list[Row] = []
    for kind, values in series.items():
        for across_, up_, *error in values:
            x, y = known(across_), known(up_)
            if x is not None and y is not None and (x > 0 or not logarithmic):
                cells.append({"series": drawable(kind), "x": x, "y": y} | _ends(y, *error))
    shown = _series(cell["series"] for cell in cells)
    looks, height = by_series(shown, palette), _number("y", up, zero=zero)
    breadth = _number("x", across)
    breadth["scale"] = {"type": "log"} if logarithmic else {"nice": True, "zero": False}
    if all(cell["x"] == round(cell["x"]) for cell in cells):
        breadth["axis"]["tickMinStep"] = 1
    drawn = looks["color"]["scale"]["range"]
    dashes = [[4, 2] if drawn.index(one) < place else [1, 0] for place, one in enumerate(drawn)]
    dash = {**looks["color"], "scale": {"domain": shown, "range": dashes}}
    low = {**height, "field": "low"}
    return fill_spec("curves", rows=cells, x=breadth, y=height, low=low, dash=dash, **looks)


def _ends(y: float | None, *error: float | None) -> Row:
    """Give the ends of an interval: one error each way, or both ends; nothing of no width."""
    if y is None or None in error or not any(error):
        return {}
    low, high = error if error[1:] else (y - error[0], y + error[0])  # type: ignore[operator]
    return {"low": low, "high": high}


def draw_bars(
    names: Sequence[str],
    series: Mapping[str, Curve],
    marks: Sequence[float | None],
    *,
    up: str,
    mark: str,
    palette: Palette | None = None,
) -> Spec:
    """Draw a group of bars for each name, one bar with its error a series; a line at `marks`."""
    y, offset = _number("y", up, zero=True), _offset(_series(map(drawable, series)))
    return fill_spec(
        "bars",
        rows=[
            {"name": place, "series": drawable(kind), "y": known(y)} | _ends(known(y), *error)
            for kind, values in series.items()
            for place, (y, *error) in enumerate(values)
        ],
        marks=[{"name": n, "at": at, "series": mark} for n, at in enumerate(marks) if at],
        names=_names("name", names, labelAngle=-30, title=None),
        y=y,
        low={**y, "field": "low"},
        at={**y, "field": "at"},
        offset=offset,
        middle={**offset, "bandPosition": 0.5},
        color=by_series(offset["sort"], palette)["color"],
    )


def radar(
    axes: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    *,
    title: str = "",
    palette: Palette | None = None,
) -> Spec:
    """Draw each series as a ring of shares; the first axis is at the top, others clockwise.

    The title says of what they are shares.
    """
    most = max([1.05, *(known(share) or 0.0 for each in series.values() for share in each)])

    def place(number: float, radius: float | None) -> Row:
        angle, at = 2 * pi * number / len(axes), known(radius)
        if at is None:
            return {"x": None, "y": None}
        return {"x": at * sin(angle), "y": at * cos(angle)}

    def ring(values: Sequence[float | None], **fields: Any) -> list[Row]:
        closed = enumerate([*values, values[0]])
        return [{**place(number, each), "order": number, **fields} for number, each in closed]

    rings = [row for name, each in series.items() for row in ring(each, series=drawable(name))]
    labels = [{**place(0.5, radius), "text": f"{100 * radius:.0f} %"} for radius in RINGS]
    labels += [{**place(n, most * 1.08), "text": drawable(name)} for n, name in enumerate(axes)]
    ends = [place(number, most) for number in range(len(axes))]
    shown = list(map(drawable, series))
    looks = by_series(shown, palette)
    return fill_spec(
        "radar",
        title=title,
        domain=[-1.3 * most, 1.3 * most],
        grid=[row for radius in RINGS for row in ring([radius] * len(axes), ring=radius)],
        spokes=[{**place(0, 0), "x2": end["x"], "y2": end["y"]} for end in ends],
        rings=rings,
        labels=labels,
        **looks,
    )
