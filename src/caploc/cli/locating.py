"""Find heads."""

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
    check_isolation,
    command_line,
    numbers,
    tell_of_code,
)
from caploc.naming import default_folder, default_others, placed


def locate(
    model: Model,
    task: Annotated[
        list[str],
        typer.Option(
            help="Task, group or YAML; repeat for several.", autocompletion=completion.tasks
        ),
    ],
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="adaptive (if absent), css, csb, css-search, csb-search, one-shot, greedy; "
            "repeat.",
            autocompletion=completion.methods,
        ),
    ] = None,
    masks: Annotated[int, typer.Option(help="Masks to draw (css, csb).")] = 100,
    rate: Annotated[float, typer.Option(help="Share of heads in a mask (css, csb).")] = 0.02,
    mask_counts: Annotated[
        str, typer.Option(help="Numbers of masks to try (css-search, csb-search).")
    ] = "100,200,300,400",
    rates: Annotated[
        str | None, typer.Option(help="Rates to try (css-search, csb-search); .01 to .1 if absent.")
    ] = None,
    examples: Annotated[
        int | None, typer.Option(help="Examples to find heads on; by method and task if absent.")
    ] = None,
    budget: Annotated[
        int | None, typer.Option(help="Rows to spend at most (16 a head if absent).")
    ] = None,
    goal: Annotated[
        str, typer.Option(help="heads that matter most alone, or the set that breaks most.")
    ] = "heads",
    opening: Annotated[
        str,
        typer.Option(
            help="How adaptive begins: likelihood of right answers, head by head, or masks of "
            "several heads (as where a task names no right answers)."
        ),
    ] = "likelihood",
    recall: Annotated[
        float, typer.Option(help="Expected recall of the top at which adaptive stops.")
    ] = 0.85,
    top: Annotated[int, typer.Option(help="Heads to name at most.")] = 5,
    estimator: Annotated[
        str | None,
        typer.Option(help="For css, csb, one-shot: lasso, lasso-cv, logistic, means, spike-slab."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Draws examples, masks and controls.")] = 0,
    outcome: Annotated[str, typer.Option(help="metric, or logprob of the gold answer.")] = "metric",
    metric: Annotated[str | None, typer.Option(help="The task's metric[,filter] to use.")] = None,
    fewshot: Fewshot = None,
    chat_template: Chat = False,
    data: Data = None,
    also: Annotated[
        list[str] | None,
        typer.Option(
            help="Another task to score before and after; repeat.", autocompletion=completion.tasks
        ),
    ] = None,
    controls: Annotated[int, typer.Option(help="Random sets of heads to compare with.")] = 20,
    limit: Limit = None,
    disjoint: Annotated[
        bool, typer.Option("--disjoint", help="Score the task on examples no search saw only.")
    ] = False,
    track: Annotated[
        str | None, typer.Option(help="Tell mlflow, trackio or wandb[:PROJECT] of the run.")
    ] = None,
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
    """Find the heads that a task depends on, and check the finding.

    The same command continues a run that was stopped.

    Examples:
        caploc locate demo --task demo/addition --out runs/addition
        caploc locate meta-llama/Llama-3.2-1B-Instruct --task gsm8k --also hellaswag
        caploc locate demo --task demo/code --task demo/recall --goal set --budget 2000

    Writes:
        run.json: the study, the command, the versions: enough to run it again
        rows.sqlite: every row: mask, example, outcome, answers, tokens, seconds
        result.json: the findings
        answers.json: answers before and after
        report.html: the report, one page that needs nothing else
        figures/: the same as PNG and PDF
        compare.html: of several tasks or methods, all side by side

    See also:
        curve, interactions, universal, export, ui, run
    """
    from caploc.search import Settings
    from caploc.study import Study
    from caploc.sweep import locate_all
    from caploc.tasks.catalog import TaskOptions, parse_data
    from caploc.workbench import ModelOptions
    from caploc.workers.ray_backend import Workers as Asked

    methods = method or ["adaptive"]
    options = TaskOptions(
        metric, outcome, fewshot, chat_template, parse_data(data or []), allow_code
    )
    loading = ModelOptions(
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
    )
    studies = [
        Study(
            model=loading,
            task=name,
            method=way,
            settings=Settings(
                masks=masks,
                rate=rate,
                top=top,
                seed=seed,
                goal=goal,
                opening=opening,
                budget=budget,
                recall=recall,
                estimator=estimator,
                mask_counts=numbers(mask_counts, int),
                rates=numbers(rates, float) if rates else None,
            ),
            examples=examples,
            options=options,
            other_tasks=tuple(also or default_others(name)),
            controls=controls,
            limit=limit,
            disjoint=disjoint,
            track=track,
        )
        for name in map(placed, task)
        for way in methods
    ]
    folder = out or default_folder(model, *methods, *task)
    check_isolation(allow_code)
    tell_of_code([*map(placed, [*task, *(also or [])])])
    with console.progress(quiet or as_json) as progress:
        found = locate_all(studies, folder, progress, command=command_line())
    results = [findings.result for findings in found.findings]
    if as_json:
        written = [result.as_dict() for result in results]
        console.say_json(written[0] if len(written) == 1 else written)
        return
    console.show_table(*tables.locate_table(results))
    for result in results:
        if result.top:
            console.show_table(*tables.members_table(result))
    for result in results:
        for note in result.search.notes:
            console.say(f"{result.task.name}: {note}")
    console.say(f"Report: {found.report}")
