"""Score chosen heads, and ask more of a finished run."""

from pathlib import Path
from typing import Annotated

import typer

from caploc import console, tables
from caploc.cli.options import (
    AllowCode,
    Batch,
    Chat,
    Data,
    Device,
    Dtype,
    Fewshot,
    Json,
    Limit,
    Model,
    Projections,
    Quiet,
    Revision,
    Trust,
    command_line,
    parse_families,
    tell_of_walls,
)
from caploc.naming import default_folder, placed


def evaluate(
    model: Model,
    tasks: Annotated[str, typer.Option(help="Tasks, separated by commas.")],
    heads: Annotated[str, typer.Option(help="Heads to knock out, such as L0H5,L1H3.")] = "",
    metric: Annotated[str | None, typer.Option(help="The task's metric[,filter] to use.")] = None,
    outcome: Annotated[str, typer.Option(help="metric, or logprob of the gold answer.")] = "metric",
    fewshot: Fewshot = None,
    chat_template: Chat = False,
    data: Data = None,
    limit: Limit = None,
    allow_code: AllowCode = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    revision: Revision = None,
    trust_remote_code: Trust = False,
    projections: Projections = None,
    batch_size: Batch = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; resumes what lies there.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Score tasks with no head and with the given heads knocked out.

    Example: caploc evaluate demo --heads L0H5,L0H14 --tasks demo/addition,demo/sentences
    """
    from caploc.evaluation import Evaluation
    from caploc.evaluation import evaluate as run
    from caploc.heads import Head
    from caploc.tasks.catalog import TaskOptions, parse_data
    from caploc.workbench import ModelOptions

    evaluation = Evaluation(
        ModelOptions(
            placed(model), device, dtype, revision, trust_remote_code, projections, batch_size
        ),
        tuple(Head.parse_all(heads)),
        tuple(placed(name.strip()) for name in tasks.split(",") if name.strip()),
        TaskOptions(metric, outcome, fewshot, chat_template, parse_data(data or []), allow_code),
        limit,
    )
    folder = out or default_folder(model, "evaluate", heads or "intact", *evaluation.tasks)
    tell_of_walls(allow_code)
    with console.progress(quiet or as_json) as progress:
        result = run(evaluation, folder, progress, command=command_line())
    if as_json:
        console.say_json(result)
        return
    console.show_table(*tables.evaluation_table(result))
    console.say(f"Written: {folder / 'evaluation.json'}")


def curve(
    folder: Annotated[Path, typer.Argument(help="A finished run's folder.")],
    most: Annotated[int, typer.Option(help="Heads to knock out at most.")] = 10,
    limit: Limit = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Score a run's tasks with 0, 1, 2, ... of its most needed heads knocked out.

    Example: caploc curve runs/addition --most 10
    """
    from caploc.evaluation import curve as run

    with console.progress(quiet or as_json) as progress:
        drawn = run(folder, most, limit, progress)
    if as_json:
        console.say_json(drawn)
        return
    console.show_table(*tables.curve_table(drawn))
    console.say(f"Figure: {folder / 'figures' / 'curve.png'}")


def interactions(
    folder: Annotated[Path, typer.Argument(help="A finished run's folder.")],
    most: Annotated[int, typer.Option(help="Chosen heads to look at, at most.")] = 5,
    examples: Annotated[int, typer.Option(help="Examples that every contrast is on.")] = 100,
    budget: Annotated[
        int | None, typer.Option(help="Rows of the screen for backups (4 a head if absent).")
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Ask whether a run's heads stand in for each other, and which heads back them up.

    Example: caploc interactions runs/addition
    """
    from caploc.interactions import interactions as run

    with console.progress(quiet or as_json) as progress:
        told = run(folder, most, examples, budget, progress)
    if as_json:
        console.say_json(told)
        return
    console.show_table(*tables.interaction_table(told))
    console.say(told["limits"])
    console.say(f"Written: {folder / 'interactions.json'}")


def universal(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders of finished runs of one model, a task each.")
    ],
    family: Annotated[
        list[str] | None,
        typer.Option(help="NAME=TASK,TASK: tasks that count as one; repeat."),
    ] = None,
    examples: Annotated[int, typer.Option(help="Examples of each task to try heads on.")] = 100,
    out: Annotated[Path | None, typer.Option(help="Folder; resumes what lies there.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Find heads that many tasks need, and each run's heads without them.

    Example: caploc universal runs/demo/demo-addition runs/demo/demo-code runs/demo/demo-cursing
    """
    from caploc.finished import FinishedRun
    from caploc.universal import Trials
    from caploc.universal import universal as run

    families = parse_families(family or [])
    runs = [FinishedRun.read(folder) for folder in folders]
    where = out or default_folder("universal", *(folder.name for folder in folders))
    with console.progress(quiet or as_json) as progress:
        told = run(Trials(runs, families, examples), where, progress, command=command_line())
    if as_json:
        console.say_json(told)
        return
    if told["candidates"]:
        console.show_table(*tables.universal_table(told))
    else:
        console.say("No head is among the first of two runs, and none breaks a task: none to try.")
    console.show_table(*tables.own_table(told))
    console.say(f"Written: {where / 'universal.json'}")
