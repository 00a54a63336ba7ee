"""Pictures that several exhibits share: matrices, points with intervals, curves."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from caploc.report.figures import GREY, HOUSE_STYLE, LINES, drawable

LONGEST = 24  # characters of a name
MARKERS = "os^Dv<>"
Interval = tuple[float | None, float | None, float | None]  # mean, low, high


def matrix(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Float[np.ndarray, "rows columns"],
    *,
    label: str,
    digits: int = 2,
    diverging: bool = False,
) -> Figure:
    """Numbers in a table of shades; NaN is left white.

    `diverging` centres the shades at 0, for changes; otherwise they begin there.
    """
    with rc_context(HOUSE_STYLE):
        size = 1.6 + 0.46 * len(columns), 1.2 + 0.34 * len(rows)
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots()
        known = values[np.isfinite(values)]
        most = float(np.abs(known).max()) if known.size and np.abs(known).max() > 0 else 1.0
        image = axes.imshow(
            values,
            cmap="PuOr_r" if diverging else "Blues",
            vmin=-most if diverging else 0,
            vmax=most,
            aspect="auto",
        )
        for row, column in np.argwhere(np.isfinite(values)):
            value = float(values[row, column])
            dark = abs(value) > 0.6 * most
            axes.text(
                column,
                row,
                f"{value:z.{digits}f}",
                ha="center",
                va="center",
                color="white" if dark else "black",
                fontsize=6.5,
            )
        axes.set_xticks(range(len(columns)), [drawable(c, LONGEST) for c in columns], rotation=60)
        for tick in axes.get_xticklabels():
            tick.set_horizontalalignment("right")
            tick.set_rotation_mode("anchor")
        axes.set_yticks(range(len(rows)), [drawable(row, LONGEST) for row in rows])
        axes.spines[:].set_visible(False)
        figure.colorbar(image, ax=axes, label=label, shrink=0.8)
    return figure


def points(names: Sequence[str], series: Mapping[str, Sequence[Interval]], *, label: str) -> Figure:
    """A mark with its interval for each name and series, names from top to bottom."""
    with rc_context(HOUSE_STYLE):
        high = 0.9 + 0.24 * len(names) * max(1.0, 0.5 * len(series))
        figure = Figure(figsize=(5.2, high), layout="constrained")
        axes = figure.subplots()
        spread = np.linspace(-0.28, 0.28, len(series)) if len(series) > 1 else [0.0]
        for number, (name, values) in enumerate(series.items()):
            for place, (mean, low, up) in enumerate(values):
                if mean is None:
                    continue
                y = place + spread[number]
                colour = LINES[number % len(LINES)]
                if low is not None and up is not None:
                    axes.plot([low, up], [y, y], color=colour, linewidth=1.1)
                axes.plot(
                    [mean],
                    [y],
                    MARKERS[number % len(MARKERS)],
                    color=colour,
                    markersize=4,
                    label=drawable(name, 40) if place == first_known(values) else None,
                )
        axes.axvline(0, color=GREY, linewidth=0.6)
        axes.set_yticks(range(len(names)), [drawable(name, LONGEST) for name in names])
        axes.invert_yaxis()
        axes.set_xlabel(label)
        axes.spines[["top", "right"]].set_visible(False)
        legend(axes)
    return figure


def legend(axes: Axes) -> None:
    """Beside the picture what its marks mean; nothing where there is no mark."""
    marks, names = axes.get_legend_handles_labels()
    if marks:
        axes.legend(marks, names, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def first_known(values: Sequence[Interval]) -> int:
    """The first place at which there is a number."""
    return next((place for place, each in enumerate(values) if each[0] is not None), -1)


def curves(
    series: Mapping[str, Sequence[tuple[float, float | None]]],
    *,
    across: str,
    up: str,
    logarithmic: bool = False,
) -> Figure:
    """A line through the known points of each series."""
    with rc_context(HOUSE_STYLE):
        figure = Figure(figsize=(5.2, 3.2), layout="constrained")
        axes = figure.subplots()
        for number, (name, values) in enumerate(series.items()):
            known = [(x, y) for x, y in values if y is not None]
            axes.plot(
                [x for x, _ in known],
                [y for _, y in known],
                label=drawable(name, 40),
                color=LINES[number % len(LINES)],
                marker=MARKERS[number % len(MARKERS)],
                linestyle="-" if number < len(LINES) else "--",
                markersize=3.5,
                linewidth=1.2,
            )
        if logarithmic:
            axes.set_xscale("log")
        else:
            axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.set_xlabel(across)
        axes.set_ylabel(up)
        axes.spines[["top", "right"]].set_visible(False)
        legend(axes)
    return figure
