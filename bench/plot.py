"""The picture of the benchmark: rows per second of every contender, on a logarithmic axis."""

from pathlib import Path
from statistics import median
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")  # no screen needed

from matplotlib import pyplot  # noqa: E402
from matplotlib.patches import Patch  # noqa: E402

COLOURS = {
    "reference": "#c9c9c9",
    "hook loop": "#9a9a9a",
    "hook loop with prefix cache": "#7fa3b8",
    "rows": "#5f6b7a",
    "caploc": "#d1495b",
}
PEER_COLOURS = "YlGnBu"


def draw(workloads: dict[str, dict[str, Any]], file: Path) -> None:
    """Write the bars of all workloads, in their order, grouped by "model/workload"."""
    names = list(workloads)
    colours = order({name for found in workloads.values() for name in found["contenders"]})
    figure, axes = pyplot.subplots(figsize=(max(6, len(names) + 2), 3.6), layout="constrained")
    width = 0.84 / len(colours)
    for place, found in enumerate(workloads.values()):
        present = [name for name in colours if name in found["contenders"]]
        lefts = place + (np.arange(len(present)) - (len(present) - 1) / 2) * width
        shades = [colours[name] for name in present]
        axes.bar(lefts, [speed(found, name) for name in present], width, color=shades)
    axes.set_yscale("log")
    axes.set_ylabel("rows per second")
    axes.set_xticks(range(len(names)), [name.replace("/", "\n") for name in names])
    axes.spines[["top", "right"]].set_visible(False)
    handles = [Patch(color=colour, label=name) for name, colour in colours.items()]
    figure.legend(handles=handles, frameon=False, ncols=5, loc="outside upper left")
    figure.savefig(file, dpi=150)
    pyplot.close(figure)


def order(names: set[str]) -> dict[str, Any]:
    """Contenders and their colours: the peers between the plain ways and caploc."""
    peers = sorted(names - set(COLOURS))
    shades = pyplot.get_cmap(PEER_COLOURS)(np.linspace(0.3, 0.8, max(len(peers), 1)))
    plain = {name: colour for name, colour in COLOURS.items() if name != "caploc"}
    every = plain | dict(zip(peers, shades, strict=False)) | {"caploc": COLOURS["caploc"]}
    return {name: colour for name, colour in every.items() if name in names}


def speed(found: dict[str, Any], contender: str) -> float:
    """Rows per second, by the median repeat."""
    return float(found["rows"] / median(found["contenders"][contender]["wall"]))
