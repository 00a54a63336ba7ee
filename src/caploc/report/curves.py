"""Scores against the number of heads knocked out, as a figure."""

from collections.abc import Mapping
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from caploc.report.figures import drawable

# Okabe and Ito's colours, told apart with every kind of colour vision.
LINES = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000"]


def curve_figure(drawn: Mapping[str, Any]) -> Figure:
    """Draw one line a task; bars are standard errors.

    `drawn` is the content of curve.json: `heads` in the order of their knockout, and for each task
    the scores with 0, 1, 2, ... of them gone.
    """
    figure = Figure(figsize=(4.8, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for number, (task, points) in enumerate(drawn["curves"].items()):
        known = [(n, p) for n, p in enumerate(points) if p["score"] is not None]
        axes.errorbar(
            [count for count, _ in known],
            [point["score"] for _, point in known],
            yerr=[point["stderr"] or 0.0 for _, point in known],
            label=drawable(task, 40),
            color=LINES[number % len(LINES)],
            marker="os^Dv<>"[number % 7],
            markersize=3.5,
            linewidth=1.2,
            capsize=1.5,
        )
    axes.set_xlabel("heads knocked out, most needed first")
    axes.set_ylabel("score")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure
