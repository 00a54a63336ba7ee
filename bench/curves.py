"""The picture of the benchmark: recall against rows, a panel for each kind of world."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no screen needed

from matplotlib import pyplot  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402

from simulator import IDLE  # noqa: E402

# Colours that the colour-blind tell apart (Okabe and Ito, 2008), and a marker for each line.
STYLES = {
    "adaptive (heads)": ("#D55E00", "o"),
    "adaptive (set)": ("#CC79A7", "D"),
    "adaptive (own stop)": ("#D55E00", "*"),
    "flat rows": ("#E69F00", "s"),
    "css 2%": ("#56B4E9", "v"),
    "css 5%": ("#0072B2", "^"),
    "css (searched)": ("#0072B2", "P"),
    "ridge regression": ("#009E73", "X"),
    "halving": ("#999999", "<"),
    "one-shot": ("#000000", "d"),
    "greedy": ("#000000", "h"),
}
COLUMNS = 3
HEIGHT = 0.052  # least distance of two labels, in recall
Points = list[tuple[float, float, float]]  # rows, recall, its error


def draw(kinds: dict[str, dict[str, Any]], file: Path) -> None:
    """Write the picture of the kinds that have something to find; none if there are none."""
    panels = {
        kind: found
        for kind, entry in kinds.items()
        if IDLE not in kind and (found := lines(entry["cells"]))
    }
    if not panels:
        return
    across = min(COLUMNS, len(panels))
    down = -(-len(panels) // across)
    size = (5.2 * across, 4.4 * down)
    figure, axes = pyplot.subplots(
        down, across, figsize=size, sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (kind, found) in zip(axes.flat, panels.items(), strict=False):
        panel(axis, found)
        axis.set_title(kind, loc="left")
    figure.supxlabel("rows")
    figure.supylabel("recall of the five heads that matter most alone")
    figure.savefig(file, dpi=150)
    pyplot.close(figure)


def lines(cells: dict[str, dict[str, Any]]) -> dict[str, Points]:
    """The points of every line, by rows."""
    found: dict[str, Points] = {}
    for cell in cells.values():
        name, scores = cell["method"], cell["scores"]
        if name == "css":
            name = f"css {cell['setting'].rpartition(' ')[2]}"
        if name in STYLES and "recall" in scores:
            recall = scores["recall"]
            point = (scores["rows"]["mean"], recall["mean"], recall.get("error", 0.0))
            found.setdefault(name, []).append(point)
    return {name: sorted(found[name]) for name in STYLES if name in found}


def panel(axis: Axes, found: dict[str, Points]) -> None:
    """One kind of world: lines with error bars, each labelled at its end."""
    for name, points in found.items():
        colour, marker = STYLES[name]
        rows, recall, error = zip(*points, strict=True)
        axis.errorbar(
            rows,
            recall,
            error,
            color=colour,
            marker=marker,
            markersize=5,
            linewidth=1.4,
            elinewidth=0.7,
            zorder=3,
        )
    axis.set_xscale("log")
    axis.set_xlim(700, 9e6)  # room for the labels
    axis.set_ylim(-0.03, 1.05)
    axis.set_xticks([1e3, 1e4, 1e5], ["1,000", "10,000", "100,000"])
    axis.tick_params(labelbottom=True)
    axis.spines[["top", "right"]].set_visible(False)
    ends = {name: points[-1] for name, points in found.items()}
    for name, height in apart({name: end[1] for name, end in ends.items()}).items():
        label(axis, name, ends[name], height)


def label(axis: Axes, name: str, end: tuple[float, float, float], height: float) -> None:
    """A line's name at the right edge, with a thin line to its last point."""
    colour, _ = STYLES[name]
    axis.annotate(
        name,
        xy=(end[0], end[1]),
        xytext=(7.5e5, height),
        color=colour,
        fontsize=8,
        va="center",
        arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.5, "alpha": 0.4},
    )


def apart(heights: dict[str, float]) -> dict[str, float]:
    """Heights of labels moved so that none covers another: down from the top, in their order."""
    found: dict[str, float] = {}
    below = 1.03 + HEIGHT
    for name in sorted(heights, key=lambda name: -heights[name]):
        below = min(heights[name], below - HEIGHT)
        found[name] = below
    lowest = min(found.values(), default=0.0)
    lift = max(0.0, 0.02 - lowest)
    return {name: min(height + lift, 1.03) for name, height in found.items()} if lift else found
