"""The map of heads as a figure, and the house style of all figures.

Figures are made without pyplot, so that a program using it keeps its backend, style and figures.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PatchCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from caploc.heads import Head, HeadGrid
from caploc.report import colours
from caploc.report.headmap import by_head, grid_of
from caploc.report.reading import Result, at, called, inline, known
from caploc.report.standing import standings
from caploc.report.units import Kind, Unit, outcome_unit

FONT = "DejaVu Sans"  # comes with matplotlib, so a figure looks the same on every machine
INK = "#16181d"
GREY = "#8b9098"
HOUSE_STYLE: dict[Any, Any] = {
    "font.family": FONT,
    "font.size": 8,
    "axes.edgecolor": "#9aa0a8",
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.unicode_minus": True,
    "figure.facecolor": "white",
    "hatch.color": GREY,
    "hatch.linewidth": 0.5,
    "pdf.fonttype": 42,  # embedded as TrueType: journals refuse the default, Type 3
    "savefig.facecolor": "white",
    "text.color": INK,
    "text.usetex": False,
    "text.parse_math": False,  # a task may be named `$\\frac`
    "xtick.color": INK,
    "ytick.color": INK,
}


def heads_figure(result: Result) -> Figure:
    """Draw the map of effects; what was not measured is hatched, what does not exist is blank."""
    unit, grid = outcome_unit(result), grid_of(result)
    shape = max(1, grid.layers), max(1, *grid.heads_per_layer, 1)
    side = 0.24 if max(shape) <= 24 else 0.13  # of a cell, in inches
    size = max(4.2, 1.9 + side * shape[1]), max(2.4, 1.2 + side * shape[0])
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    effects = _effects(result, shape)
    _draw_effects(figure, axes, effects, unit)
    _mark_heads(axes, result, grid)
    task, model = called(at(result, "task", "name")), called(at(result, "model", "name"))
    title = f"{task or 'a task'} in {model or 'a model'}"
    axes.set_title(drawable(title, int(12 * size[0])), loc="left", fontsize=9)
    return figure


def _effects(result: Result, shape: tuple[int, int]) -> np.ndarray:
    """Effects by layer and index, in percentage points where scores are percentages."""
    factor = 100 if outcome_unit(result).kind is Kind.SHARE else 1
    effects = np.full(shape, np.nan)
    for head, entry in by_head(result).items():
        effect = known(at(entry, "effect"))
        if effect is not None and head.layer < shape[0] and head.index < shape[1]:
            effects[head.layer, head.index] = factor * effect
    return effects


def _draw_effects(figure: Figure, axes: Axes, effects: np.ndarray, unit: Unit) -> None:
    measured = effects[np.isfinite(effects)]
    limit = (float(np.abs(measured).max()) if measured.size else 0.0) or 1.0
    image = axes.imshow(
        np.ma.masked_invalid(np.clip(effects, -limit, limit)),  # an endless effect is drawn too
        cmap=colour_map(),
        vmin=-limit,
        vmax=limit,
        aspect="auto",  # the figure has the right shape, and so the legend is as tall as the map
        interpolation="nearest",
    )
    axes.set(ylabel="layer")
    axes.xaxis.set_major_locator(MaxNLocator(16, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(16, integer=True))
    axes.set_xticks(np.arange(effects.shape[1] + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(effects.shape[0] + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=0.5)
    axes.tick_params(which="minor", length=0)
    bar = figure.colorbar(image, ax=axes, aspect=8 * figure.get_figheight(), pad=0.02)
    room = int(14 * figure.get_figheight())
    label = f"change of the score ({unit.axis})"
    bar.set_label(drawable(label if len(label) <= room else f"change ({unit.axis})", room))
    bar.outline.set_linewidth(0.6)


def colour_map() -> LinearSegmentedColormap:
    """Shades of effects: orange stands for needed heads, which have effects below zero."""
    order = range(colours.STEPS, -colours.STEPS - 1, -1)
    shades = [colours.shade(number) for number in order]
    return LinearSegmentedColormap.from_list("caploc", shades, N=511)


def _mark_heads(axes: Axes, result: Result, grid: HeadGrid) -> None:
    """Outline, cross and hatch heads, and say under the map what these marks mean."""
    entries, known_of = by_head(result), standings(result)
    missing = [head for head in grid.heads if known(at(entries.get(head), "effect")) is None]
    stands = {head: known_of.of(str(head), entry) for head, entry in entries.items()}
    selected = [head for head, each in stands.items() if each.selected and not each.named]
    named = [head for head, each in stands.items() if each.named]
    universal = [head for head, each in stands.items() if each.universal is True]
    critical = [h for h, each in stands.items() if each.critical and h not in universal]
    _squares(axes, missing, hatch="//////", edgecolor=GREY, linewidth=0)
    _squares(axes, selected, edgecolor=INK, linewidth=0.7)
    _squares(axes, named, edgecolor=INK, linewidth=1.8)
    _signs(axes, critical, "o")
    _signs(axes, universal, "x")
    marks = {
        "outlined: selected": selected,
        "bold: knocked out in the check": named,
        "dot: breaks the task alone": critical,
        "cross: breaks another task too": universal,
        "hatched: not measured": missing,
    }
    axes.set_xlabel(
        "; ".join(["head", *(text for text, heads in marks.items() if heads)]), wrap=True
    )


def _signs(axes: Axes, heads: Sequence[Head], marker: str) -> None:
    """Draw a sign on each head, in a colour that stands out from the strongest orange."""
    size = 7 if marker == "x" else 3
    axes.plot(
        [head.index for head in heads],
        [head.layer for head in heads],
        marker,
        color=INK,
        markeredgecolor=INK if marker == "x" else "white",
        markeredgewidth=1.0 if marker == "x" else 0.5,
        markersize=size,
        zorder=4,
    )


def _squares(axes: Axes, heads: Sequence[Head], **style: Any) -> None:
    """Draw a square on each head, above the grid; one collection, so thousands stay quick."""
    squares = [Rectangle((head.index - 0.5, head.layer - 0.5), 1, 1) for head in heads]
    axes.add_collection(
        PatchCollection(squares, facecolor="none", zorder=3, clip_on=False, **style)
    )


@cache
def _drawn_characters() -> frozenset[int]:
    return frozenset(font_manager.get_font(font_manager.findfont(FONT)).get_charmap())


def drawable(text: str, limit: int) -> str:
    """Return the text on one line of at most `limit` characters, □ for those the font lacks.

    Text that runs off a figure would leave no room for the map.
    """
    line = inline(text)
    shown = line if len(line) <= limit else f"{line[: limit - 1]}…"
    return "".join(char if ord(char) in _drawn_characters() else "□" for char in shown)
