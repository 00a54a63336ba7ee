"""Charts: Vega-Lite specifications drawn once, while the page is written, as SVG inside the page.

The page then needs no plotting script: it opens at once, prints, and works with scripts forbidden.
Colours are the page's own variables, so a chart follows its reader's dark or light scheme.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import vl_convert
from markupsafe import Markup

SVG = "http://www.w3.org/2000/svg"
WIDE, NARROW = 700, 330  # pixels: a page, and a phone
ROW = 24  # pixels of a named row
FONT = "DejaVu Sans"  # measured, since it is wider than what most readers' machines show instead
LABEL = {WIDE: 240, NARROW: 116}  # pixels of a name at most
LABELS = "noteOf"  # the field whose text a reader sees when pointing at a mark
SERIES = tuple(f"var(--series-{number})" for number in range(1, 8))
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right")

AXIS = {
    "aria": False,
    "labelColor": "var(--quiet)",
    "titleColor": "var(--quiet)",
    "domainColor": "var(--line)",
    "tickColor": "var(--line)",
    "gridColor": "var(--line)",
    "labelFontSize": 12,
    "titleFontSize": 12,
    "titleFontWeight": "normal",
    "titlePadding": 8,
}
CONFIG: Mapping[str, Any] = {
    "background": None,
    "font": FONT,
    "view": {"stroke": None},
    "axis": AXIS,
    "legend": {
        "aria": False,
        "labelColor": "var(--ink)",
        "titleColor": "var(--quiet)",
        "labelFontSize": 12,
        "labelLimit": 240,
        "orient": "top",
        "columns": 2,
        "title": None,
    },
}

Spec = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart for a wide and for a narrow page, and what it shows in words."""

    summary: str
    wide: Markup
    narrow: Markup


def chart(summary: str, spec: Spec) -> Chart:
    """Draw a specification twice; it says its size, axis and legend by `CONFIG`.

    Raises:
        ValueError: if it is no Vega-Lite.
    """
    written = json.dumps(spec, sort_keys=True)
    return Chart(summary, render_svg(written, WIDE), render_svg(written, NARROW))


@lru_cache(maxsize=256)
def render_svg(written: str, width: int) -> Markup:
    """The SVG of a specification in JSON, `width` pixels wide."""
    size = {"width": width, "autosize": {"type": "fit-x", "contains": "padding"}, "padding": 4}
    axis_y = {"labelLimit": LABEL[width], "labelColor": "var(--ink)"}
    config = {**CONFIG, "axisY": axis_y}
    if width == NARROW:
        legend = {**CONFIG["legend"], "columns": 1}
        config |= {"legend": legend, "axisX": {"tickCount": 4}}
    learn_font()
    spec = {**json.loads(written), **size, "config": config}
    # Data come with the specification; no address is ever read.
    return safe(vl_convert.vegalite_to_svg(spec, vl_version="5.20", allowed_base_urls=[]))


@cache
def learn_font() -> None:
    """The font comes with matplotlib, so that a chart is the same on every machine."""
    vl_convert.register_font_directory(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf"))


def safe(svg: str) -> Markup:
    """The picture written anew from its parsed tree, as the page may hold it.

    Each mark's description becomes `data-note`, which the page shows at the pointer. The picture as
    a whole is named by the page, so that its parts need no roles.
    """
    tree = ElementTree.fromstring(svg)
    for element in tree.iter():
        element.tag = element.tag.removeprefix(f"{{{SVG}}}")  # a page knows SVG without its address
        if element.get("role") == "graphics-symbol" and element.get("aria-label"):
            element.set("data-note", element.attrib["aria-label"])
        for name in [name for name in element.attrib if name == "role" or "aria" in name]:
            del element.attrib[name]
    tree.attrib.pop("version", None)
    tree.set("focusable", "false")
    return Markup(ElementTree.tostring(tree, encoding="unicode"))  # noqa: S704


def rows_of(values: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Data of a chart or of one of its layers."""
    return {"values": list(values)}


def named_rows(order: Sequence[str]) -> dict[str, Any]:
    """The vertical channel of rows that have names, from top to bottom."""
    return {"field": "name", "type": "nominal", "sort": list(order), "axis": {"title": None}}


def horizontal_channel(field: str, title: str, **scale: Any) -> dict[str, Any]:
    """A horizontal channel of numbers."""
    return {
        "field": field,
        "type": "quantitative",
        "title": title,
        "scale": {"nice": True, **scale},
    }


def by_series(names: Sequence[str]) -> dict[str, Any]:
    """Colour and shape of a series, told apart with every kind of colour vision, and in grey."""
    series = {"field": "series", "type": "nominal", "sort": list(names)}
    colours = [SERIES[number % len(SERIES)] for number in range(len(names))]
    shapes = [SHAPES[number % len(SHAPES)] for number in range(len(names))]
    return {
        "color": {**series, "scale": {"domain": list(names), "range": colours}},
        "shape": {**series, "scale": {"domain": list(names), "range": shapes}},
    }


NOTE = {"field": LABELS, "type": "nominal"}  # channel `description`
