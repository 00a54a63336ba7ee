"""Many studies from one file; the demo."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from caploc import console
from caploc.cli import options
from caploc.cli.models import fetch_one
from caploc.cli.options import argument, option
from caploc.naming import DEFAULT_MODEL, is_fetched

DEMO = "demo.toml"  # a study file beside the code that runs it
if TYPE_CHECKING:
    from caploc.studies import Opened, Ran

File = Annotated[Path, argument("TOML file of models, tasks, methods and seeds.")]
Results = Annotated[Path | None, option("Folder, instead of the file's; resumes what lies there.")]


@options.takes_groups
def demo(
    out: Annotated[Path, option("Folder; resumes what lies there.")] = Path("runs/demo"),
    *,
    output: options.OutputGroup,
) -> None:
    """Fetch SmolLM2 (93 MB) and find the heads of its capabilities.

    Every capability gets a folder with a report; `compare.html` holds them against each other. The
    same command continues a run that was stopped. On two CPU cores it takes four to six minutes.

    Examples:
        caploc demo
        caploc demo --out runs/first

    Writes:
        NAME/report.html: a report for each capability
        compare.html: all of them side by side
        rows.sqlite: every row, of all of them

    See also:
        models, locate, view
    """
    from caploc import studies
    from caploc.report.card import write_text
    from caploc.verdict import make_card

    if not is_fetched(DEFAULT_MODEL):
        fetch_one(DEFAULT_MODEL, output.quiet or output.as_json)
    ran = run_and_print(studies.read_studies(Path(studies.__file__).parent / DEMO), out, output)
    if not output.as_json:
        for outcome in ran.outcomes:
            if outcome.result:
                report = out / outcome.name / "report.html"
                console.say(f"{write_text(make_card(outcome.result), report, console.width())}\n")
        if ran.report:
            console.say(f"All side by side: {ran.report}")
    if ran.failed:
        raise typer.Exit(1)


def run_and_print(found: "Opened", folder: Path, output: options.OutputGroup) -> "Ran":
    """Run the studies of a file, and print what became of each."""
    from caploc import tables
    from caploc.studies import run_studies

    with output.progress() as progress:
        ran = run_studies(found.studies, folder, progress, command=options.command_line())
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
    """Find heads for every model, task, method and seed of a file.

    Rows that several studies need are measured once. The same command continues; finished studies
    are not done again. One that fails does not stop the others, and the command then ends with 1.

    Examples:
        caploc run studies.toml --out runs/studies
        caploc run studies.toml --workers 2 --quiet

    Writes:
        NAME/: a run folder for each study, as `caploc locate` leaves it
        compare.html: all finished ones side by side
        rows.sqlite: every row; what several studies need is there once

    See also:
        locate, view
    """
    from caploc.studies import read_studies

    found = read_studies(file, may.allowed(), out)
    folder = found.out
    ran = run_and_print(found, folder, output)
    if not output.as_json:
        console.say(f"Page: {ran.report}" if ran.report else f"No study was finished in {folder}.")
    if ran.failed:
        raise typer.Exit(1)
