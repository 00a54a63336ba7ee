"""Charts: the specifications of `charts.yaml`, drawn as SVG inside a page or as files.

They are drawn once, while the page is written. It then needs no plotting script: it opens at once,
prints, and works with scripts forbidden. Colours are the page's own variables, so a chart follows
its reader's dark or light scheme.

Charts of exhibits, which tables' descriptions name, are here as well: matrices, points with
intervals, curves, bars, a radar. What is not known, None or NaN, is left out of them.
"""

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import cos, pi, sin
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import vl_convert
from jaxtyping import Float
from markupsafe import Markup

from caploc.report.colours import PRINT, SERIES, ink, shade, shade_number, shade_scale
from caploc.result import number as known
from caploc.wording import inline, read_yaml

SVG = "http://www.w3.org/2000/svg"
# Data come with the specification: no address is ever read.
CLOSED: dict[str, Any] = {"vl_version": "5.20", "allowed_base_urls": []}
WIDE, NARROW = 700, 330  # pixels: a page, and a phone
LABEL = {WIDE: 240, NARROW: 116}  # pixels of a name at most
LONGEST = 60  # characters of a name in a picture
SHARP = 200  # dots per inch of a PNG
WIDTH = 400  # pixels of a picture's inner part
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right")
VARIABLE = re.compile(r"var\((--[\w-]+)\)")

Spec = Mapping[str, Any]


def read_specs() -> dict[str, Any]:
    """Read `charts.yaml`: the theme, and each chart by its name."""
    return read_yaml(Path(__file__).with_name("charts.yaml"))


def fill_spec(name: str, **given: Any) -> dict[str, Any]:
    """Return the chart `name` with each `$word` filled by what is given under that word."""

    def fill(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: fill(value) for key, value in part.items() if key != "when"}
        if isinstance(part, list):
            return [fill(each) for each in part if holds(each)]
        return given[part[1:]] if isinstance(part, str) and part.startswith("$") else part

    def holds(part: Any) -> bool:
        return not isinstance(part, dict) or "when" not in part or bool(given[part["when"][1:]])

    filled: dict[str, Any] = fill(read_specs()[name])
    return filled


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart for a wide and for a narrow page, and what it shows in words."""

    summary: str
    wide: Markup
    narrow: Markup


def chart(summary: str, spec: Spec) -> Chart:
    """Draw a specification twice, in the theme; raises ValueError if it is no Vega-Lite."""
    written = json.dumps(spec, sort_keys=True)
    return Chart(summary, render_svg(written, WIDE), render_svg(written, NARROW))


@lru_cache(maxsize=256)
def render_svg(written: str, width: int) -> Markup:
    """Draw a specification in JSON, `width` pixels wide, as the page may hold it.

    Each mark's description becomes `data-note`, which the page shows at the pointer. The picture as
    a whole is named by the page, so that its parts need no roles.
    """
    size = {"width": width, "autosize": {"type": "fit-x", "contains": "padding"}, "padding": 4}
    theme = read_specs()["theme"]
    config = theme | {"axisY": {"labelLimit": LABEL[width], "labelColor": "var(--ink)"}}
    if width == NARROW:
        config |= {"legend": theme["legend"] | {"columns": 1}, "axisX": {"tickCount": 4}}
    spec = {**json.loads(written), **size, "config": config}
    # Written anew from the parsed tree, so that nothing but elements and attributes comes through.
    tree = ElementTree.fromstring(vl_convert.vegalite_to_svg(spec, **CLOSED))
    for element in tree.iter():
        element.tag = element.tag.removeprefix(f"{{{SVG}}}")  # a page knows SVG without its address
        if element.get("role") == "graphics-symbol" and element.get("aria-label"):
            element.set("data-note", element.attrib["aria-label"])
        for name in [name for name in element.attrib if name == "role" or "aria" in name]:
            del element.attrib[name]
    tree.attrib.pop("version", None)
    tree.set("focusable", "false")
    return Markup(ElementTree.tostring(tree, encoding="unicode"))  # noqa: S704


def number_channel(field: str, title: str, **scale: Any) -> dict[str, Any]:
    """Return a channel of numbers, with few ticks."""
    scale, axis = {"nice": True, **scale}, {"tickCount": 6, "labelOverlap": True}
    return {"field": field, "type": "quantitative", "title": title, "scale": scale, "axis": axis}


def by_series(names: Sequence[str], palette: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return colour and shape of series, told apart with every kind of colour vision, and in grey.

    `names` are those of the series, in their order; some may have colours of their own. Where there
    are more series than colours, each colour comes again with another shape.
    """
    channels: dict[str, dict[str, Any]] = {}
    for channel, looks, shift in (("color", SERIES, 0), ("shape", SHAPES, 1)):
        rounds = [divmod(number, len(looks)) for number in range(len(names))]
        drawn = [looks[(place + shift * again) % len(looks)] for again, place in rounds]
        if channel == "color" and palette:
            drawn = [palette.get(name, look) for name, look in zip(names, drawn, strict=True)]
        scale = {"domain": list(names), "range": drawn}
        channels[channel] = {"field": "series", "type": "nominal", "sort": list(names)}
        channels[channel]["scale"] = scale
    return channels


@dataclass(frozen=True)
class Picture:
    """A chart on white, to look at in a notebook or to save.

    `spec` is Vega-Lite with print colours in the place of the page's variables.
    """

    spec: Spec

    def __repr__(self) -> str:
        """Say what to do with it: printed, the chart would be pages of numbers."""
        return "<Picture: look at it in a notebook, or .save('NAME') as NAME.png and NAME.pdf>"

    @classmethod
    def of(cls, specs: Sequence[Spec]) -> "Picture":
        """Print charts below one another, all equally wide."""
        wide = [{"width": WIDTH, **spec} for spec in specs]
        whole = wide[0] if len(wide) == 1 else {"vconcat": wide}
        config = {**read_specs()["theme"], "background": "white"}
        written = json.dumps({**whole, "config": config}, sort_keys=True)
        return cls(json.loads(VARIABLE.sub(lambda name: PRINT[name[1]], written)))

    @cached_property
    def svg(self) -> str:
        """Drawn once, for every form in which it is kept."""
        return vl_convert.vegalite_to_svg(dict(self.spec), **CLOSED)

    def png(self, dots: int = SHARP) -> bytes:
        """Return the picture as PNG, with so many dots an inch."""
        return vl_convert.svg_to_png(self.svg, ppi=dots)

    def pdf(self) -> bytes:
        return vl_convert.svg_to_pdf(self.svg)

    def save(self, stem: Path | str) -> None:
        """Write `stem.png` and `stem.pdf`; raises OSError if that cannot be."""
        stem = Path(stem)
        stem = stem.with_suffix("") if stem.suffix in (".png", ".pdf") else stem
        stem.parent.mkdir(parents=True, exist_ok=True)
        stem.with_name(f"{stem.name}.png").write_bytes(self.png())
        stem.with_name(f"{stem.name}.pdf").write_bytes(self.pdf())

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """Show it in a notebook: drawn by the notebook itself where it can."""
        png = b64encode(self.png(dots=110)).decode()
        return {"application/vnd.vegalite.v5+json": dict(self.spec), "image/png": png}


def shortened(text: Any, limit: int = LONGEST) -> str:
    """Write a name on one line; of a long one the middle is left out, since ends differ."""
    name = inline(text)
    half = limit // 2
    return name if len(name) <= limit else f"{name[:half]}…{name[1 - limit + half :]}"


NAME = 40  # characters of a name in an exhibit
RINGS = (0.25, 0.5, 0.75, 1.0)
Interval = tuple[float | None, float | None, float | None]  # mean, low, high
# x, y and, where they are known, y's error, or the ends of its interval
Curve = Sequence[tuple[float | None, ...]]
Palette = Mapping[str, str]  # colours of series, by name
Row = dict[str, Any]


def drawable(text: str) -> str:
    """Shorten a name to one line, □ for characters that break where the picture cuts them."""
    return "".join(sign if ord(sign) < 0x10000 else "□" for sign in shortened(text, NAME))


def _names(field: str, names: Sequence[str], **axis: Any) -> Row:
    """Make the channel of a place in a list of names, which may be of any text, and equal."""
    shown = json.dumps([drawable(name) for name in names], ensure_ascii=False)
    axis = {"labelExpr": f"{shown}[datum.value] || ''", "labelLimit": 220, **axis}
    domain = list(range(max(1, len(names))))
    return {"field": field, "type": "ordinal", "scale": {"domain": domain}, "axis": axis}


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
    flat = {"ticks": False, "domain": False, "title": None}
    return fill_spec(
        "table",
        cells=[
            {
                "row": int(row),
                "column": int(column),
                "value": float(values[row, column]),
                "text": f"{values[row, column]:z.{digits}f}",
                "ink": ink(shade(-shade_number(float(values[row, column]), most))),
            }
            for row, column in np.argwhere(np.isfinite(values))
        ],
        label=drawable(label),
        columns=_names("column", columns, labelAngle=-60, **flat),
        rows=_names("row", rows, **flat),
        **shade_scale(most, diverging=diverging),
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
    x = number_channel("mean", label)
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
    looks, height = by_series(shown, palette), number_channel("y", up, zero=zero)
    breadth = number_channel("x", across)
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
    y, offset = number_channel("y", up, zero=True), _offset(_series(map(drawable, series)))
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
    """Draw each series as a ring of shares; the first axis is at the top, others clockwise."""
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
