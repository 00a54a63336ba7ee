"""Charts: the specifications of `charts.yaml`, drawn as SVG inside a page or as files.

They are drawn once, while the page is written. It then needs no plotting script: it opens at once,
prints, and works with scripts forbidden. Colours are the page's own variables, so a chart follows
its reader's dark or light scheme.
"""

import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import vl_convert
from markupsafe import Markup

from caploc.report.wording import inline, read_yaml

SVG = "http://www.w3.org/2000/svg"
# Data come with the specification: no address is ever read.
CLOSED: dict[str, Any] = {"vl_version": "5.20", "allowed_base_urls": []}
WIDE, NARROW = 700, 330  # pixels: a page, and a phone
LABEL = {WIDE: 240, NARROW: 116}  # pixels of a name at most
LONGEST = 60  # characters of a name in a picture
SHARP = 200  # dots per inch of a PNG
WIDTH = 400  # pixels of a picture's inner part
SERIES = tuple(f"var(--series-{number})" for number in range(1, 8))
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right")
# Of the series these are Okabe and Ito's, told apart with every kind of colour vision.
OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
PRINT = {f"--series-{number}": colour for number, colour in enumerate(OKABE_ITO, 1)}
PRINT |= {"--series-8": "#882255", "--series-9": "#332288"}  # Tol's wine and indigo
PRINT |= {"--ink": "#16181d", "--quiet": "#5b626d", "--line": "#dcdfe4", "--needed": "#b8500c"}
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
    """Draw a specification twice; it says its size, axis and legend by the theme.

    Raises:
        ValueError: if it is no Vega-Lite.
    """
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
    learn_font()
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


@cache
def learn_font() -> None:
    """Register the font that lies in matplotlib's folder: a chart is the same on every machine."""
    found = find_spec("matplotlib")  # without importing it, which takes half a second
    assert found is not None and found.origin is not None
    fonts = Path(found.origin).parent / "mpl-data" / "fonts" / "ttf"
    vl_convert.register_font_directory(str(fonts))


def rows_of(values: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the data of a chart or of one of its layers."""
    return {"values": list(values)}


def horizontal_channel(field: str, title: str, **scale: Any) -> dict[str, Any]:
    """Return a channel of numbers."""
    scale = {"nice": True, **scale}
    return {"field": field, "type": "quantitative", "title": title, "scale": scale}


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
        learn_font()
        return vl_convert.vegalite_to_svg(dict(self.spec), **CLOSED)

    def png(self, dots: int = SHARP) -> bytes:
        """Return the picture as PNG, with so many dots an inch."""
        return vl_convert.svg_to_png(self.svg, ppi=dots)

    def pdf(self) -> bytes:
        """Return the picture as PDF."""
        return vl_convert.svg_to_pdf(self.svg)

    def save(self, stem: Path) -> None:
        """Write `stem.png` and `stem.pdf`; raises OSError if that cannot be."""
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
