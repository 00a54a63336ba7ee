"""Many studies from one file: run them, or say what they will take; the demo is such a file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from caploc import console
from caploc.cli import options
from caploc.cli.models import DOWNLOADED, announce
from caploc.errors import BadOption, FetchFailed
from caploc.pretrained import is_fetched

if TYPE_CHECKING:
    from caploc.studies import Opened, Ran

MODEL = "smollm2"
# study files beside the code that runs them
REAL, TINY, QUICK = "smollm2.toml", "demo.toml", "quick.toml"
FOLDERS = {REAL: "demo", TINY: "demo-tiny", QUICK: "demo-quick"}

File = Annotated[Path, typer.Argument(help="TOML file of models, tasks, methods and seeds.")]
Results = Annotated[
    Path | None, typer.Option(help="Folder, instead of the file's; resumes what lies there.")
]


@options.takes_groups
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
    *,
    output: options.OutputGroup,
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

    name = QUICK if quick else TINY if tiny or not has_model(output) else REAL
    folder = out or Path("runs") / FOLDERS[name]
    ran = run_and_print(studies.read_studies(Path(studies.__file__).parent / name), folder, output)
    if not output.as_json:
        for outcome in ran.outcomes:
            if outcome.result:
                console.say(f"{outcome.name}: {headline(outcome.result)}")
                console.say(f"Report: {folder / outcome.name / 'report.html'}")
        if ran.report:
            console.say(f"All side by side: {ran.report}")
    if ran.failed:
        raise typer.Exit(1)


def has_model(output: options.OutputGroup) -> bool:
    """Fetch the demo's model if it is not here; say in a sentence why if it cannot be had."""
    if is_fetched(MODEL):
        return True
    from caploc.models.fetching import fetch_model

    if not (output.quiet or output.as_json):
        announce(MODEL)
    try:
        with output.progress(DOWNLOADED) as progress:
            fetch_model(MODEL, progress)
    except (FetchFailed, BadOption) as error:
        console.warn(f"{error} The demo goes on with the small model inside the package.")
        return False
    return True


def run_and_print(found: "Opened", folder: Path, output: options.OutputGroup) -> "Ran":
    """Run the studies of a file, and print what became of each."""
    from caploc import tables
    from caploc.studies import foresee, run_studies

    with output.progress() as progress:
        ran = run_studies(
            found.studies, folder, progress, command=options.command_line(), foresee=foresee
        )
    if output.as_json:
        console.say_json([outcome.as_dict() for outcome in ran.outcomes])
    else:
        console.show_table(*tables.studies_table(ran.outcomes))
    for outcome in ran.failed:
        console.complain(f"{outcome.name}: {outcome.failure}")
    return ran


@options.takes_groups
def run(
    file: File, out: Results = None, *, may: options.PermissionGroup, output: options.OutputGroup
) -> None:
    """Find heads for every model, task, method and seed of a file; shared rows are measured once.

    The same command continues; finished studies are not done again. One that fails does not stop
    the others, and the command then ends with 1.

    Examples:
        caploc run studies.toml --out runs/studies
        caploc run studies.toml --workers 2 --quiet

    Writes:
        NAME/: a run folder for each study, as `caploc locate` leaves it
        compare.html: all finished ones side by side
        rows.sqlite: every row; what several studies need is there once

    See also:
        plan, locate, compare
    """
    from caploc.studies import read_studies

    found = read_studies(file, may.allowed())
    folder = out or found.out
    ran = run_and_print(found, folder, output)
    if not output.as_json:
        console.say(f"Page: {ran.report}" if ran.report else f"No study was finished in {folder}.")
    if ran.failed:
        raise typer.Exit(1)


@options.takes_groups
def plan(
    file: File,
    out: Results = None,
    calibration: Annotated[
        bool,
        typer.Option(help="Load the models and measure some rows, to tell tokens, memory, time."),
    ] = True,
    seconds: Annotated[
        float, typer.Option(help="Measure so long, for each task of a study.")
    ] = 4.0,
    trust_remote_code: options.Trust = False,
    *,
    code: options.CodeGroup,
    output: options.OutputGroup,
) -> None:
    """Say how many rows, tokens, bytes and seconds the studies of a file will take, at most.

    Rows that lie in the folder of the results are not counted again. Nothing is written.

    Examples:
        caploc plan studies.toml
        caploc plan studies.toml --no-calibration --json

    See also:
        run
    """
    from caploc import tables
    from caploc.studies import Allowed, dry_run, read_studies

    if not seconds > 0:
        raise BadOption(f"--seconds must lie above 0; got {seconds:g}.")
    found = read_studies(file, Allowed(code.allow_code, trust_remote_code))
    code.check()
    with output.progress() as progress:
        expected = dry_run(
            found.studies, out or found.out, progress, seconds=seconds if calibration else None
        ).as_dict()
    output.show(expected, tables.study_plan_table(expected))
    for study in expected["studies"]:
        if study["failure"] and not output.as_json:
            console.complain(f"{study['study']}: {study['failure']}")
