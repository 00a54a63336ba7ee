"""The house style of figures that matplotlib draws, those of the papers.

Figures are made without pyplot, so that a program using it keeps its backend, style and figures.
"""

from functools import cache
from typing import Any

from matplotlib import font_manager

from caploc.report.reading import inline

FONT = "DejaVu Sans"  # comes with matplotlib, so a figure looks the same on every machine
INK = "#16181d"
GREY = "#8b9098"
# Okabe and Ito's colours, told apart with every kind of colour vision.
LINES = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000"]
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
