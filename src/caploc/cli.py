"""The command line: arguments to a study, run it, print the result. No logic of its own.

What needs PyTorch is imported inside the commands, so that `--help` and mistakes answer at once.
"""

import logging
import os
import shlex
import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer

from caploc import console, tables
from caploc.errors import CaplocError, Stopped, UserError

os.environ.setdefault("TQDM_DISABLE", "1")  # lm-eval and datasets draw bars of their own
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# GNU OpenMP's threads spin between two small matrices, and on a shared machine spin the others'
# time away: twice the rows a second beside another program, read when torch is first imported.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

app = typer.Typer(
    name="caploc",
    help="Find the few attention heads that a capability of a language model depends on.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Model = Annotated[str, typer.Argument(help="Hugging Face id, local folder, or `demo`.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")]
Dtype = Annotated[str, typer.Option(help="auto (the checkpoint's), float32, bfloat16, float16.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit on the Hub.")]
Trust = Annotated[bool, typer.Option("--trust-remote-code", help="Run code from the model's repo.")]
Projections = Annotated[
    str | None,
    typer.Option(help="Output projections by hand: 'model.layers.{layer}.self_attn.o_proj'."),
]
Batch = Annotated[int | None, typer.Option(help="Most rows in a batch; found by itself if absent.")]
Data = Annotated[
    list[str] | None,
    typer.Option(help="SPLIT=FILE: read a split from a file (jsonl, csv, parquet)."),
]
Fewshot = Annotated[
    int | None, typer.Option(help="Examples in the prompt; the task's own if absent.")
]
Chat = Annotated[bool, typer.Option("--chat-template", help="Use the model's chat template.")]
Limit = Annotated[int | None, typer.Option(help="Score on the first N examples only.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@app.command()
def locate(
    model: Model,
    task: Annotated[list[str], typer.Option(help="Task, group or YAML; repeat for several.")],
    method: Annotated[
        list[str] | None,
        typer.Option(help="adaptive (if absent), css, csb, one-shot, greedy; repeat to compare."),
    ] = None,
    masks: Annotated[int, typer.Option(help="Masks to draw (css, csb).")] = 100,
    rate: Annotated[float, typer.Option(help="Share of heads in a mask (css, csb).")] = 0.02,
    examples: Annotated[
        int | None, typer.Option(help="Examples to find heads on; by method and task if absent.")
    ] = None,
    budget: Annotated[
        int | None, typer.Option(help="Rows to spend at most (16 a head if absent).")
    ] = None,
    goal: Annotated[
        str, typer.Option(help="heads that matter most alone, or the set that breaks most.")
    ] = "heads",
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
        list[str] | None, typer.Option(help="Another task to score before and after; repeat.")
    ] = None,
    controls: Annotated[int, typer.Option(help="Random sets of heads to compare with.")] = 20,
    limit: Limit = None,
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
    """Find the heads that a task depends on, and check the finding.

    Example: caploc locate demo --task demo/addition --method one-shot --out runs/addition

    The same command continues a run that was stopped.
    """
    from caploc.search import Settings
    from caploc.study import Study
    from caploc.sweep import locate_all
    from caploc.tasks.catalog import TaskOptions, parse_data
    from caploc.workbench import ModelOptions

    methods = method or ["adaptive"]
    options = TaskOptions(metric, outcome, fewshot, chat_template, parse_data(data or []))
    loading = ModelOptions(
        placed(model), device, dtype, revision, trust_remote_code, projections, batch_size
    )
    studies = [
        Study(
            model=loading,
            task=name,
            method=way,
            settings=Settings(masks, rate, top, seed, goal, budget, recall, None, estimator),
            examples=examples,
            options=options,
            other_tasks=tuple(also or default_others(model, name)),
            controls=controls,
            limit=limit,
        )
        for name in map(placed, task)
        for way in methods
    ]
    folder = out or Path("runs") / slug(model, *methods, *task)
    with console.progress(quiet or as_json) as progress:
        found = locate_all(studies, folder, progress, command=command_line())
    if as_json:
        results = [findings.result for findings in found.findings]
        console.say_json(results[0] if len(results) == 1 else results)
        return
    console.show_table(*tables.locate_table([findings.result for findings in found.findings]))
    for findings in found.findings:
        for note in findings.result["search"]["notes"]:
            console.say(f"{findings.result['task']['name']}: {note}")
    console.say(f"Report: {found.report}")


@app.command()
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
    from caploc.heads import parse_heads
    from caploc.tasks.catalog import TaskOptions, parse_data
    from caploc.workbench import ModelOptions

    evaluation = Evaluation(
        ModelOptions(
            placed(model), device, dtype, revision, trust_remote_code, projections, batch_size
        ),
        tuple(parse_heads(heads)),
        tuple(placed(name.strip()) for name in tasks.split(",") if name.strip()),
        TaskOptions(metric, outcome, fewshot, chat_template, parse_data(data or [])),
        limit,
    )
    folder = out or Path("runs") / slug(model, "evaluate", heads or "intact", *evaluation.tasks)
    with console.progress(quiet or as_json) as progress:
        result = run(evaluation, folder, progress, command=command_line())
    if as_json:
        console.say_json(result)
        return
    rows = [
        [
            row["name"],
            console.with_error(row["intact"]),
            console.with_error(row["knocked_out"]),
            tables.changed(row["change"]),
            str(row["intact"]["examples"]),
        ]
        for row in result["tasks"]
    ]
    title = f"{model}, knocked out: {', '.join(result['heads']) or 'nothing'}"
    console.show_table(["task", "intact", "knocked out", "change", "examples"], rows, title)
    console.say(f"Written: {folder / 'evaluation.json'}")


@app.command()
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
    names = list(drawn["curves"])
    rows = [
        [head, *(console.figure(drawn["curves"][name][count]["score"]) for name in names)]
        for count, head in enumerate(["none", *drawn["heads"]])
    ]
    console.show_table(["knocked out, one more each line", *names], rows)
    console.say(f"Figure: {folder / 'figures' / 'curve.png'}")


@app.command()
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


@app.command()
def report(folder: Annotated[Path, typer.Argument(help="A finished run's folder.")]) -> None:
    """Write report.html and the figures of a finished run again.

    Example: caploc report runs/addition
    """
    from caploc.sweep import rewrite_report

    console.say(f"Report: {rewrite_report(folder)}")


@app.command()
def tasks(
    text: Annotated[str, typer.Argument(help="Show names that contain this.")] = "demo/",
) -> None:
    """List tasks and groups: the demo's, and every one that lm-eval registers.

    Example: caploc tasks arithmetic
    """
    from caploc.tasks.catalog import task_names

    found = [name for name in task_names() if text in name]
    for name in found:
        console.say(name)
    if not found:
        console.say(f"No task's name contains {text!r}; a path to an lm-eval YAML works too.")


@app.command()
def models(
    name: Annotated[
        str | None, typer.Argument(help="A model to look at; the demo if absent.")
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    revision: Revision = None,
    trust_remote_code: Trust = False,
    projections: Projections = None,
    as_json: Json = False,
) -> None:
    """Load a model, prove that its heads can be knocked out, and show its grid.

    Example: caploc models meta-llama/Llama-3.2-1B-Instruct
    """
    from caploc.doctor import model_facts
    from caploc.workbench import ModelOptions

    loading = ModelOptions(name or "demo", device, dtype, revision, trust_remote_code, projections)
    facts = model_facts(loading)
    if as_json:
        console.say_json(facts)
        return
    console.show_table(["model", facts["name"]], [[k, str(v)] for k, v in facts.items()])


@app.command()
def doctor(
    folder: Annotated[Path | None, typer.Argument(help="A run folder to check.")] = None,
    as_json: Json = False,
) -> None:
    """Say what this machine and installation can do, and whether a run folder is sound.

    Example: caploc doctor runs/addition
    """
    from caploc.doctor import folder_facts, machine_facts

    facts = machine_facts() if folder is None else folder_facts(folder)
    if as_json:
        console.say_json(facts)
        return
    console.show_table(["fact", "value"], [[k, str(v)] for k, v in facts.items()])


def default_others(model: str, task: str) -> list[str]:
    """The demo's general benchmark goes with the demo's tasks; others are named by the user."""
    general = "demo/sentences"
    return [general] if task.startswith("demo/") and task != general else []


def placed(name: str) -> str:
    """A model or task given as a path, as an absolute one: a run is continued from anywhere."""
    path = Path(name).expanduser()
    return str(path.absolute()) if path.is_dir() or path.is_file() else name


def slug(*parts: str) -> str:
    """A folder name from what a run is about."""
    text = "-".join(parts)
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in text).strip("-")[:80]


def command_line() -> str:
    """The command as it was typed."""
    return shlex.join(["caploc", *sys.argv[1:]])


def hush() -> None:
    """Keep the libraries' own remarks off the terminal."""
    warnings.filterwarnings("ignore")
    for name in ("lm_eval", "lm-eval", "transformers", "datasets", "evaluate", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger().setLevel(logging.ERROR)


def main() -> None:
    """Run a command; turn errors into a sentence and an exit code."""
    hush()
    try:
        app()
    except UserError as error:
        console.complain(str(error))
        sys.exit(2)
    except Stopped as error:
        console.complain(str(error))
        sys.exit(130)
    except CaplocError as error:
        console.complain(str(error))
        sys.exit(1)
    except OSError as error:  # a full disk while the report or a figure is written, say
        console.complain(
            f"A file could not be used ({error}); rows that were measured are kept. Free disk "
            "space or check the rights, then run the same command again."
        )
        sys.exit(1)
