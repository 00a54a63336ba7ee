"""What commands on neurons show: tables of pandas, charts of Altair, one page, one file."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from pathlib import Path
from typing import Any, TypeVar

import altair as alt
import pandas as pd

from caploc.folder import write_json
from caploc.naming import YAML
from caploc.neurons.result import NeuronFile
from caploc.neurons.stats import Interval
from caploc.report.colours import SERIES, shade_scale
from caploc.report.figures import Figure, draw
from caploc.report.templates import write_page
from caploc.wording import called_apart, visible

NOTHING = "–"
LINK = 28  # characters of a title in the page's list of links
WORDS = re.compile(r"(?![-–\d]).*\s", re.DOTALL)  # a cell that may be broken, of words
Found = Mapping[str, Any]  # a row of a table, or a point of a chart
File = TypeVar("File", bound=NeuronFile)


@dataclass(frozen=True)
class Exhibit:
    """A table of texts, what is said below it, and its chart, if there is what to draw."""

    title: str
    frame: pd.DataFrame
    notes: Sequence[str] = ()
    chart: Figure | None = None

    @classmethod
    def of(
        cls,
        title: str,
        rows: Iterable[Found],
        notes: Sequence[str] = (),
        chart: Figure | None = None,
    ) -> "Exhibit":
        """Make a table of rows, each with its columns by name; columns of dashes are left out.

        Tasks that are files are called by the last part of their path, or as much as tells them
        apart.
        """
        rows = list(rows)
        every = [str(text) for row in rows for text in (*row, *row.values())]
        short = called_apart(text for text in every if text.endswith(YAML))

        def shown(text: Any) -> str:
            return short.get(str(text)) or visible(text)

        seen = [{shown(name): shown(cell) for name, cell in row.items()} for row in rows]
        frame = pd.DataFrame(seen, dtype=object)
        known = frame.columns[(frame != NOTHING).any()] if len(frame) else frame.columns
        return cls(title, frame[known], [note for note in notes if note], chart)

    @property
    def columns(self) -> list[str]:
        return list(map(str, self.frame.columns))

    @property
    def rows(self) -> list[list[str]]:
        return [list(map(str, row)) for row in self.frame.to_numpy()]


def write_number(value: float | None, digits: int = 3) -> str:
    """Write a number; a dash where it is not known."""
    return NOTHING if value is None or isnan(value) else f"{value:z,.{digits}f}"


def write_p(p: float | None) -> str:
    """Write a p-value; never 0."""
    return "< 0.0001" if p is not None and p < 0.00005 else write_number(p, 4)


def write_interval(found: Interval | None, digits: int = 3) -> str:
    """Write a mean, and its 95 % interval in brackets where it is known."""
    if found is None or isnan(found.mean):
        return NOTHING
    mean, *ends = (write_number(each, digits) for each in (found.mean, found.low, found.high))
    return mean if NOTHING in ends else f"{mean} ({' to '.join(ends)})"


def over_draws(values: Iterable[float | None]) -> Interval:
    """Take the mean of some draws, the least and the most; NaN where nothing is known."""
    known = [value for value in values if value is not None and not isnan(value)]
    if not known:
        return Interval(nan, nan, nan, 0)
    ends = (min(known), max(known)) if len(known) > 1 else (nan, nan)
    return Interval(sum(known) / len(known), *ends, len(known))


def join_draws(found: Sequence[Interval]) -> Interval:
    """Take a mean's interval, or of several draws their means."""
    return found[0] if len(found) == 1 else over_draws(each.mean for each in found)


def points_of(name: str, series: Mapping[str, Interval | None]) -> list[dict[str, Any]]:
    """List the points of a name, one for each series that is known."""
    return [
        {"name": name, "series": kind} | {"mean": found.mean, "low": found.low, "high": found.high}
        for kind, found in series.items()
        if found is not None and not isnan(found.mean)
    ]


def tell_apart(points: Sequence[Found], *fields: str) -> list[dict[str, Any]]:
    """Call the tasks that points name as tables do: by as much of a path as tells them apart."""
    short = called_apart(str(point[field]) for point in points for field in fields)
    return [{**point, **{field: short[str(point[field])] for field in fields}} for point in points]


def chart_points(points: Sequence[Found], title: str) -> Figure | None:
    """Draw `points_of` some names, each with its interval; None without any."""
    if not points:
        return None
    points = tell_apart(points, "name")
    kinds = list(dict.fromkeys(point["series"] for point in points))
    looks = alt.Scale(domain=kinds, range=list(SERIES[: len(kinds)]))
    base = alt.Chart(
        pd.DataFrame(points), height=alt.Step(14 * max(2, len(kinds)), **{"for": "position"})
    ).encode(
        y=alt.Y("name:N", sort=None, title=None),
        yOffset=alt.YOffset("series:N", sort=kinds),
        color=alt.Color("series:N", sort=kinds, scale=looks),
    )
    return alt.layer(
        base.mark_rule(aria=False).encode(x=alt.X("low:Q", title=title), x2="high"),
        base.mark_point(filled=True, opacity=1, size=60).encode(x=alt.X("mean:Q", title=title)),
    )


def chart_matrix(cells: Sequence[Found], title: str, *, diverging: bool = False) -> Figure | None:
    """Draw cells of `row`, `column` and `value` in shades; None if all are 0 or not known."""
    known = [cell for cell in cells if not isnan(cell["value"])]
    most = max((abs(cell["value"]) for cell in known), default=0.0)
    if not most:
        return None
    shown = pd.DataFrame(tell_apart(known, "row", "column"))
    frame = shown.assign(value=lambda each: each["value"].astype(float))
    axis = alt.Axis(ticks=False, domain=False)
    scale = alt.Scale(**shade_scale(most, diverging=diverging))
    return (
        alt.Chart(frame, height=alt.Step(24))
        .mark_rect(stroke="white", strokeWidth=0.5)
        .encode(
            x=alt.X("column:N", sort=None, title=None, axis=axis),
            y=alt.Y("row:N", sort=None, title=None, axis=axis),
            color=alt.Color("value:Q", scale=scale, legend=None),
            description=alt.Text("value:Q", format=".3f"),
        )
        .properties(title=title)
    )


def chart_curves(
    points: Sequence[Found], across: str, up: str, *, logarithmic: bool = False
) -> Figure | None:
    """Draw a line of `x` and `y` through each series; None where none has two points."""
    drawn = [point for point in points if point["y"] is not None and not isnan(point["y"])]
    if len({point["x"] for point in drawn}) < 2:
        return None
    known = tell_apart(drawn, "series")
    kinds = list(dict.fromkeys(point["series"] for point in known))
    looks = [SERIES[place % len(SERIES)] for place in range(len(kinds))]
    scale = alt.Scale(type="log") if logarithmic else alt.Scale(zero=False)
    return (
        alt.Chart(pd.DataFrame(known), height=240)
        .mark_line(point=alt.OverlayMarkDef(size=60, filled=True))
        .encode(
            x=alt.X("x:Q", title=across, scale=scale),
            y=alt.Y("y:Q", title=up),
            color=alt.Color("series:N", sort=None, scale=alt.Scale(domain=kinds, range=looks)),
            shape=alt.Shape("series:N", sort=None),
        )
    )


def tabulate_effects(
    title: str,
    first: str,
    effects: Mapping[tuple[str, str], float],
    random: Mapping[tuple[str, str], float],
    *,
    losses: bool,
) -> Exhibit:
    """Show what one task's neurons (a row) do to every task, in brackets what random ones do.

    Effects are `losses` or gains; the chart has losses in orange.
    """
    tasks, judged = (list(dict.fromkeys(names)) for names in zip(*effects, strict=True))

    def cell(pair: tuple[str, str]) -> str:
        drawn, own = random.get(pair, nan), write_number(effects.get(pair))
        return own if isnan(drawn) else f"{own} ({write_number(drawn)})"

    rows = [{first: task} | {other: cell((task, other)) for other in judged} for task in tasks]
    cells = [
        {"row": task, "column": other, "value": -value if losses else value}
        for (task, other), value in effects.items()
        if not isnan(value)
    ]
    note = "Nats a token; in brackets the mean of random neurons of the same layers."
    return Exhibit.of(title, rows, [note], chart_matrix(cells, "", diverging=True))


def lay_out(exhibit: Exhibit) -> dict[str, Any]:
    """Make an exhibit a section of the page, its chart drawn."""
    title = visible(exhibit.title)
    summary = f"{title}; the numbers are in the table below."
    return {
        "title": title,
        "short": title if len(title) <= LINK else title[: LINK - 1].rstrip() + "…",
        "picture": None if exhibit.chart is None else draw(summary, exhibit.chart),
        "columns": exhibit.columns,
        "rows": exhibit.rows,
        "words": [
            place
            for place in range(len(exhibit.columns))
            if place == 0 or any(WORDS.match(row[place]) for row in exhibit.rows)
        ],
        "notes": list(map(visible, exhibit.notes)),
    }


def write_exhibits(
    folder: Path, title: str, lines: Sequence[str], exhibits: Sequence[Exhibit], command: str
) -> Path:
    """Write `folder/report.html`: a title, some lines, the exhibits, and the command.

    Raises OSError if the folder or a file cannot be written.
    """
    return write_page(
        folder,
        "tables.html.j2",
        title=visible(title),
        lines=list(map(visible, lines)),
        sections=list(map(lay_out, exhibits)),
        command=visible(command or "not recorded"),
    )


def report(
    path: Path,
    result: File,
    exhibits: list[Exhibit],
    title: str,
    lines: Sequence[str] = (),
    page: str = "",
) -> tuple[File, list[Exhibit]]:
    """Write what a command found into its file, and a page beside it, or in a folder there.

    Returns what the file holds, and what the page shows.
    """
    write_json(path, result.as_dict())
    write_exhibits(path.parent / page, title, lines, exhibits, result.command)
    return result, exhibits
