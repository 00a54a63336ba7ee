"""A capability's heads and neurons as one picture: in which layers, and how their losses add up."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from caploc.commonality import Interval
from caploc.neurons.alignment import Alignment
from caploc.neurons.conditions import Pairing
from caploc.neurons.together import RANDOM_HEADS, RANDOM_NEURONS, Together
from caploc.report.figures import GREY, HOUSE_STYLE, INK, LINES, drawable

HEADS, NEURONS, BOTH = LINES[0], LINES[1], LINES[2]
WIDTH = 0.4  # of a layer's bar
ABOVE: dict[str, Any] = {  # a legend that covers no bar
    "loc": "lower left",
    "bbox_to_anchor": (0.0, 1.0),
    "ncols": 2,
    "frameon": False,
    "fontsize": 7,
}
LABELS = {
    "nothing": "nothing",
    "heads": "heads",
    "neurons": "neurons",
    "both": "both",
    RANDOM_NEURONS: "heads and\nrandom\nneurons",
    RANDOM_HEADS: "random\nheads and\nneurons",
}


def together_figure(found: Together) -> Figure:
    """Left, the share of heads and of neurons in every layer; right, what is lost without them.

    Losses are of log-probability, with 95 % intervals; a dash marks the sum of heads and neurons,
    for every draw too.
    """
    with rc_context(HOUSE_STYLE):
        figure = Figure(figsize=(8.2, 3.3), layout="constrained")
        FigureCanvasAgg(figure)
        left, right = figure.subplots(1, 2)
        draw_layers(left, found.alignment)
        draw_losses(right, found)
        for axes in (left, right):
            axes.spines[["top", "right"]].set_visible(False)
        figure.suptitle(drawable(found.task, 80), x=0.01, ha="left", fontsize=9)
    return figure


def draw_layers(axes: Axes, found: Alignment) -> None:
    """Bars for what is located, dots for what all heads cost and all neurons score."""
    layers = np.arange(len(found.located.heads))
    weighed = (
        (None, None) if found.weighed is None else (found.weighed.heads, found.weighed.neurons)
    )
    sides = (
        (-WIDTH / 2, found.located.heads, weighed[0], HEADS, "heads", "cost of every head"),
        (WIDTH / 2, found.located.neurons, weighed[1], NEURONS, "neurons", "score of every neuron"),
    )
    dots: dict[str, Any] = {"markersize": 4, "markeredgecolor": "white", "markeredgewidth": 0.5}
    for shift, shares, weights, colour, name, weight in sides:
        axes.bar(layers + shift, shares, WIDTH, color=colour, alpha=0.75, label=name)
        if weights is not None:
            axes.plot(layers + shift, weights, "o", color=colour, label=weight, **dots)
    axes.set_xlabel("layer")
    axes.set_ylabel("share of all")
    axes.set_ylim(0, 1.02)
    axes.xaxis.set_major_locator(MaxNLocator(16, integer=True))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.legend(**ABOVE)


def draw_losses(axes: Axes, found: Together) -> None:
    """A bar for each of four conditions, then dots for the random draws."""
    lost = found.located.logprob
    bars: tuple[tuple[str, Interval | None, str], ...] = (
        ("nothing", None, GREY),
        ("heads", lost.heads, HEADS),
        ("neurons", lost.neurons, NEURONS),
        ("both", lost.both, BOTH),
    )
    for place, (_, interval, colour) in enumerate(bars):
        mean = 0.0 if interval is None else interval.mean
        axes.bar(place, mean, 0.6, color=colour, alpha=0.75)
        if interval is not None:
            bounds = [[mean - interval.low], [interval.high - mean]]
            axes.errorbar(place, mean, np.abs(bounds), color=INK, elinewidth=0.8, capsize=2)
    both = len(bars) - 1
    axes.hlines(
        lost.summed.mean, both - 0.36, both + 0.36, color=INK, linestyle="--", linewidth=1.1
    )
    names = [name for name, *_ in bars]
    for arm in (RANDOM_NEURONS, RANDOM_HEADS):
        if drawn := found.drawn(arm):
            draw_arm(axes, len(names), drawn)
            names.append(arm)
    axes.axhline(0, color=INK, linewidth=0.6)
    axes.set_xticks(range(len(names)), [LABELS[name] for name in names])
    axes.set_xlabel("knocked out")
    axes.set_ylabel("log-probability lost (nats a gold token)")
    # an entry for the dash, which stands for the same thing at every place
    axes.plot([], [], color=INK, linestyle="--", linewidth=1.1, label="sum of heads and neurons")
    axes.legend(**ABOVE)


def draw_arm(axes: Axes, place: int, drawn: Sequence[Pairing]) -> None:
    """A dot for what each draw loses with both gone, a dash for the sum."""
    shifts = np.linspace(-0.3, 0.3, len(drawn))
    half = 0.25 / len(drawn)
    for shift, each in zip(shifts, drawn, strict=True):
        at = place + shift
        axes.plot(at, each.logprob.both.mean, "o", color=BOTH, markersize=3)
        axes.hlines(each.logprob.summed.mean, at - half, at + half, color=INK, linewidth=1.1)
