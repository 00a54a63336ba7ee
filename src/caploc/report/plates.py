"""The figure files of a page: each as PNG, and as PDF for papers."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from caploc.report.curves import curve_figure
from caploc.report.effects import effects_figure, scores_figure
from caploc.report.figures import HOUSE_STYLE, heads_figure
from caploc.report.headtable import head_table
from caploc.report.plots import units_by_task
from caploc.report.reading import Result
from caploc.report.scores import comparisons
from caploc.report.units import outcome_unit

FIGURES = "figures"  # folder of a run
NAMES = ("heads", "effects", "scores", "curve")
SHARP = 200  # dots per inch of a PNG


def write_figures(folder: Path, result: Result, curve: Mapping[str, Any] | None) -> None:
    """Write the figures of a run into `folder`.

    `heads` is the map, `effects` the listed heads with intervals, `scores` the task before and
    after beside random heads and other tasks, and `curve` what `caploc curve` measured.

    Raises:
        OSError: if the folder or a file cannot be written.
    """
    rows, compared = head_table(result).rows, comparisons(result)
    plates: dict[str, Callable[[], Figure]] = {"heads": lambda: heads_figure(result)}
    if any(row.number is not None for row in rows):
        plates["effects"] = lambda: effects_figure(rows, outcome_unit(result))
    if any(point.score is not None for row in compared for point in row.points):
        plates["scores"] = lambda: scores_figure(compared)
    if curve is not None:
        plates["curve"] = lambda: curve_figure(curve, units_by_task(result))
    for name, draw in plates.items():
        write_plate(folder, name, draw)


def drawn_figures(folder: Path) -> list[str]:
    """Names, without endings, of the figures that lie in a run's folder."""
    return [name for name in NAMES if (folder / FIGURES / f"{name}.pdf").exists()]


def write_plate(folder: Path, name: str, draw: Callable[[], Figure]) -> tuple[Path, Path]:
    """Write one figure in the house style as `name.png` and `name.pdf`.

    Raises:
        OSError: if the folder or a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / f"{name}.png", folder / f"{name}.pdf"
    figure = styled(draw)
    with rc_context(HOUSE_STYLE):
        figure.savefig(paths[0], dpi=SHARP)
        figure.set_layout_engine("none")  # the second file keeps the places found for the first
        # Without a date the same numbers give the same file.
        figure.savefig(paths[1], metadata={"CreationDate": None})
    return paths


def styled(draw: Callable[[], Figure]) -> Figure:
    """A figure drawn in the house style: names in it are text, wherever it is shown later."""
    with rc_context(HOUSE_STYLE):
        figure = draw()
    return figure
