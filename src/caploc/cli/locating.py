"""Find heads, and print what was found."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from caploc import console
from caploc.cli import options
from caploc.cli.options import Without
from caploc.components import HEADS
from caploc.declaration import Study, check_places, check_read, with_general_task
from caploc.naming import default_folder
from caploc.options import build
from caploc.pairs import is_pairs, name_task

if TYPE_CHECKING:
    from caploc.result import Result


@options.takes_groups
def locate(
    model: options.Model,
    task: options.LocatedTask,
    out: options.Out = None,
    *,
    asked: Annotated[options.Said, Study, Without(("model", "task", "allow_code"))],
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
    named = options.one_task(task)
    said = asked | {"model": model, "task": named, "allow_code": code.allow_code}
    first = build(Study, said)
    check_read(asked, first.method, first.settings.goal)
    others = (*first.other_tasks, *first.spare, *first.twins)
    options.check_named_tasks([named, *others])
    answering = workers.parse()
    check_places(replace(first.model, workers=answering), first.options)
    kind, name = {first.components} - {HEADS}, Path(named).stem if is_pairs(named) else named
    folder = out or default_folder(model, first.method, *kind, name)
    code.check()
    # what needs PyTorch comes after what a mistake is seen without
    from caploc.study import run_study

    with output.progress() as progress:
        tasks = {"also": first.other_tasks, "spare": first.spare, "twin": first.twins}
        said |= {
            each: [name_task(name, folder) for name in them] for each, them in tasks.items() if them
        }
        said["task"] = name_task(named, folder)
        wanted = build(Study, with_general_task(said | {"workers": answering}))
        found = run_study(wanted, folder, progress, command=options.command_line())
    if output.as_json:
        console.say_json(found.result.as_dict())
        return
    show_result(found.result)
    console.say(f"Report: {found.report}")


def show_result(result: "Result") -> None:
    """Print the card of a result, and where nothing was found what the search says of it."""
    from caploc.report.card import write_text
    from caploc.verdict import make_card
    from caploc.wording import inline

    console.say(f"{write_text(make_card(result), width=console.width())}\n")
    for note in () if result.top else result.search.notes:
        console.say(f"{inline(note)}\n")
