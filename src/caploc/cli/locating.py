"""Find heads."""

from typing import Annotated

import typer

from caploc import console
from caploc.cli import completion, offering, options
from caploc.naming import default_folder, default_others, placed


@options.takes_groups
def locate(
    context: typer.Context,
    model: options.Model,
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
        str,
        typer.Option(
            help="heads that matter most alone, the set that breaks most, or a specific set: one "
            "that leaves the tasks of --spare alone."
        ),
    ] = "heads",
    opening: Annotated[
        str,
        typer.Option(
            help="How adaptive begins: likelihood of right answers, or masks of several heads."
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
    also: Annotated[
        list[str] | None,
        typer.Option(
            help="Another task to score before and after; repeat.", autocompletion=completion.tasks
        ),
    ] = None,
    spare: Annotated[
        list[str] | None,
        typer.Option(
            help="A task that --goal specific must leave alone; repeat.",
            autocompletion=completion.tasks,
        ),
    ] = None,
    twin: Annotated[
        list[str] | None,
        typer.Option(
            help="The task in other words, for --goal specific to break as well; repeat.",
            autocompletion=completion.tasks,
        ),
    ] = None,
    price: Annotated[
        float, typer.Option(help="The most that --goal specific may cost a spared task.")
    ] = 0.02,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            help="Heads never to knock out: L0H6,L3H1, a file of heads, or universal; repeat."
        ),
    ] = None,
    controls: Annotated[int, typer.Option(help="Random sets of heads to compare with.")] = 20,
    limit: options.Limit = None,
    disjoint: Annotated[
        bool, typer.Option("--disjoint", help="Score the task on examples no search saw only.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="No look for a more specific part of the set, no curve.")
    ] = False,
    track: Annotated[
        str | None, typer.Option(help="Tell mlflow, trackio or wandb[:PROJECT] of the run.")
    ] = None,
    quantize: options.Quantize = None,
    batch_size: options.Batch = None,
    out: options.Out = None,
    *,
    asking: options.TaskGroup,
    code: options.CodeGroup,
    loading: options.ModelGroup,
    workers: options.WorkerGroup,
    output: options.OutputGroup,
) -> None:
    """Find the heads that a task depends on, and check the finding.

    The same command continues a run that was stopped.

    Examples:
        caploc locate demo --task demo/addition --out runs/addition
        caploc locate meta-llama/Llama-3.2-1B-Instruct --task gsm8k --also hellaswag
        caploc locate demo --task demo/code --task demo/recall --goal set --budget 2000
        caploc locate smollm2 --task words/digits --goal specific --spare words/past

    Writes:
        run.json: the study, the command, the versions: enough to run it again
        rows.sqlite: every row: mask, example, outcome, answers, tokens, seconds
        result.json: the findings
        answers.json: answers before and after
        curve.json: scores with 0, 1, 2 ... of the named heads knocked out
        report.html: the report, one page that needs nothing else
        figures/: the same as PNG and PDF
        compare.html: of several tasks or methods, all side by side

    See also:
        curve, interactions, universal, export, ui, run
    """
    from caploc import tables
    from caploc.report.sentence import headline
    from caploc.search import Settings
    from caploc.studies import foresee, locate_all
    from caploc.study import Study

    methods = method or ["adaptive"]
    settings = Settings(
        masks=masks,
        rate=rate,
        top=top,
        seed=seed,
        goal=goal,
        price=price,
        opening=opening,
        budget=budget,
        recall=recall,
        estimator=estimator,
        mask_counts=options.numbers(mask_counts, int),
        rates=options.numbers(rates, float) if rates else None,
    )
    asked = asking.options(code.allow_code)
    loaded = loading.of(model, quantize=quantize, batch_size=batch_size, workers=workers.parse())
    studies = [
        Study(
            model=loaded,
            task=name,
            method=way,
            settings=settings,
            examples=examples,
            options=asked,
            other_tasks=tuple(also or default_others(name)),
            spare=tuple(map(placed, spare or [])),
            twins=tuple(map(placed, twin or [])),
            exclude=tuple(exclude or []),
            controls=controls,
            limit=limit,
            quick=quick,
            disjoint=disjoint,
            track=track,
        )
        for name in map(placed, task)
        for way in methods
    ]
    folder = out or default_folder(model, *methods, *task)
    code.check(map(placed, [*task, *(also or []), *(spare or []), *(twin or [])]))
    with output.progress() as progress:
        command = options.command_line()
        found = locate_all(studies, folder, progress, command=command, foresee=foresee)
    results = [outcome.result for outcome in found.outcomes if outcome.result]
    if output.as_json:
        written = [result.as_dict() for result in results]
        console.say_json(written[0] if len(written) == 1 else written)
        return
    console.show_table(*tables.locate_table(results))
    several = len(results) > 1
    for result in results:
        console.say(f"{result.task.name}: {headline(result)}" if several else headline(result))
        console.show_table(*tables.heads_table(result))
    for result in (each for each in results if each.validation.frontier):
        console.show_table(*tables.frontier_table(result))
    for result in results:
        for note in result.search.notes:
            console.say(f"{result.task.name}: {note}")
    console.say(f"Report: {found.report}")
    if len(results) == 1 and not output.quiet and console.is_interactive():
        offering.go_on(context, folder, results[0].top, found.report)
