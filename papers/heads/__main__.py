"""Run the studies that exhibits need, and write the exhibits: `python -m papers.heads table2`."""

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from caploc import console
from caploc.errors import CaplocError, pick
from caploc.models.projections import find_projections
from caploc.progress import Progress
from caploc.studies import Allowed, run_studies
from papers.exhibits import Exhibit, write_all
from papers.heads import figures, tables
from papers.heads.measured import Setup, open_measured

SHAPES = "table1"  # needs no run, and of a model its configuration alone
ALONE = "table4", "table6", "fig1", "fig2", "fig4"  # about one model: `lead`
EVERY_METHOD = "table4", "table9"
SCORELESS = "table1", "table9", "sharing"
UNIVERSAL = "Universal heads are taken out of what a search found, and the next ones move up."


TABLES = (tables.table2, tables.table3, tables.table4, tables.table5, tables.table6, tables.table7,
          tables.table8, tables.table9, figures.fig1, figures.fig2, figures.fig3, figures.fig4,
          tables.sharing)  # fmt: skip
RECIPES = {SHAPES: tables.table1} | {each.__name__: each for each in TABLES}
NOTES = {
    "table4": "Masks: evaluations of all examples from which the heads follow, as the paper "
    "counts. Rows: every example that the search asked with heads knocked out.",
    "table9": "†: shares its key-value head with another head of the row. ‡: the search itself "
    "does not name it.",
    "sharing": "By chance: as many heads (or groups) a task, drawn from the whole grid. p: "
    "one-sided, at least so many; in layers: each task keeps its number in every layer; of all "
    "pairs: that, as a false discovery rate of a model's pairs.",
}
DRAWN: dict[str, Callable[..., Any]] = {
    "fig1": figures.draw_bars,
    "fig2": figures.draw_curves,
    "fig3": figures.draw_bars,
    "fig4": figures.draw_bars,
}


def fill(
    setup: Setup, names: Iterable[str], folder: Path, progress: Progress, allowed: Allowed
) -> list[Exhibit]:
    """Fill exhibits from the finished runs in a folder; models are loaded one after another."""
    rows: dict[str, list[tables.Row]] = {name: [] for name in names}
    notes: dict[str, list[str]] = {name: [] for name in rows}
    for label, options in setup.models.items():
        if SHAPES in rows:
            _, grid = find_projections(options.weights().empty)  # its config.json is enough
            rows[SHAPES].append(tables.table1(label, grid))
        wanted = [name for name in rows if label == setup.lead or name not in ALONE]
        if {*wanted} != {SHAPES}:
            with open_measured(setup, label, folder, progress, allowed) as model:
                for name in wanted:
                    if name != SHAPES:
                        model.notes.clear()
                        rows[name] += RECIPES[name](model)
                        notes[name] += dict.fromkeys(model.notes)
    return [finish(setup, name, rows[name], notes[name]) for name in rows]


def finish(setup: Setup, name: str, rows: list[tables.Row], notes: list[str]) -> Exhibit:
    """Put rows and notes together, and draw the figure."""
    about = [f"On {setup.lead} only."] if name in ALONE else []
    about += [NOTES[name]] if name in NOTES else []
    about += [UNIVERSAL] if name not in ("table1", "table5", "table7") else []
    few = [f"Scores are on the first {setup.limit} examples of every task."]
    named = " ".join(str(cell) for row in rows for cell in row.values())
    unlike = [
        f"{each.label} is not quite the paper's: {each.differs}"
        for each in setup.benchmarks
        if each.differs and "(paper " in named and each.label in named
    ]
    few = few if setup.limit is not None and name not in SCORELESS else []
    title = str(RECIPES[name].__doc__).partition("\n")[0].rstrip(".")
    if numbered := re.fullmatch(r"(table|fig)(\d)", name):
        kind = {"table": "Table", "fig": "Figure"}[numbered[1]]
        title = f"{kind} {numbered[2]}: {title}"
    exhibit = Exhibit.of(name, title, rows, [*about, *notes, *few, *unlike])
    if name in DRAWN and rows:
        return replace(exhibit, chart=DRAWN[name](exhibit.frame))
    return exhibit


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
