"""The matrix of runs and heads as figures, one a model."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from caploc.report.figures import INK, colour_map, drawable
from caploc.report.plates import write_plate
from caploc.report.reading import known

NAME = 30  # characters of a run's name
MOST = 40  # columns; with more, those of the largest effects are drawn


def write_matrices(folder: Path, told: Mapping[str, Any]) -> list[str]:
    """Write a figure for each model whose runs name a head; their names, without endings.

    Raises:
        OSError: if the folder or a file cannot be written.
    """
    tops = {run["name"]: run["top"] for run in told["runs"]}
    matrices = [each["matrix"] for each in told["models"] if each["matrix"]["heads"]]
    names = ["matrix" if not place else f"matrix-{place + 1}" for place in range(len(matrices))]
    for name, matrix in zip(names, matrices, strict=True):
        write_plate(folder, name, partial(matrix_figure, matrix, tops))
    return names


def matrix_figure(matrix: Mapping[str, Any], tops: Mapping[str, Sequence[str]]) -> Figure:
    """Draw each run's effects of the heads that any of them names; a dot marks its own.

    Shades are relative to the run's largest effect shown, so that tasks of different units can
    stand in one figure.
    """
    rows = matrix["rows"]
    effects = np.array(
        [[np.nan if known(e) is None else e for e in row["effects"]] for row in rows], dtype=float
    )
    limits = np.nanmax(np.abs(effects), axis=1, keepdims=True, initial=1e-12)
    shares = effects / limits
    order = np.argsort(-np.nanmax(np.abs(np.nan_to_num(shares)), axis=0), kind="stable")[:MOST]
    order = np.sort(order)
    heads = [matrix["heads"][column] for column in order]
    figure = Figure(figsize=(2.2 + 0.2 * len(heads), 1.1 + 0.2 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    image = axes.imshow(
        np.ma.masked_invalid(shares[:, order]), cmap=colour_map(), vmin=-1, vmax=1, aspect="auto"
    )
    for place, row in enumerate(rows):
        own = [column for column, head in enumerate(heads) if head in tops[row["run"]]]
        axes.plot(own, [place] * len(own), "o", color=INK, markeredgecolor="white",
                  markeredgewidth=0.5, markersize=3.5)  # fmt: skip
    axes.set_xticks(range(len(heads)), [drawable(head, 10) for head in heads], rotation=90)
    axes.set_yticks(range(len(rows)), [drawable(row["run"], NAME) for row in rows])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    bar = figure.colorbar(image, ax=axes, pad=0.02)
    bar.set_label("effect / largest", fontsize=7)
    return figure
