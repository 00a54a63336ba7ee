"""Draw the figures of docs/how_it_works.md from a run on the demo model, and print what it quotes.

Run with `python scripts/figures.py`; the run lies in build/figures and is not measured again.
"""

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

import caploc
from caploc.heads import HeadGrid
from caploc.report import charts
from caploc.rowfiles import write_rows

ROOT = Path(__file__).parents[1]
TASK = "demo/addition"
SHOWN = 28  # rows in the picture of masks
INK, GREY = "#16181d", "#8b9098"
HOUSE_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
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
NEEDED, IDLE = charts.shade(charts.STEPS), "#c9cdd3"


def main() -> None:
    """Measure if nothing is there, draw, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=ROOT / "build" / "figures")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "how")
    asked = parser.parse_args()
    findings = caploc.locate("demo", TASK, limit=200, out=asked.run, opening="masks")
    result: dict[str, Any] = findings.result.as_dict()
    table = asked.run / "rows.parquet"
    write_rows(asked.run, table)
    screen, alone = parts(pd.read_parquet(table))
    grid = HeadGrid(tuple(result["grid"]["heads"]))
    asked.out.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(HOUSE_STYLE):
        for name, figure in {
            "masks": masks_figure(screen, grid),
            "means": means_figure(screen, grid, result["top"]),
            "counts": counts_figure(screen, grid, result["top"]),
            "effects": effects_figure(result),
            "check": check_figure(result),
        }.items():
            figure.savefig(asked.out / f"{name}.png", dpi=120, metadata={"Software": None})
    print(json.dumps(quoted(result, screen, alone), indent=1))


def parts(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The screen's rows, each under a mask of its own, and those of single heads."""
    rows = rows[rows["task"] == TASK].assign(mask=rows["knocked_out"].map(tuple))
    size, uses = rows["mask"].map(len), rows["mask"].map(Counter(rows["mask"]))
    return rows[(size > 1) & (uses == 1)], rows[size == 1]


def cuts(screen: pd.DataFrame, grid: HeadGrid) -> np.ndarray:
    """Which heads each row knocks out: (rows, heads), True is knocked out."""
    cut = np.zeros((len(screen), grid.size), dtype=bool)
    for place, mask in enumerate(screen["mask"]):
        cut[place, list(mask)] = True
    return cut


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure of so many inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def masks_figure(screen: pd.DataFrame, grid: HeadGrid) -> Figure:
    """Some rows: the heads they knock out, and whether the answer was right."""
    some = screen.sample(SHOWN, random_state=0)
    cut, right = cuts(some, grid), some["outcome"].to_numpy() > 0.5
    shade = np.where(cut, np.where(right, 1, 2)[:, None], 0)
    figure, axes = canvas(7.2, 2.9)
    axes.imshow(
        shade, aspect="auto", cmap=ListedColormap(["#f1f2f4", GREY, NEEDED]), vmin=0, vmax=2
    )
    for layer in range(1, grid.layers):
        axes.axvline(layer * grid.heads_per_layer[0] - 0.5, color="white", linewidth=1.5)
    for place, (text, good) in enumerate(zip(some["text"], right, strict=True)):
        mark = "right" if good else "wrong"
        axes.text(grid.size + 0.5, place, f"{text[0].strip()[:8]}  {mark}", va="center", fontsize=5,
                  color=INK if good else NEEDED)  # fmt: skip
    axes.set(ylabel="row", xlabel="head, layer by layer", yticks=[], xlim=(-0.5, grid.size + 8))
    axes.set_xticks([16 * layer + 7.5 for layer in range(grid.layers)],
                    [f"layer {layer}" for layer in range(grid.layers)])  # fmt: skip
    return figure


def means_figure(screen: pd.DataFrame, grid: HeadGrid, top: Sequence[str]) -> Figure:
    """Each head's rows: the share that stays right, beside that of all rows."""
    cut, outcome = cuts(screen, grid), screen["outcome"].to_numpy()
    share = (cut * outcome[:, None]).sum(0) / cut.sum(0)
    figure, axes = canvas(7.2, 2.4)
    names = [str(head) for head in grid.heads]
    shades = [NEEDED if name in top else IDLE for name in names]
    axes.axhline(outcome.mean(), color=GREY, linewidth=0.8, linestyle="--")
    axes.scatter(range(grid.size), share, c=shades, s=2 + cut.sum(0) / 3, zorder=3)
    found = [place for place, name in enumerate(names) if name in top]
    for rank, place in enumerate(found):
        aside = (-6, "right") if rank <= len(found) / 2 else (6, "left")
        axes.annotate(
            names[place],
            (place, share[place]),
            (aside[0], -2),
            textcoords="offset points",
            ha=aside[1],
            fontsize=6,
        )
    axes.set(xlabel="head", ylabel="share right, that head cut", ylim=(0, 1))
    return figure


def counts_figure(screen: pd.DataFrame, grid: HeadGrid, top: Sequence[str]) -> Figure:
    """In how many rows of the screen each head was knocked out."""
    counts = cuts(screen, grid).sum(0)
    order = np.argsort(-counts, kind="stable")
    names = [str(head) for head in grid.heads]
    figure, axes = canvas(7.2, 2.1)
    axes.bar(range(grid.size), counts[order],
             color=[NEEDED if names[place] in top else IDLE for place in order])  # fmt: skip
    axes.set(
        xlabel="heads, the most often cut first", ylabel="rows of the screen", xlim=(-1, grid.size)
    )
    return figure


def effects_figure(result: dict[str, Any], most: int = 14) -> Figure:
    """The strongest heads with their intervals."""
    heads = result["heads"][:most][::-1]
    figure, axes = canvas(5.2, 2.8)
    axes.axvline(0, color=GREY, linewidth=0.8)
    for place, head in enumerate(heads):
        shade = NEEDED if head["head"] in result["top"] else GREY
        axes.plot(
            [100 * head["low"], 100 * head["high"]], [place, place], color=shade, linewidth=1.4
        )
        axes.plot(100 * head["effect"], place, "o", color=shade, markersize=3.5)
    axes.set_yticks(range(len(heads)), [head["head"] for head in heads], fontsize=6)
    axes.set(xlabel="change of the score when that head alone is cut, points, with 95 % interval")
    return figure


def check_figure(result: dict[str, Any]) -> Figure:
    """The named heads out together, on fresh examples, beside random sets of as many."""
    controls, held_out = result["validation"]["controls"], result["validation"]["held_out"]
    figure, axes = canvas(5.2, 1.3)
    spread = np.random.default_rng(0).uniform(-0.12, 0.12, len(controls["scores"]))
    axes.scatter([100 * score for score in controls["scores"]], spread, color=GREY, s=10)
    for score, name, shade in (
        (held_out["knocked_out"], "the named heads out", NEEDED),
        (held_out["intact"], "intact", INK),
    ):
        axes.plot(100 * score, 0, "D", color=shade, markersize=5)
        axes.annotate(name, (100 * score, 0.16), ha="center", fontsize=7, color=shade)
    axes.annotate(
        "random sets", (100 * controls["mean"], -0.24), ha="center", fontsize=7, color=GREY
    )
    axes.spines["left"].set_visible(False)
    axes.set(xlabel="accuracy on examples that no search saw, %", yticks=[], ylim=(-0.35, 0.35))
    axes.set_xlim(-4, 106)
    return figure


def quoted(result: dict[str, Any], screen: pd.DataFrame, alone: pd.DataFrame) -> dict[str, Any]:
    """What the page says in numbers."""
    validation, search = result["validation"], result["search"]
    return {
        "screen rows": len(screen),
        "heads in a mask": float(screen["mask"].map(len).mean()),
        "share right": float(screen["outcome"].mean()),
        "rows of single heads": len(alone),
        "top": result["heads"][: len(result["top"]) + 2],
        "search": {name: search[name] for name in ("rows", "rate", "expected_recall", "stopped_by",
                                                   "scale", "checked_on", "forecast")},
        "held out": validation["held_out"],
        "controls": {name: validation["controls"][name] for name in ("mean", "sd", "draws")},
        "other tasks": [
            (each["name"], each["intact"]["score"], each["knocked_out"]["score"])
            for each in validation["other_tasks"]
        ],
        "cost": result["cost"],
    }  # fmt: skip


if __name__ == "__main__":
    main()
