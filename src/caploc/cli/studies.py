"""Many studies from one file; the demo; both papers again."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from caploc import console
from caploc.cli import options
from caploc.cli.models import DOWNLOADED, announce
from caploc.cli.options import argument, option
from caploc.errors import BadOption
from caploc.naming import DEFAULT_MODEL, is_fetched, placed

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
    """Fetch SmolLM2 (93 MB), find the heads that its capabilities depend on, and check them.

    Every capability gets a folder with a report; `compare.html` holds them against each other. The
    same command continues a run that was stopped. On two CPU cores it takes about six minutes.

    Examples:
        caploc demo
        caploc demo --out runs/first

    Writes:
        NAME/report.html: a report for each capability
        compare.html: all of them side by side
        rows.sqlite: every row, of all of them

    See also:
        fetch, locate, compare, ui
    """
    from caploc import studies
    from caploc.report.card import write_text

    fetch_default(output)
    ran = run_and_print(studies.read_studies(Path(studies.__file__).parent / DEMO), out, output)
    if not output.as_json:
        for outcome in ran.outcomes:
            if outcome.result:
                report = out / outcome.name / "report.html"
                console.say(f"{write_text(outcome.result.card, report, console.width())}\n")
        if ran.report:
            console.say(f"All side by side: {ran.report}")
    if ran.failed:
        raise typer.Exit(1)


def fetch_default(output: options.OutputGroup) -> None:
    """Fetch the model that the demo asks, if it is not here."""
    if is_fetched(DEFAULT_MODEL):
        return
    from caploc.models.fetching import fetch_model

    if not (output.quiet or output.as_json):
        announce(DEFAULT_MODEL)
    with output.progress(DOWNLOADED) as progress:
        fetch_model(DEFAULT_MODEL, progress)


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
        locate, compare
    """
    from caploc.studies import read_studies

    found = read_studies(file, may.allowed())
    folder = out or found.out
    ran = run_and_print(found, folder, output)
    if not output.as_json:
        console.say(f"Page: {ran.report}" if ran.report else f"No study was finished in {folder}.")
    if ran.failed:
        raise typer.Exit(1)


CNL = "cnl"


@options.takes_groups
def reproduce(
    items: Annotated[
        list[str],
        argument(
            "table1 to table9, fig1 to fig4, sharing, scale, failures, choice, rules; all; or cnl."
        ),
    ],
    preset: Annotated[
        str,
        option(
            "real, paper, or the path of a TOML file such as theirs.",
        ),
    ] = "real",
    model: Annotated[
        list[str] | None,
        option(
            "Only this model of the preset, or LABEL=NAME, or a new one; repeat. With cnl "
            "one, in place of the preset's."
        ),
    ] = None,
    only: Annotated[list[str] | None, option("Only this benchmark of the preset; repeat.")] = None,
    data: Annotated[
        list[str] | None,
        option("LABEL:SPLIT=FILE: read a split of a benchmark from a file; repeat."),
    ] = None,
    limit: options.Limit = None,
    search_again: Annotated[
        bool,
        option("Search again without universal heads, not only take them out of rankings."),
    ] = False,
    out: options.Out = None,
    *,
    code: options.CodeGroup,
    output: options.OutputGroup,
) -> None:
    """Fill the tables and figures of the heads paper, or with `cnl` those of the neurons paper.

    Examples:
        caploc reproduce all --model SmolLM2 --out runs/paper
        caploc reproduce table2 --preset paper
        caploc reproduce cnl --preset real --model gemma3-270m

    Writes:
        index.md: what there is
        table1.md, .csv, .tex: each table; figures as PNG and PDF

    See also:
        run, neurons locate
    """
    if CNL in items:
        given = {
            "--only": only,
            "--data": data,
            "--limit": limit,
            "--search-again": search_again or None,
            "--allow-code": code.allow_code or None,
        }
        if items != [CNL]:
            raise BadOption(f"cnl is reproduced as a whole and by itself; got {' '.join(items)}.")
        if named := [option for option, value in given.items() if value is not None]:
            raise BadOption(f"{named[0]} is not for cnl, whose preset says it; copy the preset.")
        reproduce_neurons(preset, model or [], out, output)
        return
    from caploc.reproduce import read_preset
    from caploc.reproduce import reproduce as run

    chosen = read_preset(preset).narrowed(only or [], model or [], limit).with_data(data or [])
    if search_again:
        chosen = chosen.model_copy(update={"search_again": True})
    code.check()
    folder = out or Path("runs") / f"reproduce-{chosen.name}"
    with output.progress() as progress:
        exhibits = run(
            chosen,
            items,
            folder,
            progress,
            command=options.command_line(),
            allow_code=code.allow_code,
        )
    show_first(exhibits, len(exhibits), folder, output)


def reproduce_neurons(
    preset: str, models: list[str], out: Path | None, output: options.OutputGroup
) -> None:
    """Make every experiment of the neurons paper, on the preset's model or the one named."""
    from caploc.reproduce.cnl import reproduce_cnl
    from caploc.reproduce.cnl_preset import read_cnl_preset

    if len(models) > 1:
        raise BadOption(f"cnl is reproduced on one model at a time; got {' '.join(models)}.")
    chosen, name = read_cnl_preset(preset), f"reproduce-cnl-{Path(preset).stem}"
    if models:
        chosen = chosen.model_copy(update={"model": placed(models[0])})
        name = f"{name}-{Path(models[0]).name}"
    folder = out or Path("runs") / name
    with output.progress() as progress:
        exhibits = reproduce_cnl(chosen, folder, progress, command=options.command_line())
    show_first(exhibits, 2, folder, output)  # checklist, verdicts; the others are in the index


def show_first(exhibits: list[Any], count: int, folder: Path, output: options.OutputGroup) -> None:
    """Print the first tables, and where all are written; or all of them as JSON."""
    every, written = [each.as_dict() for each in exhibits], f"Written: {folder / 'index.md'}"
    console.show_exhibits(every, exhibits[:count], output.as_json, written, notes=False)
