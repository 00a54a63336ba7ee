"""Look at runs, tasks and the machine; play with a model."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from secrets import token_urlsafe
from typing import Annotated, Any

from caploc import console
from caploc.cli import options
from caploc.cli.options import argument, option
from caploc.errors import BadOption, UserError
from caploc.naming import DEFAULT_MODEL, default_folder, is_folder, placed
from caploc.options import TaskOptions, build

Port = Annotated[int, option("Where to listen; 0 takes any free port.")]


def tasks(
    text: Annotated[
        str | None, argument("Show names that contain this; caploc's own if absent.")
    ] = None,
) -> None:
    """List tasks and groups: caploc's own, and lm-eval's.

    Examples:
        caploc tasks
        caploc tasks arithmetic

    See also:
        locate, evaluate
    """
    from caploc.tasks.catalog import harness_manager, own_names

    own = sorted(own_names())
    if text is not None:
        own = [name for name in (*own, *sorted(harness_manager().all_tasks)) if text in name]
    for name in own:
        console.say(name)
    if not own:
        console.say(f"No task's name contains {text!r}; a path to an lm-eval YAML works too.")


def doctor(as_json: options.Json = False) -> None:
    """Say what this machine can do.

    Examples:
        caploc doctor
        caploc doctor --json

    See also:
        models
    """
    from caploc.doctor import machine_facts

    facts = machine_facts()
    table = ["fact", "value"], [[name, str(value)] for name, value in facts.items()]
    options.OutputGroup(as_json=as_json).show(facts, table)


def rows(
    folder: Annotated[Path, argument("A run's folder, or one of several studies.")],
    to: Annotated[Path, option("File to write: rows.parquet, or rows.csv.")],
) -> None:
    """Write every row of a run into a table: Parquet, or CSV.

    Examples:
        caploc rows runs/addition --to rows.parquet
        caploc rows runs/demo --to rows.csv

    Writes:
        the file of --to: model, task, heads knocked out, example, outcome, answers, cost

    See also:
        locate, view
    """
    from caploc.rowfiles import write_rows

    console.say(f"{write_rows(folder, to):,} rows: {to}")


@options.takes_groups
def view(
    folders: Annotated[
        list[Path] | None,
        argument("Runs, or folders of runs; runs/ if absent, and the playground if that is."),
    ] = None,
    write: Annotated[
        bool,
        option("Write report.html and figures again, of several compare.html; serve nothing."),
    ] = False,
    markdown: Annotated[
        bool, option("Print what the runs found as Markdown to paste, and serve nothing.")
    ] = False,
    model: Annotated[str | None, option("A model to play with, no run needed.")] = None,
    task: Annotated[
        list[str] | None,
        option(f"A task that the playground draws examples from; {options.ONE_OR_MORE}."),
    ] = None,
    port: Port = 8750,
    out: Annotated[
        Path | None, option("Folder of compare.html.", callback=options.check_folder)
    ] = None,
    as_json: options.Json = False,
    *,
    asking: Annotated[
        options.Said,
        TaskOptions,
        options.Without(("metric", "outcome", "fewshot", "delimiter", "allow_code")),
    ],
    code: options.CodeGroup,
    loading: options.Loading,
) -> None:
    """Look at runs, or play with a model, in a page on this machine.

    One folder opens a page over all runs in it: live, every example, a playground of each. Several
    are written side by side into compare.html; no model is run.

    Examples:
        caploc view runs/demo
        caploc view runs/addition runs/code --out runs/compared
        caploc view runs/addition --write
        caploc view --model smollm2 --task words/past

    See also:
        chat, export
    """
    named = folders or ([Path("runs")] if is_folder(Path("runs")) else [])
    if write or markdown or len(named) > 1:
        options.check_runs(named)
    if markdown:
        print_cards(named)
    elif len(named) > 1:
        compare(named, out, as_json)
    elif write and named:
        from caploc.studies.running import rewrite_report

        console.say(f"Report: {rewrite_report(named[0])}")
    else:
        asked = build(TaskOptions, asking | {"allow_code": code.allow_code})
        alone = model or task or not named
        tasks = list(map(placed, options.split_names(task or [])))
        opened = partial(open_playground, placed(model or DEFAULT_MODEL), tasks, asked, loading)
        folder = named[0] if named else Path("runs")
        serve_pages(folder, opened if alone else None, loading, port, code)


def print_cards(folders: list[Path]) -> None:
    """Print the cards of finished runs as Markdown."""
    from caploc.contents import read_file
    from caploc.folder import RESULT, finished_in
    from caploc.report.card import write_markdown
    from caploc.result import Result
    from caploc.verdict import make_card

    for found in (each for folder in folders for each in finished_in(folder)):
        console.say(write_markdown(make_card(read_file(found / RESULT, Result))))


def compare(folders: list[Path], out: Path | None, as_json: bool) -> None:
    """Put runs side by side, print the table, and write the page."""
    from caploc import tables
    from caploc.comparison import compare as run

    names = ["-".join(folder.resolve().parts[-2:]).removeprefix("runs-") for folder in folders]
    where = out or default_folder("compare", *names)
    found = run(folders, where, command=options.command_line())
    page = f"Report: {where / 'compare.html'}"
    told = {"runs": [each.as_dict() for each in found]}
    options.OutputGroup(as_json=as_json).show(told, tables.comparison_table(found), page)


def serve_pages(
    folder: Path,
    opened: Callable[[], Any] | None,
    loading: options.Said,
    port: int,
    code: options.CodeGroup,
) -> None:
    """Serve a page over all runs below a folder, and the playground that `opened` loads, if any."""
    if opened is None and not is_folder(folder):
        raise UserError(
            f"There is no folder {str(folder)!r}; name one that holds runs, or make one with "
            "`caploc locate` or `caploc demo`."
        )
    try:
        from caploc.playground.app import ALONE, Playgrounds
        from caploc.playground.runs import RunIndex
        from caploc.playground.serving import address, listen, serve
        from caploc.playground.view import application
    except ModuleNotFoundError as error:
        raise UserError(
            f"Pages need {error.name}; install it with `pip install 'caploc[ui]'`."
        ) from None
    with listen(port) as listening:
        code.check()
        playgrounds = Playgrounds(
            RunIndex(folder),
            loading.get("device", "auto"),
            judges_code=code.allow_code,
            trust=loading.get("trust_remote_code", False),
            playground=opened() if opened else None,
        )
        token = token_urlsafe(16)
        path = f"/play/{ALONE}/" if opened else "/"
        console.say(f"View: {address(listening)}{path}?token={token} (Ctrl-C ends it)")
        try:
            serve(application(playgrounds, token), listening)
        except KeyboardInterrupt:
            console.say("View is closed.")


def open_playground(model: str, tasks: list[str], asked: TaskOptions, loading: options.Said) -> Any:
    """Load a model with tasks to draw from; raises UserError for a mistake before that."""
    from caploc.playground.playground import Playground
    from caploc.tasks.catalog import check_task_name

    if asked.data and not tasks:
        raise BadOption("--data is for a task that --task names; name it, or leave --data out.")
    asked.check_files()
    for name in tasks:
        check_task_name(name, replace(asked, allow_code=True))
    wanted = options.model_of(loading, model)
    wanted.check()
    options_of = dict.fromkeys(tasks, asked)
    return Playground(wanted, wanted.engine(), options_of, judges_code=asked.allow_code)
