"""Effects with their intervals, and scores beside random heads, as figures."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from caploc.report.figures import GREY, INK, drawable
from caploc.report.headtable import HeadRow
from caploc.report.reading import finite
from caploc.report.scores import Comparison
from caploc.report.units import Kind, Unit

NEEDED = "#b8500c"
LONGEST = 44  # characters of a row's name
TALL = 0.2  # inches of a row


def effects_figure(rows: Sequence[HeadRow], unit: Unit) -> Figure:
    """Draw each listed head's effect with its interval; named heads are filled circles."""
    factor = unit.factor
    figure, axes = _rows([row.head for row in rows], 4.2)
    axes.axvline(0, color=GREY, linewidth=0.7, linestyle="--")
    for place, row in enumerate(rows):
        if not finite([row.number]) or row.number is None:
            continue
        colour = NEEDED if row.standing.named else GREY
        if row.low is not None and row.high is not None:
            ends = [factor * row.low, factor * row.high]
            axes.plot(ends, [place, place], color=colour, linewidth=1.2)
        marker = "o" if row.standing.named else "D"
        axes.plot([factor * row.number], [place], marker, color=colour, markersize=4)
    axes.set_xlabel(drawable(f"effect alone ({unit.axis})", 60))
    return figure


def scores_figure(rows: Sequence[Comparison]) -> Figure:
    """Draw scores before and after; rows in another unit than the first are left out.

    Short lines are single draws of random heads.
    """
    unit = rows[0].unit
    rows = [row for row in rows if row.unit.measure == unit.measure]
    factor = unit.factor
    figure, axes = _rows([row.short for row in rows], 4.8)
    if unit.kind is Kind.SHARE:
        axes.set_xlim(-2, 102)
    for place, row in enumerate(rows):
        axes.plot([factor * score for score in row.draws], [place] * len(row.draws), "|",
                  color=GREY, markersize=7)  # fmt: skip
        for point, colour, marker in zip(row.points, (INK, NEEDED), "Do", strict=True):
            if point.score is not None:
                axes.errorbar([factor * point.score], [place], xerr=factor * (point.error or 0.0),
                              fmt=marker, color=colour, markersize=4, linewidth=1.2)  # fmt: skip
    for colour, marker, name in ((INK, "D", "intact"), (NEEDED, "o", "knocked out")):
        axes.plot([], [], marker, color=colour, markersize=4, label=name)
    axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    axes.set_xlabel(drawable(f"score ({unit.measure})", 60))
    return figure


def _rows(names: Sequence[str], width: float) -> tuple[Figure, Axes]:
    """Axes with named rows, from top to bottom."""
    figure = Figure(figsize=(width, 0.8 + TALL * max(2, len(names))), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set_yticks(range(len(names)), [drawable(name, LONGEST) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes
