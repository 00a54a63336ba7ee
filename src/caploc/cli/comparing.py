"""Hold finished runs against each other."""

from pathlib import Path
from typing import Annotated

import typer

from caploc import console, tables
from caploc.cli import completion
from caploc.cli.options import Json, command_line
from caploc.naming import default_folder


def compare(
    folders: Annotated[
        list[Path],
        typer.Argument(
            help="Folders of finished runs, or folders of such folders.",
            autocompletion=completion.runs,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the page and its files.",
            show_default="runs/compare- and the names of the folders",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Put tasks, models and methods of several runs side by side; no model is run.

    Examples:
        caploc compare runs/demo
        caploc compare runs/addition runs/code --out runs/compared

    Writes:
        compare.html: the page
        compare.json: what it rests on
        figures/: the same as PNG and PDF

    See also:
        report, universal
    """
    from caploc.comparison import compare as run

    names = ["-".join(folder.resolve().parts[-2:]).removeprefix("runs-") for folder in folders]
    where = out or default_folder("compare", *names)
    told = run(folders, where, command=command_line())
    if as_json:
        console.say_json(told)
        return
    console.show_table(*tables.comparison_table(told))
    console.say(f"Report: {where / 'compare.html'}")
