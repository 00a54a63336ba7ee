"""The first command to try: needs no model, no data and no network."""

from pathlib import Path
from typing import Annotated

import typer

from caploc import console, tables
from caploc.cli.options import Json, Quiet, command_line

WHOLE, QUICK = "demo.toml", "quick.toml"  # study files beside the code that runs them


def demo(
    quick: Annotated[
        bool, typer.Option("--quick", help="Two capabilities on few examples: under a minute.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder; resumes what lies there (runs/demo or runs/demo-quick)."),
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Localize nine capabilities of the model inside the package, and compare methods on one.

    Every capability gets a folder with a report; `compare.html` holds them against each other. The
    same command continues a run that was stopped. On two CPU cores it takes about four minutes.

    Examples:
        caploc demo
        caploc demo --quick --out runs/first

    Writes:
        NAME/report.html: a report for each capability and method
        compare.html: all of them side by side
        rows.sqlite: every row, of all of them

    See also:
        locate, compare, ui
    """
    from caploc import studies
    from caploc.report.sentence import headline

    file = Path(studies.__file__).parent / (QUICK if quick else WHOLE)
    folder = out or Path("runs") / ("demo-quick" if quick else "demo")
    with console.progress(quiet or as_json) as progress:
        ran = studies.run_studies(
            studies.read_studies(file).studies, folder, progress, command=command_line()
        )
    told = [outcome.as_dict() for outcome in ran.outcomes]
    if as_json:
        console.say_json(told)
    else:
        console.show_table(*tables.studies_table(told))
    for outcome in ran.failed:
        console.complain(f"{outcome.name}: {outcome.failure}")
    if not as_json:
        for outcome in ran.outcomes[:1]:
            if outcome.result:
                console.say(headline(outcome.result))
                console.say(f"Report: {folder / outcome.name / 'report.html'}")
        if ran.report:
            console.say(f"All side by side: {ran.report}")
    if ran.failed:
        raise typer.Exit(1)
