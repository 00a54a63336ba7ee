"""Run the studies that exhibits need, and write the exhibits: `python -m papers.heads table2`."""

import argparse
import shlex
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from caploc import console
from caploc.errors import CaplocError, pick
from caploc.models.loading import model_shape
from caploc.progress import Progress
from caploc.studies import Allowed, run_studies
from papers.exhibits import Exhibit, write_all
from papers.heads import figures, tables
from papers.heads.measured import Measured, Setup, open_measured

SHAPES = "table1"  # needs no run, and of a model its configuration alone
ALONE = "table4", "table6", "fig1", "fig2", "fig4", "failures", "choice"  # about one model: `lead`
EVERY_METHOD = "table4", "table9"
SCORELESS = "table1", "table9", "sharing", "choice"
UNIVERSAL = "Universal heads are taken out of what a search found, and the next ones move up."


@dataclass(frozen=True)
class Recipe:
    """How an exhibit is filled, what stands below it, and how it is drawn."""

    title: str
    rows: Callable[[Measured], Iterable[tables.Row]]
    notes: tuple[str, ...] = (UNIVERSAL,)
    draw: Callable[..., Any] | None = None


RECIPES = {
    "table1": Recipe("Table 1: models", lambda model: (), ()),  # asks no model
    "table2": Recipe("Table 2: the heads of each capability knocked out", tables.table2),
    "table3": Recipe("Table 3: heads on a twin of their task", tables.table3),
    "table4": Recipe(
        "Table 4: methods",
        tables.table4,
        (
            "Masks: evaluations of all examples from which the heads follow, as the paper counts. "
            "Rows: every example that the search asked with heads knocked out.",
            UNIVERSAL,
        ),
    ),
    "table5": Recipe("Table 5: universal heads", tables.table5, ()),
    "table6": Recipe("Table 6: one head after another", tables.table6),
    "table7": Recipe("Table 7: every benchmark without a universal head", tables.table7, ()),
    "table8": Recipe("Table 8: heads that questions of knowledge share", tables.table8),
    "table9": Recipe(
        "Table 9: the heads",
        tables.table9,
        (
            "†: shares its key-value head with another head of the row.",
            "‡: the search itself does not name it.",
            UNIVERSAL,
        ),
    ),
    "fig1": Recipe(
        "Figure 1: the heads of a capability knocked out", figures.fig1, draw=figures.draw_radar
    ),
    "fig2": Recipe(
        "Figure 2: heads knocked out one after another", figures.fig2, draw=figures.draw_curves
    ),
    "fig3": Recipe(
        "Figure 3: heads that questions of knowledge share", figures.fig3, draw=figures.draw_bars
    ),
    "fig4": Recipe(
        "Figure 4: heads of each subject of knowledge", figures.fig4, draw=figures.draw_bars
    ),
    "sharing": Recipe(
        "Heads that tasks share",
        tables.sharing,
        (
            "By chance: as many heads (or groups) a task, drawn from the whole grid. p: one-sided, "
            "at least so many; in layers: each task keeps its number in every layer; of all pairs: "
            "that, corrected for the number of a model's pairs (Holm).",
            UNIVERSAL,
        ),
    ),
    "scale": Recipe(
        "Localization and scale",
        tables.scale,
        (
            "Strength: the share of the task's score above chance that its heads take, less the "
            "share of the general score.",
            UNIVERSAL,
        ),
        partial(figures.draw_curves, across="billions of parameters", split="task", up="strength"),
    ),
    "failures": Recipe("How knocked-out models fail", tables.failures),
    "choice": Recipe(
        "The choice of masks and rate",
        tables.choice,
        (
            "The joint drop of the heads that a setting finds, on the examples that they were "
            "found and chosen on, and on others.",
        ),
    ),
    "rules": Recipe("Other rules and prompts", tables.rules),
}


def fill(
    setup: Setup, names: Iterable[str], folder: Path, progress: Progress, allowed: Allowed
) -> list[Exhibit]:
    """Fill exhibits from the finished runs in a folder; models are loaded one after another."""
    rows: dict[str, list[tables.Row]] = {name: [] for name in names}
    notes: dict[str, list[str]] = {name: [] for name in rows}
    for label in setup.models:
        if SHAPES in rows:
            grid, _ = model_shape(setup.models[label].name, setup.models[label].revision)
            rows[SHAPES].append(tables.table1(label, grid))
        wanted = [name for name in rows if label == setup.lead or name not in ALONE]
        if {*wanted} != {SHAPES}:
            with open_measured(setup, label, folder, progress, allowed) as model:
                for name in wanted:
                    model.notes.clear()
                    rows[name] += RECIPES[name].rows(model)
                    notes[name] += dict.fromkeys(model.notes)
    return [finish(setup, name, rows[name], notes[name]) for name in rows]


def finish(setup: Setup, name: str, rows: list[tables.Row], notes: list[str]) -> Exhibit:
    """Put rows and notes together, and draw the figure."""
    recipe = RECIPES[name]
    if name == "scale":
        rows, more = tables.compare_models(rows)
        notes = [*notes, *more]
    about = [f"On {setup.lead} only."] if name in ALONE else []
    few = [f"Scores are on the first {setup.limit} examples of every task."]
    named = " ".join(str(cell) for row in rows for cell in row.values())
    unlike = [
        f"{each.label} is not quite the paper's: {each.differs}"
        for each in setup.benchmarks
        if each.differs and "(paper " in named and each.label in named
    ]
    few = few if setup.limit is not None and name not in SCORELESS else []
    exhibit = Exhibit.of(name, recipe.title, rows, [*about, *recipe.notes, *notes, *few, *unlike])
    if recipe.draw is None or not rows:
        return exhibit
    return Exhibit(name, recipe.title, exhibit.frame, exhibit.notes, recipe.draw(exhibit.frame))


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser("python -m papers.heads", description=__doc__)
    parser.add_argument("items", nargs="+", help=f"{', '.join(RECIPES)}; or all")
    parser.add_argument("--setup", default="real", help="real, paper, or a TOML file like them")
    parser.add_argument("--runs", type=Path, help="their folder; what is there is not repeated")
    parser.add_argument("--model", action="append", default=[], help="LABEL, or LABEL=FOLDER")
    parser.add_argument("--only", action="append", default=[], help="a benchmark's label")
    parser.add_argument("--limit", type=int, help="examples of each score")
    parser.add_argument("--allow-code", action="store_true", help="run programs of the model")
    parser.add_argument("--quiet", action="store_true")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    """Run what is missing; write every item into the folder `exhibits` beside the runs."""
    asked = parse(arguments)
    names = list(RECIPES) if "all" in asked.items else asked.items
    for name in names:
        pick(RECIPES, name, "table or figure")
    allowed = Allowed(code=asked.allow_code)
    setup = Setup.read(asked.setup, allowed).narrowed(asked.model, asked.only, asked.limit)
    command = shlex.join(["python", "-m", "papers.heads", *arguments])
    folder = asked.runs or setup.out
    all_methods = not {*names}.isdisjoint(EVERY_METHOD)
    studies = setup.wanted(setup.methods if all_methods else [setup.main])
    with console.progress(asked.quiet) as progress:
        if names != [SHAPES]:
            for each in run_studies(studies, folder, progress, command=command).failed:
                console.warn(f"{each.name}: {each.failure}")
        exhibits = fill(setup, names, folder, progress, allowed)
    page = write_all(exhibits, folder / "exhibits", f"The heads paper: {setup.about}", command)
    console.say(f"Written: {page}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except CaplocError as error:
        sys.exit(str(error))
