"""Many studies from one file: run them, or say what they will take."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from caploc import console, tables
from caploc.cli.options import (
    AllowCode,
    IsolationName,
    Json,
    Quiet,
    RayAddress,
    Trust,
    WorkerCpus,
    WorkerGpus,
    Workers,
    check_isolation,
    command_line,
)
from caploc.errors import BadOption

if TYPE_CHECKING:
    from caploc.studies import Opened

File = Annotated[Path, typer.Argument(help="TOML file of models, tasks, methods and seeds.")]
Out = Annotated[
    Path | None, typer.Option(help="Folder, instead of the file's; resumes what lies there.")
]


def open_studies(
    file: Path,
    *,
    code: bool,
    remote_code: bool,
    workers: tuple[Any, ...] = (None, None, None, None),
) -> "Opened":
    """The file's studies, checked."""
    from caploc.studies import Allowed, read_studies
    from caploc.workers.ray_backend import Workers as Asked

    return read_studies(file, Allowed(code, remote_code, Asked.parse(*workers)))


def run(
    file: File,
    out: Out = None,
    allow_code: AllowCode = False,
    isolation: IsolationName = "full",
    trust_remote_code: Trust = False,
    workers: Workers = None,
    ray_address: RayAddress = None,
    gpus_per_worker: WorkerGpus = None,
    cpus_per_worker: WorkerCpus = None,
    quiet: Quiet = False,
    as_json: Json = False,
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
    from caploc.studies import run_studies

    asked = workers, ray_address, gpus_per_worker, cpus_per_worker
    found = open_studies(file, code=allow_code, remote_code=trust_remote_code, workers=asked)
    folder = out or found.out
    check_isolation(allow_code)
    with console.progress(quiet or as_json) as progress:
        ran = run_studies(found.studies, folder, progress, command=command_line())
    if as_json:
        console.say_json([outcome.as_dict() for outcome in ran.outcomes])
    else:
        console.show_table(*tables.studies_table(ran.outcomes))
        for outcome in ran.failed:
            console.complain(f"{outcome.name}: {outcome.failure}")
        console.say(f"Page: {ran.report}" if ran.report else f"No study was finished in {folder}.")
    if ran.failed:
        raise typer.Exit(1)


def plan(
    file: File,
    out: Out = None,
    calibration: Annotated[
        bool,
        typer.Option(help="Load the models and measure some rows, to tell tokens, memory, time."),
    ] = True,
    seconds: Annotated[
        float, typer.Option(help="Measure so long, for each task of a study.")
    ] = 4.0,
    allow_code: AllowCode = False,
    isolation: IsolationName = "full",
    trust_remote_code: Trust = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Say how many rows, tokens, bytes and seconds the studies of a file will take, at most.

    Rows that lie in the folder of the results are not counted again. Nothing is written.

    Examples:
        caploc plan studies.toml
        caploc plan studies.toml --no-calibration --json

    See also:
        run
    """
    from caploc.studies import dry_run

    if not seconds > 0:
        raise BadOption(f"--seconds must lie above 0; got {seconds:g}.")
    found = open_studies(file, code=allow_code, remote_code=trust_remote_code)
    check_isolation(allow_code)
    with console.progress(quiet or as_json) as progress:
        expected = dry_run(
            found.studies, out or found.out, progress, seconds=seconds if calibration else None
        ).as_dict()
    if as_json:
        console.say_json(expected)
        return
    console.show_table(*tables.study_plan_table(expected))
    for study in expected["studies"]:
        if study["failure"]:
            console.complain(f"{study['study']}: {study['failure']}")
