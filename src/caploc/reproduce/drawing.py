"""Pictures of exhibits, in one style: for print, legible in grey, safe for colour-blind readers."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.projections.polar import PolarAxes

from caploc.exhibits.exhibit import Cell, Value
from caploc.report.figures import HOUSE_STYLE, INK, LINES, drawable

MARKERS = "os^Dv<>"
# The intact model is black, whatever stands beside it.
COLOURS = (LINES[-1], *LINES[:-1])
HATCHES = ("", "////", "....")  # when colours begin again
RINGS = (0.25, 0.5, 0.75, 1.0)
LEGEND = 40  # characters of a name


def radar(axes: Sequence[str], series: Mapping[str, Sequence[Value]]) -> Figure:
    """Each row as a ring; every axis is a share of the first row, the intact model.

    The first axis is at the top, the others follow clockwise.
    """
    first = next(iter(series.values()))
    angles = np.linspace(0, 2 * np.pi, len(axes), endpoint=False)
    with rc_context(HOUSE_STYLE):
        figure = Figure(figsize=(6, 5))
        circle = figure.add_subplot(projection="polar")
        assert isinstance(circle, PolarAxes)
        circle.set_theta_zero_location("N")
        circle.set_theta_direction(-1)
        for place, (name, values) in enumerate(series.items()):
            pairs = zip(values, first, strict=True)
            draw_ring(circle, angles, [share(*pair) for pair in pairs], place, name)
        circle.set_ylim(0, max(1.05, circle.get_ylim()[1]))
        write_axes(circle, angles, axes)
        circle.legend(loc="upper left", bbox_to_anchor=(1.14, 1.08), frameon=False)
    return figure


def draw_ring(
    circle: PolarAxes, angles: np.ndarray, shares: Sequence[float], place: int, name: str
) -> None:
    """A closed line, and a light fill if every share is known; the first ring has none."""
    colour = COLOURS[place % len(COLOURS)]
    around, closed = [*angles, angles[0]], [*shares, shares[0]]
    circle.plot(
        around,
        closed,
        color=colour,
        marker=MARKERS[place % len(MARKERS)],
        markersize=4,
        linewidth=1.4,
        label=drawable(name, LEGEND),
    )
    if place and np.isfinite(closed).all():
        circle.fill(around, closed, color=colour, alpha=0.05, linewidth=0)


def write_axes(circle: PolarAxes, angles: np.ndarray, axes: Sequence[str]) -> None:
    """Names around the circle, and percentages between two axes, over the lines."""
    circle.set_xticks(angles, [drawable(name, LEGEND) for name in axes])
    circle.tick_params(axis="x", pad=8)
    circle.set_yticks(RINGS, [""] * len(RINGS))
    circle.grid(color="#bfc4cb", linewidth=0.6)
    for radius in RINGS:
        circle.text(
            np.pi / len(axes),
            radius,
            f"{100 * radius:.0f} %",
            fontsize=6.5,
            ha="center",
            va="center",
            zorder=5,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.6},
        )


def share(part: Value, whole: Value) -> float:
    """A part of a whole; NaN where either is missing."""
    if part.number is None or not whole.number:
        return float("nan")
    return part.number / whole.number


def curves(names: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Figure:
    """Score against the number of heads, a line a column, with one standard error each way."""
    with rc_context(HOUSE_STYLE):
        figure = Figure(figsize=(5.2, 3.4))
        axes = figure.add_subplot()
        for place, name in enumerate(names):
            values = [row[place] for row in rows]
            axes.errorbar(
                range(len(rows)),
                [number_of(value) for value in values],
                yerr=[error_of(value) for value in values],
                color=COLOURS[place % len(COLOURS)],
                marker=MARKERS[place % len(MARKERS)],
                markersize=4,
                linewidth=1.4,
                elinewidth=0.8,
                label=drawable(name, LEGEND),
            )
        axes.set_xlabel("heads knocked out")
        axes.set_xticks(range(len(rows)))
        finish(axes)
    return figure


def bars(
    names: Sequence[str], series: Mapping[str, Sequence[Value]], guessing: Sequence[Value]
) -> Figure:
    """A group of bars a column, one bar a row; a dotted line where guessing would be."""
    width = 0.8 / len(series)
    with rc_context(HOUSE_STYLE):
        figure = Figure(figsize=(max(5.2, 1.1 * len(names)), 3.2))
        axes = figure.add_subplot()
        for place, (name, values) in enumerate(series.items()):
            axes.bar(
                np.arange(len(names)) + (place - (len(series) - 1) / 2) * width,
                [number_of(value) for value in values],
                width * 0.92,
                yerr=[error_of(value) for value in values],
                color=COLOURS[place % len(COLOURS)],
                hatch=HATCHES[place // len(COLOURS) % len(HATCHES)],
                edgecolor="white",
                linewidth=0,
                error_kw={"elinewidth": 0.8, "ecolor": "#777777"},
                label=drawable(name, LEGEND),
            )
        marks = [(place, value.number) for place, value in enumerate(guessing) if value.number]
        if marks:
            draw_marks(axes, np.array(marks))
        axes.set_xticks(range(len(names)), [drawable(name, LEGEND) for name in names])
        finish(axes)
    return figure


def draw_marks(axes: Axes, marks: np.ndarray) -> None:
    """A dotted line across each group of bars, at (place, height), seen on any colour."""
    places, heights = marks.T
    ends = (places - 0.45, places + 0.45)
    axes.hlines(heights, *ends, colors="white", linewidth=2.2, zorder=3)
    dots = (0, (1, 1.5))
    axes.hlines(
        heights, *ends, colors=INK, linestyles=dots, linewidth=1.1, label="guessing", zorder=3
    )


def finish(axes: Axes) -> None:
    """Scores from 0, no box, and the legend beside the picture."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_ylabel("score")
    axes.set_ylim(0, None)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1))


def number_of(cell: Cell) -> float:
    """A cell's number; NaN where there is none."""
    known = isinstance(cell, Value) and cell.number is not None
    return cell.number if known else float("nan")  # type: ignore[union-attr,return-value]


def error_of(cell: Cell) -> float:
    """A cell's standard error; 0 where there is none."""
    return (cell.stderr or 0.0) if isinstance(cell, Value) else 0.0
