"""Pictures as files and for notebooks: the page's charts in print colours, maps and matrices."""

import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import vl_convert

from caploc.contents import Curve
from caploc.report import colours
from caploc.report.charts import CONFIG, Spec, learn_font, rows_of
from caploc.report.headmap import by_head
from caploc.report.headtable import head_table
from caploc.report.plots import curve_specs, effects_spec, scores_specs, units_by_task
from caploc.report.reading import called, inline
from caploc.report.scores import comparisons
from caploc.report.standing import Standing, standings
from caploc.report.units import Unit, outcome_unit
from caploc.result import Result

FIGURES = "figures"  # folder of a run
NAMES = ("heads", "effects", "scores", "curve")
# Data come with the specification: no address is ever read.
CLOSED: dict[str, Any] = {"vl_version": "5.20", "allowed_base_urls": []}
SHARP = 200  # dots per inch of a PNG
WIDTH = 400  # pixels of a chart's inner part
CELL, SMALL_CELL = 18, 9  # pixels of a head; the small ones of large maps
MOST_LARGE = 24  # layers or heads a layer that are drawn large
LONGEST = 60  # characters of a name
MOST_COLUMNS = 40  # of a matrix; with more, those of the largest effects are drawn
VARIABLE = re.compile(r"var\((--[\w-]+)\)")
PRINT = {
    "--ink": "#16181d",
    "--quiet": "#5b626d",
    "--line": "#dcdfe4",
    "--needed": "#b8500c",
    # Okabe and Ito's colours, told apart with every kind of colour vision.
    **{
        f"--series-{number}": colour
        for number, colour in enumerate(
            ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000"), 1
        )
    },
}


def write_figures(folder: Path, result: Result, curve: Curve | None) -> None:
    """Write the figures of a run into `folder`, each as PNG and as PDF.

    `heads` is the map, `effects` the listed heads with intervals, `scores` the task before and
    after beside random heads and other tasks, and `curve` what `caploc curve` measured.

    Raises:
        OSError: if the folder or a file cannot be written.
    """
    rows, units = head_table(result).rows, units_by_task(result)
    effects = effects_spec(rows, outcome_unit(result), result.estimand.heads)
    parts = {
        "heads": [heads_spec(result)],
        "effects": [] if effects is None else [effects],
        "scores": scores_specs(comparisons(result)),
        "curve": [] if curve is None else curve_specs(curve, units),
    }
    for name, specs in parts.items():
        if specs:
            Picture.of(specs).save(folder / name)


def write_matrices(folder: Path, told: Mapping[str, Any]) -> list[str]:
    """Write a picture for each model whose runs name a head; their names, without endings.

    Raises:
        OSError: if the folder or a file cannot be written.
    """
    tops = {run["name"]: run["top"] for run in told["runs"]}
    matrices = [each["matrix"] for each in told["models"] if each["matrix"]["heads"]]
    names = ["matrix" if not place else f"matrix-{place + 1}" for place in range(len(matrices))]
    for name, matrix in zip(names, matrices, strict=True):
        Picture.of([matrix_spec(matrix, tops)]).save(folder / name)
    return names


def drawn_figures(folder: Path) -> list[str]:
    """Names, without endings, of the figures that lie in a run's folder."""
    return [name for name in NAMES if (folder / FIGURES / f"{name}.pdf").exists()]


@dataclass(frozen=True)
class Picture:
    """A chart on white, to look at in a notebook or to save.

    `spec` is Vega-Lite with colours in the place of the page's variables.
    """

    spec: Spec

    @classmethod
    def of(cls, specs: Sequence[Spec]) -> "Picture":
        """Print charts below one another, all equally wide."""
        wide = [{"width": WIDTH, **spec} for spec in specs]
        whole = wide[0] if len(wide) == 1 else {"vconcat": wide}
        config = {**CONFIG, "background": "white"}
        written = json.dumps({**whole, "config": config}, sort_keys=True)
        return cls(json.loads(VARIABLE.sub(lambda name: PRINT[name[1]], written)))

    def png(self, dots: int = SHARP) -> bytes:
        """Return the picture as PNG, with so many dots an inch."""
        learn_font()
        return vl_convert.vegalite_to_png(dict(self.spec), ppi=dots, **CLOSED)

    def pdf(self) -> bytes:
        """Return the picture as PDF."""
        learn_font()
        return vl_convert.vegalite_to_pdf(dict(self.spec), **CLOSED)

    def save(self, stem: Path) -> None:
        """Write `stem.png` and `stem.pdf`.

        Raises:
            OSError: if the folder or a file cannot be written.
        """
        stem.parent.mkdir(parents=True, exist_ok=True)
        stem.with_name(f"{stem.name}.png").write_bytes(self.png())
        stem.with_name(f"{stem.name}.pdf").write_bytes(self.pdf())

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """Show it in a notebook: drawn by the notebook itself where it can."""
        png = b64encode(self.png(dots=110)).decode()
        return {"application/vnd.vegalite.v5+json": dict(self.spec), "image/png": png}


def shortened(text: Any, limit: int = LONGEST) -> str:
    """A name on one line; of a long one the middle is left out, since ends differ."""
    name = inline(text)
    half = limit // 2
    return name if len(name) <= limit else f"{name[:half]}…{name[1 - limit + half :]}"


def heads_spec(result: Result) -> Spec:
    """The map of effects, layers by heads; marks say what is known of a head besides."""
    unit, grid, entries = outcome_unit(result), result.grid.grid(), by_head(result)
    known_of = standings(result)
    cells = []
    for head in grid.heads:
        entry = entries.get(head)
        effect = entry.effect if entry else None
        mark = _mark(known_of.of(str(head), entry))
        shown = None if effect is None else unit.factor * effect
        cells.append({"layer": head.layer, "head": head.index, "mark": mark, "effect": shown})
    size = max(grid.layers, *grid.heads_per_layer, 1)
    step = CELL if size <= MOST_LARGE else SMALL_CELL
    task, model = called(result.task.name), called(result.model.name)
    title = shortened(f"{task} in {model}")
    marks = [text for text in MARKS if any(cell["mark"] == text for cell in cells)]
    unmeasured = ["–: not measured"] if any(cell["effect"] is None for cell in cells) else []
    axis = {"labelAngle": 0, "labelOverlap": "greedy", "ticks": False, "domain": False}
    axis |= {"labelFontSize": SMALL_CELL}
    axes = {
        "x": {"field": "head", "type": "ordinal", "title": "head", "axis": axis},
        "y": {"field": "layer", "type": "ordinal", "title": "layer", "axis": axis},
    }
    return {
        "title": {"text": title, "subtitle": [*marks, *unmeasured], **TITLE},
        "data": rows_of(cells),
        "width": {"step": step},
        "height": {"step": step},
        "encoding": axes,
        "layer": [_shades(cells, unit), *_signs(step)],
    }


TITLE = {"anchor": "start", "fontSize": 12, "subtitleFontSize": 10, "frame": "group"}
LEGEND = {"orient": "right", "columns": 1, "titleFontSize": 10, "titleFontWeight": "normal"}
MARKS = {
    "bold: knocked out in the check": {"mark": {"type": "rect", "strokeWidth": 2}},
    "outlined: selected": {"mark": {"type": "rect", "strokeWidth": 0.8}},
    "dot: breaks the task alone": {"mark": {"type": "point", "shape": "circle", "filled": True}},
    "cross: breaks another task too": {
        "mark": {"type": "point", "shape": "M-1,-1L1,1M-1,1L1,-1", "strokeWidth": 1.5}
    },
}


def _mark(standing: Standing) -> str | None:
    """The weightiest mark of a head, or none."""
    bold, outlined, dot, cross = MARKS
    held = {
        cross: standing.universal is True,
        bold: standing.named,
        dot: standing.critical,
        outlined: standing.selected,
    }
    return next((mark for mark, holds in held.items() if holds), None)


def _shades(cells: Sequence[Mapping[str, Any]], unit: Unit) -> dict[str, Any]:
    """Squares coloured by effect around zero: orange stands for needed heads."""
    limit = max((abs(cell["effect"]) for cell in cells if cell["effect"] is not None), default=0)
    limit = min(limit, 1e300) or 1.0
    steps = range(-colours.STEPS, colours.STEPS + 1)
    domain = [limit * number / colours.STEPS for number in steps]
    scale = {"domain": domain, "range": [colours.shade(int(unit.harm(n))) for n in steps]}
    scale["clamp"] = True
    legend = {**LEGEND, "title": f"change ({unit.axis})"}
    return {
        "transform": [{"filter": "isValid(datum.effect)"}],
        "mark": {"type": "rect", "stroke": "white", "strokeWidth": 0.5},
        "encoding": {
            "color": {"field": "effect", "type": "quantitative", "scale": scale, "legend": legend}
        },
    }


def _signs(step: int) -> list[dict[str, Any]]:
    """A layer for every mark, and a dash where nothing was measured."""
    layers: list[dict[str, Any]] = []
    for text, drawn in MARKS.items():
        mark = {"stroke": "var(--ink)", "fill": None, "size": step**2 / 8, **drawn["mark"]}
        if mark.get("filled"):
            mark |= {"fill": "var(--ink)", "stroke": "white"}
        layers.append({"transform": [{"filter": {"field": "mark", "equal": text}}], "mark": mark})
    dash = {"type": "text", "text": "–", "color": "var(--quiet)", "fontSize": step / 2}
    return [*layers, {"transform": [{"filter": "!isValid(datum.effect)"}], "mark": dash}]


def matrix_spec(matrix: Mapping[str, Any], tops: Mapping[str, Sequence[str]]) -> Spec:
    """Each run's effects of the heads that any of them names; a dot marks its own.

    Shades are relative to the run's largest effect, so that tasks of different units can stand in
    one picture.
    """
    columns = _widest(matrix)
    cells = []
    for row in matrix["rows"]:
        effects = row["effects"]
        limit = max((abs(effect) for effect in effects if effect is not None), default=0) or 1.0
        for column in columns:
            effect, head = effects[column], matrix["heads"][column]
            share = None if effect is None else effect / limit
            own, run = head in tops[row["run"]], shortened(row["run"], 30)
            cells.append({"run": run, "head": inline(head), "own": own, "share": share})
    steps = range(-colours.STEPS, colours.STEPS + 1)
    domain, shades = [n / colours.STEPS for n in steps], [colours.shade(-n) for n in steps]
    scale = {"domain": domain, "range": shades}
    legend = {**LEGEND, "title": "effect / largest"}
    shade = {"field": "share", "type": "quantitative", "scale": scale, "legend": legend}
    return {
        "data": rows_of(cells),
        "width": {"step": CELL},
        "height": {"step": CELL},
        "encoding": {
            "x": {"field": "head", "type": "nominal", "sort": None, "title": None},
            "y": {"field": "run", "type": "nominal", "sort": None, "title": None},
        },
        "layer": [
            {
                "transform": [{"filter": "isValid(datum.share)"}],
                "mark": {"type": "rect", "stroke": "white", "strokeWidth": 0.5},
                "encoding": {"color": shade},
            },
            {
                "transform": [{"filter": "datum.own"}],
                "mark": {"type": "circle", "color": "var(--ink)", "stroke": "white", "size": 40},
            },
        ],
    }


def _widest(matrix: Mapping[str, Any]) -> list[int]:
    """Columns to draw, in their own order: all, or those of the largest effects."""

    def largest(column: int) -> float:
        effects = [row["effects"][column] for row in matrix["rows"]]
        return max((abs(effect) for effect in effects if effect is not None), default=0.0)

    every = range(len(matrix["heads"]))
    return sorted(sorted(every, key=largest, reverse=True)[:MOST_COLUMNS])
