"""Score chosen heads, and ask more of a finished run."""

from pathlib import Path
from typing import Annotated

import typer

from caploc import console, tables
from caploc.cli import completion
from caploc.cli.options import (
    AllowCode,
    Batch,
    Chat,
    Data,
    Device,
    Dtype,
    Fewshot,
    Gguf,
    IsolationName,
    Json,
    Limit,
    Model,
    Projections,
    Quantize,
    Quiet,
    RayAddress,
    Revision,
    Trust,
    WorkerCpus,
    WorkerGpus,
    Workers,
    allowed,
    check_isolation,
    command_line,
    parse_families,
    tell_of_code,
)
from caploc.naming import default_folder, placed


def evaluate(
    model: Model,
    tasks: Annotated[
        str,
        typer.Option(help="Tasks, separated by commas.", autocompletion=completion.listed_tasks),
    ],
    heads: Annotated[str, typer.Option(help="Heads to knock out, such as L0H5,L1H3.")] = "",
    metric: Annotated[str | None, typer.Option(help="The task's metric[,filter] to use.")] = None,
    outcome: Annotated[str, typer.Option(help="metric, or logprob of the gold answer.")] = "metric",
    fewshot: Fewshot = None,
    chat_template: Chat = False,
    data: Data = None,
    limit: Limit = None,
    allow_code: AllowCode = False,
    isolation: IsolationName = "full",
    device: Device = "auto",
    dtype: Dtype = "auto",
    quantize: Quantize = None,
    revision: Revision = None,
    gguf: Gguf = None,
    trust_remote_code: Trust = False,
    projections: Projections = None,
    batch_size: Batch = None,
    workers: Workers = None,
    ray_address: RayAddress = None,
    gpus_per_worker: WorkerGpus = None,
    cpus_per_worker: WorkerCpus = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; resumes what lies there.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Score tasks with no head and with the given heads knocked out.

    Examples:
        caploc evaluate demo --heads L0H5,L0H14 --tasks demo/addition,demo/sentences
        caploc evaluate meta-llama/Llama-3.2-1B-Instruct --tasks gsm8k,boolq --limit 100
        caploc evaluate demo --heads L0H10 --tasks demo/code --json --out runs/code

    Writes:
        evaluation.json: scores intact and knocked out, changes, what was lost
        rows.sqlite: every row

    See also:
        locate, curve, export
    """
    from caploc.evaluation import Evaluation
    from caploc.evaluation import evaluate as run
    from caploc.heads import Head
    from caploc.tasks.catalog import TaskOptions, parse_data
    from caploc.workbench import ModelOptions
    from caploc.workers.ray_backend import Workers as Asked

    evaluation = Evaluation(
        ModelOptions(
            name=placed(model),
            device=device,
            dtype=dtype,
            revision=revision,
            trust_remote_code=trust_remote_code,
            projections=projections,
            batch_size=batch_size,
            quantize=quantize,
            gguf=gguf,
            workers=Asked.parse(workers, ray_address, gpus_per_worker, cpus_per_worker),
        ),
        tuple(Head.parse_all(heads)),
        tuple(placed(name.strip()) for name in tasks.split(",") if name.strip()),
        TaskOptions(metric, outcome, fewshot, chat_template, parse_data(data or []), allow_code),
        limit,
    )
    folder = out or default_folder(model, "evaluate", heads or "intact", *evaluation.tasks)
    check_isolation(allow_code)
    tell_of_code([*evaluation.tasks])
    with console.progress(quiet or as_json) as progress:
        result = run(evaluation, folder, progress, command=command_line())
    if as_json:
        console.say_json(result.as_dict())
        return
    console.show_table(*tables.evaluation_table(result))
    console.say(f"Written: {folder / 'evaluation.json'}")


def curve(
    folder: Annotated[
        Path, typer.Argument(help="A finished run's folder.", autocompletion=completion.runs)
    ],
    most: Annotated[int, typer.Option(help="Heads to knock out at most.")] = 10,
    limit: Limit = None,
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
    """Score a run's tasks with 0, 1, 2, ... of its most needed heads knocked out.

    Examples:
        caploc curve runs/addition --most 10
        caploc curve runs/addition --limit 50 --json

    Writes:
        curve.json: scores of every task for each number of heads
        figures/, report.html: the run's, with the curve

    See also:
        report, interactions
    """
    from caploc.evaluation import curve as run

    asked = workers, ray_address, gpus_per_worker, cpus_per_worker
    may = allowed(allow_code, trust_remote_code, asked)
    check_isolation(allow_code)
    with console.progress(quiet or as_json) as progress:
        drawn = run(folder, most, limit, progress, may)
    if as_json:
        console.say_json(drawn.as_dict())
        return
    console.show_table(*tables.curve_rows(drawn))
    console.say(f"Figure: {folder / 'figures' / 'curve.png'}")


def interactions(
    folder: Annotated[
        Path, typer.Argument(help="A finished run's folder.", autocompletion=completion.runs)
    ],
    most: Annotated[int, typer.Option(help="Chosen heads to look at, at most.")] = 5,
    examples: Annotated[int, typer.Option(help="Examples that every contrast is on.")] = 100,
    budget: Annotated[
        int | None,
        typer.Option(
            help="Rows of the screen for backups, and again of that for rescuers (if absent, 4 a "
            "head, and 4 a head for each head that breaks the task alone)."
        ),
    ] = None,
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
    """Ask whether a run's heads stand in for each other, what backs them up, what rescues them.

    A head breaks the task alone, and removing it does nothing once a certain other head is gone
    too: that other head's absence rescues the answer.

    Examples:
        caploc interactions runs/addition
        caploc interactions runs/addition --most 3 --examples 200 --budget 800

    Writes:
        interactions.json: contrasts of pairs and sets, with intervals and q-values
        figures/, report.html: the run's, with what is beyond doubt of them

    See also:
        universal, curve
    """
    from caploc.interactions import interactions as run

    asked = workers, ray_address, gpus_per_worker, cpus_per_worker
    may = allowed(allow_code, trust_remote_code, asked)
    check_isolation(allow_code)
    with console.progress(quiet or as_json) as progress:
        told = run(folder, most, examples, budget, progress, may)
    if as_json:
        console.say_json(told)
        return
    console.show_table(*tables.interaction_table(told))
    for sentence in told["summary"]:
        console.say(sentence)
    console.say(told["limits"])
    console.say(f"Written: {folder / 'interactions.json'}")


def universal(
    folders: Annotated[
        list[Path],
        typer.Argument(
            help="Folders of finished runs of one model, a task each.",
            autocompletion=completion.runs,
        ),
    ],
    family: Annotated[
        list[str] | None,
        typer.Option(help="NAME=TASK,TASK: tasks that count as one; repeat."),
    ] = None,
    examples: Annotated[int, typer.Option(help="Examples of each task to try heads on.")] = 100,
    allow_code: AllowCode = False,
    isolation: IsolationName = "full",
    trust_remote_code: Trust = False,
    workers: Workers = None,
    ray_address: RayAddress = None,
    gpus_per_worker: WorkerGpus = None,
    cpus_per_worker: WorkerCpus = None,
    out: Annotated[Path | None, typer.Option(help="Folder; resumes what lies there.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Find heads that many tasks need, and each run's heads without them.

    Examples:
        caploc universal runs/demo/demo-addition-set runs/demo/demo-code-set
        caploc universal runs/gsm8k runs/mbpp runs/boolq --family sums=gsm8k,arithmetic

    Writes:
        universal.json: candidates, their cost on every task, each task's own heads
        rows.sqlite: every row

    See also:
        compare, locate
    """
    from caploc.finished import FinishedRun
    from caploc.universal import Trials
    from caploc.universal import find_universal as run

    families = parse_families(family or [])
    asked = workers, ray_address, gpus_per_worker, cpus_per_worker
    may = allowed(allow_code, trust_remote_code, asked)
    check_isolation(allow_code)
    runs = [FinishedRun.read(folder, may) for folder in folders]
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
