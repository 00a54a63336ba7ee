"""Look at runs, tasks and the machine; play with a model."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from caploc import console
from caploc.cli import options
from caploc.cli.options import argument, option
from caploc.errors import UserError
from caploc.naming import DEFAULT_MODEL, default_folder, is_folder, placed
from caploc.options import TaskOptions, parse_data

Port = Annotated[int, option("Where to listen; 0 takes any free port.")]
Host = Annotated[str, option("Address to listen on.")]


def report(
    folder: Annotated[Path, options.runs_argument("A finished run's folder, or one of runs.")],
) -> None:
    """Write report and figures of a finished run again.

    Examples:
        caploc report runs/addition
        caploc report runs/demo

    Writes:
        report.html: the report
        figures/: the map, the scores and the curve as SVG
        compare.html: of a folder of runs, all side by side

    See also:
        compare, curve
    """
    from caploc.studies.running import rewrite_report

    console.say(f"Report: {rewrite_report(folder)}")


def compare(
    folders: Annotated[
        list[Path],
        options.runs_argument("Folders of finished runs, or folders of such folders."),
    ],
    out: Annotated[
        Path | None,
        option(
            "Folder of the page and its files.",
            show_default="runs/compare- and the names of the folders",
            callback=options.check_folder,
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Put several runs side by side; no model is run.

    Examples:
        caploc compare runs/demo
        caploc compare runs/addition runs/code --out runs/compared

    Writes:
        compare.html: the page
        compare.json: what it rests on

    See also:
        report, universal
    """
    from caploc import tables
    from caploc.comparison import compare as run

    names = ["-".join(folder.resolve().parts[-2:]).removeprefix("runs-") for folder in folders]
    where = out or default_folder("compare", *names)
    found = run(folders, where, command=options.command_line())
    report = f"Report: {where / 'compare.html'}"
    options.OutputGroup(as_json=as_json).show(found, tables.comparison_table(found), report)


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
    from caploc.naming import harness_tasks, own_tasks

    own = sorted(set(own_tasks()))
    found = own if text is None else [n for n in (*own, *sorted(harness_tasks())) if text in n]
    for name in found:
        console.say(name)
    if not found:
        console.say(f"No task's name contains {text!r}; a path to an lm-eval YAML works too.")


def doctor(
    folder: Annotated[Path | None, argument("A run folder to check.")] = None,
    as_json: options.Json = False,
) -> None:
    """Say what this machine can do, or whether a run is sound.

    Examples:
        caploc doctor
        caploc doctor runs/addition

    See also:
        models, rows
    """
    from caploc.doctor import examine_folder, machine_facts

    if folder is None:
        show_facts(machine_facts(), as_json)
        return
    found = examine_folder(folder)
    show_facts(found.facts(), as_json)
    if found.faults:
        raise typer.Exit(1)


def show_facts(facts: dict[str, Any], as_json: bool) -> None:
    """Show facts as a table, several values of one below each other, or as JSON."""
    pairs = []
    for name, value in facts.items():
        if isinstance(value, dict):
            value = [f"{inner}: {each}" for inner, each in value.items()]
        lines = value if isinstance(value, list) else [value]
        pairs += [["", str(line)] for line in lines or ["none"]]
        pairs[-max(len(lines), 1)][0] = name
    options.OutputGroup(as_json=as_json).show(facts, (["fact", "value"], pairs))


def rows(
    folder: Annotated[Path, argument("A run's folder, or one of several studies.")],
    to: Annotated[Path, option("File to write: rows.parquet, or rows.csv.")],
    quiet: options.Quiet = False,
) -> None:
    """Write every row of a run into a table: Parquet, or CSV.

    Examples:
        caploc rows runs/addition --to rows.parquet
        caploc rows runs/demo --to rows.csv --quiet

    Writes:
        the file of --to: model, task, heads knocked out, example, outcome, answers, cost

    See also:
        doctor, locate
    """
    from caploc.rowfiles import write_rows

    with console.progress(quiet) as progress:
        count = write_rows(folder, to, progress)
    console.say(f"{count:,} rows: {to}")


@options.takes_groups
def ui(
    folder: Annotated[
        Path | None, options.runs_argument("A finished run, or a folder of runs of one model.")
    ] = None,
    model: Annotated[
        str | None,
        option("Hugging Face id, local folder, or a name of `caploc models`; else the run's."),
    ] = None,
    task: Annotated[
        list[str] | None,
        option(f"A task to draw examples from; {options.ONE_OR_MORE}."),
    ] = None,
    port: Port = 8750,
    host: Host = "127.0.0.1",
    data: options.Data = None,
    chat_template: options.Chat = False,
    *,
    code: options.CodeGroup,
    loading: options.Loading,
) -> None:
    """Knock heads out by hand, in a page on this machine.

    Examples:
        caploc ui runs/addition
        caploc ui --model smollm2 --task words/past --port 0

    See also:
        locate, export
    """
    from caploc.playground.setting import make_setting, open_runs
    from caploc.workbench import Allowed

    with served():
        from caploc.playground.app import application
        from caploc.playground.playground import Playground
        from caploc.playground.serving import list_hosts, listen

    asked = TaskOptions(
        chat_template=chat_template, data=parse_data(data or []), allow_code=code.allow_code
    )
    named = None if model is None else placed(model)
    tasks = list(map(placed, options.split_names(task)))
    runs = (
        open_runs(folder, Allowed(True, loading.get("trust_remote_code", False))) if folder else ()
    )
    setting = make_setting(
        runs, named, options.model_of(loading, named or DEFAULT_MODEL), tasks, asked
    )
    setting.check()
    with listen(host, port) as listening:
        code.check()
        serve_page(
            "Playground", application(Playground(setting), list_hosts(host)), host, listening
        )


@options.takes_groups
def view(
    folder: Annotated[Path, argument("A folder of runs, or one run.")] = Path("runs"),
    port: Port = 8750,
    host: Host = "127.0.0.1",
    device: options.Device = "auto",
    trust_remote_code: options.Trust = False,
    markdown: Annotated[
        bool, option("Print what the runs found as Markdown to paste, and serve nothing.")
    ] = False,
    *,
    code: options.CodeGroup,
) -> None:
    """Look at runs in a page on this machine.

    All runs below a folder, live, every example, side by side. Models are loaded only if you open a
    run's playground there.

    Examples:
        caploc view
        caploc view runs/demo --port 0
        caploc view runs/addition --markdown

    See also:
        ui, report, compare
    """
    from caploc.contents import read_file
    from caploc.folder import RESULT, finished_in
    from caploc.report.card import write_markdown
    from caploc.result import Result

    if not is_folder(folder):
        raise UserError(
            f"There is no folder {str(folder)!r}; name one that holds runs, or make one with "
            "`caploc locate` or `caploc demo`."
        )
    if markdown:
        for found in finished_in(folder):
            console.say(write_markdown(read_file(found / RESULT, Result).card))
        return
    with served():
        from caploc.playground.serving import list_hosts, listen
        from caploc.playground.view import Playgrounds, View, view_application

    with listen(host, port) as listening:
        code.check()
        runs = View(folder)
        playgrounds = Playgrounds(
            runs.index, device, judges_code=code.allow_code, trust=trust_remote_code
        )
        site = view_application(runs, playgrounds, list_hosts(host))
        serve_page("View", site, host, listening)


@contextmanager
def served() -> Iterator[None]:
    """Say what to install where the web server is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise UserError(
            f"Pages need {error.name}; install it with `pip install 'caploc[ui]'`."
        ) from None


def serve_page(name: str, site: Any, host: str, listening: Any) -> None:
    """Say where the page is and who else reaches it, and serve it until Ctrl-C."""
    from caploc.playground.serving import address, describe_exposure, serve

    if warning := describe_exposure(host):
        console.warn(warning)
    console.say(f"{name}: {address(host, listening)} (Ctrl-C ends it)")
    try:
        serve(site, listening)
    except KeyboardInterrupt:
        console.say(f"{name} is closed.")
