"""Charts of a run, by Altair, drawn as SVG inside its page and as files.

They are drawn once, while the page is written, which then needs no plotting script: it opens at
once, prints, and works with scripts forbidden. Colours are the page's own variables, so a chart
follows its reader's dark or light scheme.
"""

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import altair as alt
import pandas as pd
import vl_convert
from markupsafe import Markup

from caploc.contents import Curve
from caploc.files import whole_text
from caploc.report.card import cells
from caploc.report.colours import PRINT, SERIES
from caploc.result import Card, CardRow, Result, RowKind, Said
from caploc.verdict import make_card
from caploc.wording import called_apart, inline, unit_of_metric

FIGURES = "figures"  # the folder of a run's
SVG = "http://www.w3.org/2000/svg"
WIDE, NARROW = 700, 330  # pixels: a page, and a phone
LABEL = {WIDE: 240, NARROW: 165}  # pixels of a name at most
QUIET, INK, NEEDED, LINE = "var(--quiet)", "var(--ink)", "var(--needed)", "var(--line)"
LOOKS = {Said.LOST: NEEDED, Said.KEPT: SERIES[0]}  # of what a row says; others are quiet
THEME: dict[str, Any] = {
    "background": None,
    "font": "Arial",
    "view": {"stroke": None},
    "axis": {
        "aria": False,
        "labelColor": QUIET,
        "titleColor": QUIET,
        "domainColor": LINE,
        "tickColor": LINE,
        "gridColor": LINE,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    },
    "legend": {
        "aria": False,
        "labelColor": INK,
        "labelFontSize": 12,
        "labelLimit": 240,
        "orient": "top",
        "columns": 2,
        "title": None,
    },
}
Figure = Any  # a chart of Altair, plain or in layers
VARIABLE = re.compile(r"var\((--[\w-]+)\)")


@dataclass(frozen=True, slots=True)
class Drawing:
    """A chart for a wide and for a narrow page, and what it shows in words."""

    summary: str
    wide: Markup
    narrow: Markup


def draw(summary: str, chart: Figure) -> Drawing:
    """Draw a chart twice, in the theme."""
    written = json.dumps(chart.to_dict(), sort_keys=True)
    return Drawing(summary, render_svg(written, WIDE), render_svg(written, NARROW))


@lru_cache(maxsize=64)
def render_svg(written: str, width: int) -> Markup:
    """Draw a specification in JSON, `width` pixels wide, as the page may hold it.

    Each mark's description becomes `data-note`, which the page shows at the pointer. The picture as
    a whole is named by the page, so that its parts need no roles.
    """
    spec, axis = json.loads(written), {"labelLimit": LABEL[width], "labelColor": INK}
    size = {"width": width, "autosize": {"type": "fit-x", "contains": "padding"}, "padding": 4}
    few = {"axisX": {"tickCount": 4}} if width == NARROW else {}
    spec |= size | {"config": THEME | {"axisY": axis} | few}
    # Written anew from the parsed tree, so that nothing but elements and attributes comes through.
    tree = ElementTree.fromstring(vl_convert.vegalite_to_svg(spec, allowed_base_urls=[]))
    for element in tree.iter():
        element.tag = element.tag.removeprefix(f"{{{SVG}}}")  # a page knows SVG without its address
        if element.get("role") == "graphics-symbol" and element.get("aria-label"):
            element.set("data-note", element.attrib["aria-label"])
        for name in [name for name in element.attrib if name == "role" or "aria" in name]:
            del element.attrib[name]
    tree.attrib.pop("version", None)
    tree.set("focusable", "false")
    return Markup(ElementTree.tostring(tree, encoding="unicode"))  # noqa: S704


def print_svg(chart: Figure) -> str:
    """Draw a chart on white, with colours of its own."""
    spec = chart.to_dict() | {"config": THEME | {"background": "white"}}
    spec.setdefault("width", WIDE)
    written = VARIABLE.sub(lambda name: PRINT[name[1]], json.dumps(spec))
    return vl_convert.vegalite_to_svg(json.loads(written), allowed_base_urls=[])


def chart_scores(card: Card, unit: str) -> Figure | None:
    """Draw the rows of this unit: the score intact, and without the heads with its interval.

    The interval is that of the change, set off from the intact score. None if no row has both.
    """
    rows = [row for row in card.rows if row.unit == unit and None not in (row.intact, row.without)]
    if not rows:
        return None
    own = card.rows[0].label.rpartition(", ")[0] + ", "  # the task, which the page is about
    data = pd.DataFrame([mark_row(row, row.label.removeprefix(own)) for row in rows])
    scale = alt.Scale(domain=[0, 100]) if unit == "%" else alt.Scale(zero=False)
    names = alt.Y("label:N", sort=None, title=None)
    title = f"score ({unit})" if unit else "score"
    title += ": ◆ intact, ● without (95 %)"
    base = alt.Chart(data, height=alt.Step(26)).encode(y=names)
    look = alt.Color("look:N", scale=None)

    def at(field: str) -> alt.X:
        return alt.X(f"{field}:Q", title=title, scale=scale, axis=alt.Axis(tickCount=6))

    return alt.layer(
        base.mark_rule(aria=False, strokeWidth=3, color=LINE).encode(x=at("intact"), x2="without"),
        base.mark_rule(aria=False, strokeWidth=1.5).encode(x=at("low"), x2="high", color=look),
        base.mark_point(shape="diamond", filled=True, opacity=1, size=60, color=INK).encode(
            x=at("intact"), description="note:N"
        ),
        base.mark_point(filled=True, opacity=1, size=80).encode(
            x=at("without"), color=look, description="note:N"
        ),
    )


def mark_row(row: CardRow, name: str) -> dict[str, Any]:
    """Return what is drawn of a row, by this name."""
    factor = 100 if row.unit == "%" else 1
    known = row.unit == row.change_unit and row.low is not None and row.high is not None
    intact, without, change = row.intact or 0.0, row.without or 0.0, row.change or 0.0
    sign = -1 if (without - intact) * change < 0 else 1  # of a score that is better when lower
    ends = [intact + sign * end if known and end is not None else None
            for end in (row.low, row.high)[::sign]]  # fmt: skip
    low, high = (None if end is None else factor * end for end in ends)
    if row.unit == "%" and low is not None and high is not None:
        low, high = max(low, 0.0), min(high, 100.0)
    label, before, after, moved, interval, said = cells(row)
    return {
        "label": name,
        "intact": factor * intact,
        "without": factor * without,
        "low": low,
        "high": high,
        "look": LOOKS.get(row.said, QUIET) if row.said else QUIET,
        "note": f"{label}\nintact {before}, without {after}\n{moved} {interval} {said}".rstrip(),
    }


def draw_scores(card: Card) -> list[Drawing]:
    """Draw the rows of a card, a chart for each unit."""
    units = dict.fromkeys(row.unit for row in card.rows if row.kind is not RowKind.TEXT)
    charts = [chart_scores(card, unit) for unit in units]
    summary = "Scores intact and without the heads; the numbers are in the table above."
    return [draw(summary, chart) for chart in charts if chart is not None]


def chart_curve(curve: Curve, metrics: dict[str, str]) -> Figure | None:
    """Draw the score of each task against the number of heads knocked out, where it is a share."""
    names, rows = called_apart(curve.curves), []
    for task, points in curve.curves.items():
        known = [one.score for one in points if one.score is not None]
        if unit_of_metric(metrics.get(task, "score"), known).sign != "%":
            continue
        for count, one in enumerate(points):
            if one.score is not None:
                note = f"{names[task]}\n{count} heads knocked out: {100 * one.score:.0f} %"
                row = {"heads": count, "score": 100 * one.score, "task": names[task], "note": note}
                rows.append(row)
    if not rows:
        return None
    shown = list(dict.fromkeys(str(row["task"]) for row in rows))
    looks = [SERIES[place % len(SERIES)] for place in range(len(shown))]
    colour = alt.Color("task:N", scale=alt.Scale(domain=shown, range=looks), sort=None)
    ticks = list(range(len(curve.heads) + 1))
    across = alt.Axis(values=ticks, format="d")
    return (
        alt.Chart(pd.DataFrame(rows), height=240)
        .mark_line(point=alt.OverlayMarkDef(size=60, filled=True))
        .encode(
            x=alt.X("heads:Q", title="heads knocked out, most needed first", axis=across),
            y=alt.Y("score:Q", title="score (%)", scale=alt.Scale(domain=[0, 100])),
            color=colour,
            shape=alt.Shape("task:N", sort=None),
            description="note:N",
        )
    )


def metrics_of(result: Result) -> dict[str, str]:
    """Return the metric of each task of a run."""
    others = {each.name: each.metric or "score" for each in result.validation.other_tasks}
    return {result.task.name: result.task.metric or "score"} | others


def write_figures(folder: Path, result: Result, curve: Curve | None) -> None:
    """Write the figures of a run into `folder` as SVG: scores and, if there is one, curve.

    Raises OSError if the folder or a file cannot be written.
    """
    card = make_card(result)
    charts: dict[str, Figure | None] = {
        "scores": chart_scores(card, card.rows[0].unit),
        "curve": None if curve is None else chart_curve(curve, metrics_of(result)),
    }
    for name, chart in charts.items():
        if chart is not None:
            folder.mkdir(parents=True, exist_ok=True)
            with whole_text(folder / f"{name}.svg") as file:
                file.write(print_svg(chart))


def tabulate_curve(curve: Curve, metrics: dict[str, str]) -> tuple[list[str], list[list[str]]]:
    """Name the tasks of curve.json, and write a row for each number of heads: its last, scores."""
    rows = []
    for count, head in enumerate(["none", *map(inline, curve.heads)]):
        row = [str(count), head]
        for task, points in curve.curves.items():
            one = points[count].score if count < len(points) else None
            known = [each.score for each in points]
            row.append(unit_of_metric(metrics.get(task, "score"), known).number(one))
        rows.append(row)
    return list(called_apart(curve.curves).values()), rows
