"""The first command to try: a pretrained model, or the small one inside the package."""

from pathlib import Path
from typing import Annotated

import typer

from caploc import console, tables
from caploc.cli.models import DOWNLOADED, announce
from caploc.cli.options import Json, Quiet, command_line
from caploc.errors import BadOption, FetchFailed
from caploc.pretrained import is_fetched

MODEL = "smollm2"
# study files beside the code that runs them
REAL, TINY, QUICK = "smollm2.toml", "demo.toml", "quick.toml"
FOLDERS = {REAL: "demo", TINY: "demo-tiny", QUICK: "demo-quick"}


def demo(
    tiny: Annotated[
        bool,
        typer.Option(
            "--tiny", help="The 1.5 M-parameter model inside the package: nine capabilities."
        ),
    ] = False,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Two of its capabilities on few examples: under a minute."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder; resumes what lies there (runs/demo, -tiny or -quick)."),
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Fetch SmolLM2 (93 MB), find the heads that its capabilities depend on, and check them.

    Every capability gets a folder with a report; `compare.html` holds them against each other. The
    same command continues a run that was stopped. On two CPU cores it takes about six minutes.
    Where the package index cannot be reached, the small model inside the package is used.

    Examples:
        caploc demo
        caploc demo --tiny
        caploc demo --quick --out runs/first

    Writes:
        NAME/report.html: a report for each capability and method
        compare.html: all of them side by side
        rows.sqlite: every row, of all of them

    See also:
        fetch, locate, compare, ui
    """
    from caploc import studies
    from caploc.report.sentence import headline

    name = QUICK if quick else TINY if tiny or not has_model(quiet or as_json) else REAL
    file = Path(studies.__file__).parent / name
    folder = out or Path("runs") / FOLDERS[name]
    with console.progress(quiet or as_json) as progress:
        ran = studies.run_studies(
            studies.read_studies(file).studies, folder, progress, command=command_line()
        )
    if as_json:
        console.say_json([outcome.as_dict() for outcome in ran.outcomes])
    else:
        console.show_table(*tables.studies_table(ran.outcomes))
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


def has_model(quiet: bool) -> bool:
    """Fetch the demo's model if it is not here; say in a sentence why if it cannot be had."""
    if is_fetched(MODEL):
        return True
    from caploc.models.fetching import fetch_model

    if not quiet:
        announce(MODEL)
    try:
        with console.progress(quiet, DOWNLOADED) as progress:
            fetch_model(MODEL, progress)
    except (FetchFailed, BadOption) as error:
        console.warn(f"{error} The demo goes on with the small model inside the package.")
        return False
    return True
