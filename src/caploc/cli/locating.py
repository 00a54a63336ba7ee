"""Find heads, and print what was found."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from caploc import console
from caploc.cli import options
from caploc.cli.options import Without, option
from caploc.components import HEADS
from caploc.declaration import Study, check_places, check_read, with_general_task
from caploc.folder import clean_if_empty
from caploc.naming import DEFAULT_MODEL, default_folder
from caploc.options import Settings, build
from caploc.pairs import is_pairs
from caploc.registries import METHODS

if TYPE_CHECKING:
    from caploc.result import Result


@options.takes_groups
def locate(
    model: options.Model,
    task: options.Tasks,
    out: options.Out = None,
    *,
    study: Annotated[options.Said, Study, Without(("model", "task", "method", "allow_code"))],
    method: Annotated[
        list[str] | None,
        option(
            f"{', '.join(METHODS)}; scan if absent; {options.ONE_OR_MORE}.",
            rich_help_panel=Settings.panel,
        ),
    ] = None,
    code: options.CodeGroup,
    workers: options.WorkerGroup,
    output: options.OutputGroup,
) -> None:
    """Find the heads that a task depends on, and check the finding.

    The same command continues a run that was stopped.

    Examples:
        caploc locate smollm2 --task words/past --out runs/past
        caploc locate smollm2 --task pairs.jsonl
        caploc locate meta-llama/Llama-3.2-1B-Instruct --task gsm8k --limit 200
        caploc locate smollm2 --task words/digits --goal specific --spare words/past

    Writes:
        report.html, figures/: the report
        result.json, run.json, rows.sqlite: what was found, asked and answered

    See also:
        evaluate, view, export, run
    """
    methods = options.split_names(method) or [Study.method]
    tasks = options.split_names(task) or list(task)  # an empty name is refused as a task
    said = study | {"model": model, "allow_code": code.allow_code}
    first = [build(Study, said | {"task": tasks[0], "method": way}) for way in methods][0]
    check_read(study, methods, first.settings.goal)
    others = (*first.other_tasks, *first.spare, *first.twins)
    options.check_tasks([*others])
    asked = workers.parse()
    check_places(replace(first.model, workers=asked), first.options, (*tasks, *others))
    names = (Path(name).stem if is_pairs(name) else name for name in tasks)
    kind = {first.components} - {HEADS}
    folder = out or default_folder(model, *methods, *kind, *names)
    # what needs PyTorch comes after what a mistake is seen without
    from caploc.studies import locate_all

    said |= {"workers": asked}
    beside = {"also": first.other_tasks, "spare": first.spare, "twin": first.twins}
    code.check()
    with clean_if_empty(folder), output.progress() as progress:
        said |= {name: options.with_pairs(given, folder) for name, given in beside.items() if given}
        studies = [
            build(Study, with_general_task(said | {"task": name, "method": way}))
            for name in options.with_pairs(tasks, folder)
            for way in methods
        ]
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
    from caploc.verdict import make_card
    from caploc.wording import inline

    for result in results:
        console.say(f"{write_text(make_card(result), width=console.width())}\n")
        for note in () if result.top else result.search.notes:
            console.say(f"{inline(note)}\n")


def ask_words() -> list[str]:
    """Ask for a model and a task; return the words of the command that finds its heads."""
    console.say("Which heads of which model does which task need? (`caploc --help`: all commands)")
    try:
        model = typer.prompt("Model (Hugging Face id, folder, or a name)", default=DEFAULT_MODEL)
        task = typer.prompt("Task (a name, a YAML, or a file of pairs)", default="words/past")
    except typer.Abort:  # Ctrl-D or Ctrl-C: nothing has begun
        raise typer.Exit from None
    words = ["locate", model, "--task", task]
    sys.argv[1:] = words  # what a run's files say of how it was asked for
    console.say(f"\n$ {shlex.join(['caploc', *words])}")
    return words
