"""Look at runs, tasks and the machine."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from caploc import console
from caploc.cli import completion
from caploc.cli.options import Json, Quiet
from caploc.errors import BadOption


def report(
    folder: Annotated[
        Path,
        typer.Argument(
            help="A finished run's folder, or one of runs.", autocompletion=completion.runs
        ),
    ],
) -> None:
    """Write report.html and the figures of a finished run again; of runs, compare.html too.

    Examples:
        caploc report runs/addition
        caploc report runs/demo

    Writes:
        report.html: the report
        figures/: the same as PNG and PDF
        compare.html: of a folder of runs, all side by side

    See also:
        compare, curve
    """
    from caploc.sweep import rewrite_report

    console.say(f"Report: {rewrite_report(folder)}")


def tasks(
    text: Annotated[
        str | None, typer.Argument(help="Show names that contain this; caploc's own if absent.")
    ] = None,
) -> None:
    """List tasks and groups: caploc's own, and every one that lm-eval registers.

    Examples:
        caploc tasks
        caploc tasks arithmetic

    See also:
        locate, evaluate
    """
    from caploc.tasks.registry import all_names, own_names

    found = own_names() if text is None else [name for name in all_names() if text in name]
    for name in found:
        console.say(name)
    if not found:
        console.say(f"No task's name contains {text!r}; a path to an lm-eval YAML works too.")


def doctor(
    folder: Annotated[
        Path | None, typer.Argument(help="A run folder to check.", autocompletion=completion.runs)
    ] = None,
    mend: Annotated[
        bool, typer.Option("--repair", help="Save every sound row of a damaged folder.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Say what this machine and installation can do, and whether a run folder is sound.

    Examples:
        caploc doctor
        caploc doctor runs/addition
        caploc doctor runs/addition --repair

    Writes:
        rows.sqlite: with --repair: the sound rows; the damaged file is kept beside it

    See also:
        models, rows
    """
    from caploc.doctor import examine_folder, machine_facts, repair

    if folder is None:
        if mend:
            raise BadOption("--repair mends a run's folder; name it: caploc doctor DIR --repair.")
        show_facts(machine_facts(), as_json)
        return
    found = examine_folder(folder)
    saved = repair(found) if mend else None
    if mend:
        found = examine_folder(folder)
    repaired = asdict(saved) | {"damaged": str(saved.damaged)} if saved else None
    facts = found.facts() | ({"repaired": repaired} if mend else {})
    show_facts(facts, as_json)
    if not found.sound:
        raise typer.Exit(1)


def show_facts(facts: dict[str, Any], as_json: bool) -> None:
    """Facts as a table, several values of one below each other, or as JSON."""
    if as_json:
        console.say_json(facts)
        return
    rows = [[name, *map(str, lines_of(value))] for name, value in facts.items()]
    pairs = [
        [name if place == 0 else "", line]
        for name, *lines in rows
        for place, line in enumerate(lines or ["none"])
    ]
    console.show_table(["fact", "value"], pairs)


def lines_of(value: Any) -> list[Any]:
    """What of a fact goes on a line of its own."""
    if isinstance(value, dict):
        return [f"{name}: {inner}" for name, inner in value.items()]
    return value if isinstance(value, list) else [value]


def rows(
    folder: Annotated[
        Path,
        typer.Argument(
            help="A run's folder, or one of several studies.", autocompletion=completion.runs
        ),
    ],
    to: Annotated[Path, typer.Option(help="File to write: rows.parquet, or rows.csv.")],
    quiet: Quiet = False,
) -> None:
    """Write every row of a run into a table for other tools: Parquet, or CSV.

    Examples:
        caploc rows runs/addition --to rows.parquet
        caploc rows runs/demo --to rows.csv --quiet

    Writes:
        the file of --to: model, task, heads knocked out, example, outcome, answers, cost

    See also:
        doctor, locate
    """
    from caploc.rowfiles import write_rows

    with console.progress(quiet) as progress:
        count = write_rows(folder, to, progress)
    console.say(f"{count:,} rows: {to}")
