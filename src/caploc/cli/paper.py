"""The heads paper's tables and figures."""

from pathlib import Path
from typing import Annotated

import typer

from caploc import console, tables
from caploc.cli.options import AllowCode, Json, Quiet, command_line, tell_of_walls


def reproduce(
    items: Annotated[
        list[str],
        typer.Argument(
            help="table1 to table9, fig1 to fig4, sharing, scale, failures, choice; or all."
        ),
    ],
    preset: Annotated[
        str, typer.Option(help="demo, paper, or the path of a TOML file such as theirs.")
    ] = "demo",
    model: Annotated[
        list[str] | None,
        typer.Option(help="Only this model of the preset, or LABEL=NAME, or a new one; repeat."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Only this benchmark of the preset; repeat.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="Score on the first N examples of each task only.")
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Print what it takes, and stop.")] = False,
    allow_code: AllowCode = False,
    out: Annotated[Path | None, typer.Option(help="Folder; resumes what lies there.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Fill the tables and figures of the heads paper, and analyses beside them.

    Example: caploc reproduce all --preset demo --out runs/paper
    """
    from caploc.reproduce import planned, read_preset
    from caploc.reproduce import reproduce as run

    chosen = read_preset(preset).narrowed(only or [], model or [], limit)
    expected = [one.as_dict() for one in planned(chosen, items)]
    if plan and as_json:
        console.say_json(expected)
        return
    if not as_json:
        console.show_table(*tables.plan_table(expected))
    if plan:
        return
    tell_of_walls(allow_code)
    folder = out or Path("runs") / f"reproduce-{chosen.name}"
    with console.progress(quiet or as_json) as progress:
        exhibits = run(
            chosen, items, folder, progress, command=command_line(), allow_code=allow_code
        )
    if as_json:
        console.say_json([exhibit.as_dict() for exhibit in exhibits])
        return
    for exhibit in exhibits:
        rows = [list(map(str, row)) for row in exhibit.rows]
        console.show_table(list(exhibit.columns), rows, exhibit.title)
    console.say(f"Written: {folder / 'index.md'}")
