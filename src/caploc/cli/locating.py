"""Find heads, and print what was found."""

import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from caploc import console
from caploc.cli import options, search_options
from caploc.cli.options import option
from caploc.naming import DEFAULT_MODEL, default_folder, default_others, placed
from caploc.options import PATCH

if TYPE_CHECKING:
    from caploc.result import Result


@options.takes_groups
def locate(
    context: typer.Context,
    model: options.Model,
    task: options.Tasks,
    also: Annotated[
        list[str] | None, options.task_option("Another task to score before and after")
    ] = None,
    goal: Annotated[
        str,
        option(
            "heads: those that matter most alone; set: the one that breaks most; specific: "
            "one that also leaves the tasks of --spare alone.",
        ),
    ] = "heads",
    budget: Annotated[
        int | None,
        option(
            "Rows of the search with heads knocked out, at most (if absent 4 a head, and 100 for "
            "each of three times --top heads). Rows "
            "of the intact model and of the checks come on top, and are told beforehand."
        ),
    ] = None,
    out: options.Out = None,
    *,
    specific: search_options.SpecificGroup,
    search: search_options.SearchGroup,
    published: search_options.PublishedGroup,
    checks: search_options.CheckGroup,
    asking: options.TaskGroup,
    knockout: options.ModeGroup,
    code: options.CodeGroup,
    loading: options.ModelGroup,
    quantize: options.Quantize = None,
    batch_size: options.Batch = None,
    engine: options.EngineName = "packed",
    workers: options.WorkerGroup,
    output: options.OutputGroup,
    track: Annotated[
        str | None,
        option(
            "Log the run to this experiment of MLflow.",
            rich_help_panel="Output",
        ),
    ] = None,
) -> None:
    """Find the heads that a task depends on, and check the finding.

    The same command continues a run that was stopped.

    Examples:
        caploc locate smollm2 --task words/past --out runs/past
        caploc locate meta-llama/Llama-3.2-1B-Instruct --task gsm8k --also hellaswag
        caploc locate smollm2 --task words/digits --goal specific --spare words/past
        caploc locate smollm2 --task a.yaml --mode patch --corrupted b.yaml --positions last

    Writes:
        run.json: the study, the command, the versions: enough to run it again
        rows.sqlite: every row: mask, example, outcome, answers, tokens, seconds
        result.json: the findings
        answers.json: answers before and after
        curve.json: scores with 0, 1, 2 ... of the named heads knocked out
        report.html: the report, one page that needs nothing else
        figures/: the map, the scores and the curve as SVG
        compare.html: of several tasks or methods, all side by side

    See also:
        curve, interactions, universal, export, ui, run
    """
    methods = options.split_names(search.method) or ["scan"]
    # an empty name is refused as a task
    tasks, others = options.split_names(task) or list(task), options.split_names(also)
    settings = published.settings(search, **specific.settings(goal), goal=goal, budget=budget)
    search_options.check_read(context, methods, goal)
    left_out = (one for one in search.exclude or () if not one.endswith(("universal", ".json")))
    options.check_heads(model, *left_out)
    if "scan" in methods and (grid := options.known_grid(model)):
        from caploc.search.settings import check_budget

        check_budget(settings, grid.size)
    folder = out or default_folder(model, *methods, *tasks)
    # what needs PyTorch comes after what a mistake is seen without
    from caploc.declaration import Study
    from caploc.studies import locate_all

    asked, mode = asking.options(code.allow_code), knockout.parse()
    loaded = loading.of(
        model, quantize=quantize, batch_size=batch_size, workers=workers.parse(), backend=engine
    )
    studies = [
        Study(
            model=loaded,
            task=name,
            method=way,
            settings=settings,
            examples=search.examples,
            options=asked,
            other_tasks=tuple(others or (() if mode.name == PATCH else default_others(name))),
            exclude=tuple(search.exclude or []),
            mode=mode,
            track=track,
            **specific.tasks(),
            **vars(checks),
        )
        for name in map(placed, tasks)
        for way in methods
    ]
    code.check()
    with output.progress() as progress:
        found = locate_all(studies, folder, progress, command=options.command_line())
    results = [outcome.result for outcome in found.outcomes if outcome.result]
    if output.as_json:
        written = [result.as_dict() for result in results]
        console.say_json(written[0] if len(written) == 1 else written)
        return
    show_results(results)
    console.say(f"Report: {found.report}")


def show_results(results: "list[Result]") -> None:
    """Print the card of each result, and where nothing was found what the search says of it."""
    from caploc.report.card import write_text
    from caploc.report.wording import inline

    for result in results:
        console.say(f"{write_text(result.card, width=console.width())}\n")
        for note in () if result.top else result.search.notes:
            console.say(f"{inline(note)}\n")


def ask_words() -> list[str]:
    """Ask for a model and a task; return the words of the command that finds its heads."""
    console.say("Which heads of which model does which task need? (`caploc --help`: all commands)")
    model = typer.prompt(
        "Model (Hugging Face id, folder, a name of `caploc models`)",
        default=DEFAULT_MODEL,
    )
    task = typer.prompt(
        "Task (a name of `caploc tasks`, or a YAML)",
        default="words/past",
    )
    words = ["locate", model, "--task", task]
    sys.argv[1:] = words  # what a run's files say of how it was asked for
    console.say(f"\n$ {shlex.join(['caploc', *words])}")
    return words
