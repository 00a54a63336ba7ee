"""Scores against the number of heads knocked out, as a figure."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from caploc.report.figures import drawable
from caploc.report.reading import called_apart, number_at
from caploc.report.units import Kind, Unit

# Okabe and Ito's colours, told apart with every kind of colour vision.
LINES = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000"]
LONGEST = 40  # characters of a task's name
PLAIN = Unit(Kind.PLAIN, "score")  # of a task that the run says nothing of


def curve_figure(drawn: Mapping[str, Any], units: Mapping[str, Unit]) -> Figure:
    """Draw one line a task, and axes for each unit; bars are standard errors.

    `drawn` is the content of curve.json: `heads` in the order of their knockout, and for each task
    the scores with 0, 1, 2, ... of them gone. `units` say how each task's scores are written;
    shares are drawn as percentages.
    """
    curves: Mapping[str, Any] = drawn["curves"]
    names = called_apart(curves)
    panels: dict[tuple[Kind, str], list[str]] = {}
    for task in curves:
        unit = units.get(task, PLAIN)
        panels.setdefault((unit.kind, unit.measure), []).append(task)
    rows = max(1, len(panels))
    figure = Figure(figsize=(4.8, 0.4 + 2.8 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    every = figure.subplots(rows, squeeze=False, sharex=True)[:, 0]
    styles = {task: number for number, task in enumerate(curves)}
    for axes, ((kind, measure), tasks) in zip(every, panels.items(), strict=False):
        for task in tasks:
            factor, name = units.get(task, PLAIN).factor, shortened(names[task])
            draw_line(axes, curves[task], factor, name, styles[task])
        if kind is Kind.SHARE:
            axes.set_ylim(-2, 102)
        axes.set_ylabel(drawable(f"score ({measure})", LONGEST))
        axes.legend(frameon=False)
    for axes in every:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[["top", "right"]].set_visible(False)
    every[-1].set_xlabel("heads knocked out, most needed first")
    return figure


def draw_line(
    axes: Axes, points: Sequence[Mapping[str, Any]], factor: int, name: str, style: int
) -> None:
    """Draw one task's scores, each multiplied by `factor`; those not measured have no point."""
    scores = [(count, number_at(point, "score")) for count, point in enumerate(points)]
    known = [(count, score) for count, score in scores if score is not None and isfinite(score)]
    errors = [number_at(points[count], "stderr") or 0.0 for count, _ in known]
    axes.errorbar(
        [count for count, _ in known],
        [factor * score for _, score in known],
        yerr=[factor * error for error in errors],
        label=name,
        color=LINES[style % len(LINES)],
        marker="os^Dv<>"[style % 7],
        markersize=3.5,
        linewidth=1.2,
        capsize=1.5,
    )


def shortened(name: str) -> str:
    """A name that fits a legend: of a long one the middle is left out, since ends differ."""
    if len(name) > LONGEST:
        half = LONGEST // 2
        name = f"{name[:half]}…{name[1 - LONGEST + half :]}"
    return drawable(name, LONGEST)
