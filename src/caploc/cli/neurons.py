"""Commands on feed-forward neurons (CNL)."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from caploc import console
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
    Model,
    Quiet,
    Revision,
    Trust,
    command_line,
    kinds_of,
    numbers,
    permit,
)
from caploc.naming import default_folder, placed

app = typer.Typer(
    name="neurons",
    help="Find, erase, tune and question the feed-forward neurons of a capability (CNL).",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Folder = Annotated[
    Path,
    typer.Argument(
        help="Folder of a finished `caploc neurons locate`.", autocompletion=completion.runs
    ),
]
Draws = Annotated[int, typer.Option(help="Draws of random neurons, 5 or more.")]
Kinds = Annotated[
    list[str] | None,
    typer.Option("--kind", help="NAME=TASK,TASK: tasks of one kind; repeat."),
]
Batches = Annotated[int, typer.Option("--steps", help="Batches to tune with.")]
Rates = Annotated[str, typer.Option(help="Learning rates to try for each arm.")]
GRID = "1e-4,3e-4,1e-3,3e-3,1e-2,3e-2,1e-1"
Judged = Annotated[int | None, typer.Option("--limit", help="Judging examples of each task.")]


def run_and_show(
    run: Callable[..., Any],
    *asked: object,
    page: Path,
    quiet: bool,
    as_json: bool,
    **options: object,
) -> None:
    """Run what a command asks for, watched, and print its tables, or its result as JSON."""
    with console.progress(quiet or as_json) as progress:
        result, shown = run(*asked, progress=progress, command=command_line(), **options)
    console.show_exhibits(result, shown, as_json, page)


@app.command()
def locate(
    model: Model,
    task: Annotated[
        list[str],
        typer.Option(help="Task or YAML; repeat for several.", autocompletion=completion.tasks),
    ],
    method: Annotated[
        str, typer.Option(help="gradient, integrated (the paper's), joint, activation, logit.")
    ] = "gradient",
    target: Annotated[
        str, typer.Option(help="logprob, logprob-sum, probability of the first token.")
    ] = "logprob",
    positions: Annotated[str, typer.Option(help="all, answer, last of the prompt.")] = "all",
    steps: Annotated[int, typer.Option(help="Points of an integral (S).")] = 19,
    rule: Annotated[str, typer.Option(help="Where they lie: midpoint, left, right.")] = "midpoint",
    sigma: Annotated[float, typer.Option(help="Standard deviations above the mean.")] = 6.0,
    share: Annotated[
        float | None, typer.Option(help="Choose this share of all neurons instead.")
    ] = None,
    votes: Annotated[
        float | None, typer.Option(help="Choose by the share of examples in which it passes.")
    ] = None,
    per_layer: Annotated[
        bool, typer.Option("--per-layer", help="Mean and deviation of each layer.")
    ] = False,
    absolute: Annotated[bool, typer.Option("--absolute", help="Drop the scores' sign.")] = False,
    normalised: Annotated[
        bool, typer.Option("--normalised", help="Divide each example's scores by their sum.")
    ] = False,
    examples: Annotated[int | None, typer.Option(help="Examples of each task.")] = 400,
    subsets: Annotated[int, typer.Option(help="Disjoint subsets of them.")] = 2,
    least: Annotated[float, typer.Option(help="Share of subsets that must choose a neuron.")] = 1.0,
    kind: Kinds = None,
    seed: Annotated[int, typer.Option(help="Draws the examples.")] = 0,
    fewshot: Fewshot = None,
    chat_template: Chat = False,
    data: Data = None,
    allow_code: AllowCode = False,
    isolation: IsolationName = "full",
    device: Device = "auto",
    dtype: Dtype = "auto",
    revision: Revision = None,
    gguf: Gguf = None,
    trust_remote_code: Trust = False,
    batch_size: Batch = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; resumes what lies there.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Find the neurons that a task's examples have in common.

    The same command continues a run that was stopped.

    Examples:
        caploc neurons locate demo --task demo/addition --task demo/elements --share 0.01
        caploc neurons locate demo --task demo/code --method integrated --out runs/neurons

    Writes:
        neurons.json: the neurons of each task, and how tasks overlap
        report.html: the page

    See also:
        neurons erase, neurons enhance, neurons overlap
    """
    from caploc.neurons.attribution import Attribution
    from caploc.neurons.finding import Rule
    from caploc.neurons.locating import locate as run
    from caploc.neurons.study import NeuronStudy
    from caploc.tasks.catalog import TaskOptions, parse_data
    from caploc.workbench import ModelOptions

    tasks = tuple(dict.fromkeys(map(placed, task)))
    study = NeuronStudy(
        model=ModelOptions(
            placed(model), device, dtype, revision, trust_remote_code, None, batch_size, gguf=gguf
        ),
        tasks=tasks,
        attribution=Attribution(method, target, positions, steps, rule),
        rule=Rule(sigma, share, votes, per_layer, absolute, normalised),
        options=TaskOptions(
            None, "metric", fewshot, chat_template, parse_data(data or []), allow_code
        ),
        examples=examples,
        subsets=subsets,
        least=least,
        seed=seed,
    )
    folder = out or default_folder("neurons", model, method, *task)
    permit(allow_code, trust_remote_code, tasks)
    kinds = kinds_of(kind)
    run_and_show(run, study, folder, page=folder, quiet=quiet, as_json=as_json, kinds=kinds)


@app.command()
def overlap(
    folders: Annotated[
        list[Path],
        typer.Argument(help="Folders of `caploc neurons locate`.", autocompletion=completion.runs),
    ],
    kind: Kinds = None,
    out: Annotated[Path | None, typer.Option(help="Folder; the first run's if absent.")] = None,
    as_json: Json = False,
) -> None:
    """Hold the neurons of several runs of one model against each other.

    Examples:
        caploc neurons overlap runs/math runs/language --kind math=gsm8k,metamath
        caploc neurons overlap runs/first runs/second --json

    Writes:
        overlap.json: neurons in common, beside chance
        report.html: the page, where --out is given

    See also:
        neurons locate, neurons cross
    """
    from caploc.neurons.locating import overlap as run

    place = out or folders[0]
    console.show_exhibits(
        *run(folders, kinds_of(kind), place, command=command_line()), as_json, None
    )


@app.command()
def erase(
    folder: Folder,
    mode: Annotated[str, typer.Option(help="zero, mean, resample, scale=FACTOR.")] = "zero",
    draws: Draws = 5,
    doses: Annotated[
        str, typer.Option(help="Shares of the located neurons to erase, highest first.")
    ] = "0.1,0.25,0.5,0.75,1",
    also: Annotated[
        list[str] | None,
        typer.Option(help="Another task to judge; repeat.", autocompletion=completion.tasks),
    ] = None,
    limit: Judged = None,
    seed: Annotated[int, typer.Option(help="Draws random neurons.")] = 0,
    allow_code: AllowCode = False,
    isolation: IsolationName = "full",
    trust_remote_code: Trust = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Erase located neurons, and others as many, and see what each task loses.

    Examples:
        caploc neurons erase runs/neurons
        caploc neurons erase runs/neurons --mode mean --draws 20

    Writes:
        erasure.json: what each task loses, by arm
        erasure/report.html: the page

    See also:
        neurons cross, neurons enhance
    """
    from caploc.neurons.cutting import Mode
    from caploc.neurons.erasure import Erasing
    from caploc.neurons.erasure import erase as run

    asked = Erasing(Mode.parse(mode), draws, numbers(doses, float), limit, seed)
    may = permit(allow_code, trust_remote_code, also or [])
    page = folder / "erasure"
    run_and_show(
        run, folder, asked, also or [], page=page, quiet=quiet, as_json=as_json, allowed=may
    )


@app.command()
def enhance(
    folder: Folder,
    task: Annotated[
        list[str] | None, typer.Option(help="Only this task of the run; repeat.")
    ] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(
            help="none, located, random-uniform, random-layer-matched, bottom, complement, full, "
            "lora; all if absent; repeat."
        ),
    ] = None,
    steps: Batches = 60,
    rates: Rates = GRID,
    trains: Annotated[
        str, typer.Option(help="all of a neuron's weights, or its output only.")
    ] = "all",
    noise: Annotated[
        float, typer.Option(help="Start from a model damaged by so much noise (0: as it is).")
    ] = 0.0,
    draws: Draws = 5,
    limit: Judged = 60,
    seed: Annotated[int, typer.Option(help="Fixes split, batches, draws and noise.")] = 0,
    allow_code: AllowCode = False,
    isolation: IsolationName = "full",
    trust_remote_code: Trust = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Tune located neurons alone, beside other arms, and see what gets better.

    Examples:
        caploc neurons enhance runs/neurons --task demo/rhyming --steps 40
        caploc neurons enhance runs/neurons --arm located --arm random-layer-matched

    Writes:
        enhancement.json: what each arm gains
        enhancement/report.html: the page

    See also:
        neurons keep, neurons cross
    """
    from caploc.lookup import pick
    from caploc.neurons.enhancing import ARMS, Enhancing, enhance_located
    from caploc.neurons.training import TuningRecipe
    from caploc.neurons.weights import TRAINS

    pick(dict.fromkeys(TRAINS), trains, "choice of --trains")
    recipe = TuningRecipe(steps=steps, rates=numbers(rates, float), trains=trains, seed=seed)  # type: ignore[arg-type]
    asked = Enhancing(recipe, tuple(arm or ARMS), draws, noise, limit, tuple(task or ()))
    may = permit(allow_code, trust_remote_code)
    page = folder / "enhancement"
    run_and_show(
        enhance_located, folder, asked, page=page, quiet=quiet, as_json=as_json, allowed=may
    )


@app.command()
def cross(
    folder: Folder,
    how: Annotated[list[str] | None, typer.Option(help="erase (if absent), tune; repeat.")] = None,
    kind: Kinds = None,
    mode: Annotated[str, typer.Option(help="zero, mean, resample, scale=FACTOR.")] = "zero",
    steps: Batches = 60,
    rates: Rates = GRID,
    noise: Annotated[float, typer.Option(help="Tune from a damaged model.")] = 0.0,
    draws: Draws = 5,
    limit: Judged = 60,
    seed: Annotated[int, typer.Option(help="Fixes all draws.")] = 0,
    allow_code: AllowCode = False,
    isolation: IsolationName = "full",
    trust_remote_code: Trust = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Erase or tune each task's neurons and judge every task: who shares effects?

    Examples:
        caploc neurons cross runs/neurons
        caploc neurons cross runs/neurons --how erase --kind sums=demo/addition,demo/sorting

    Writes:
        crossing.json: effects task by task, and their means
        crossing/report.html: the page

    See also:
        neurons erase, neurons enhance
    """
    from caploc.neurons.crossing import Crossing
    from caploc.neurons.crossing import cross as run
    from caploc.neurons.cutting import Mode
    from caploc.neurons.enhancing import Enhancing
    from caploc.neurons.erasure import Erasing
    from caploc.neurons.training import TuningRecipe

    recipe = TuningRecipe(steps=steps, rates=numbers(rates, float), seed=seed)
    asked = Crossing(
        tuple(how or ["erase"]),
        Erasing(Mode.parse(mode), draws, limit=limit, seed=seed),
        Enhancing(recipe, ("located", "random-layer-matched"), draws, noise, limit),
        kinds_of(kind),
    )
    may = permit(allow_code, trust_remote_code)
    page = folder / "crossing"
    run_and_show(run, folder, asked, page=page, quiet=quiet, as_json=as_json, allowed=may)


@app.command()
def keep(
    folder: Folder,
    task: Annotated[str, typer.Option(help="Task whose located neurons were tuned.")],
    to: Annotated[Path, typer.Option(help="File to write, such as addition.safetensors.")],
    allow_code: AllowCode = False,
    isolation: IsolationName = "full",
    trust_remote_code: Trust = False,
    quiet: Quiet = False,
) -> None:
    """Write the tuned neurons of a task as a small file: a delta for the model they belong to.

    Examples:
        caploc neurons keep runs/neurons --task demo/rhyming --to rhyming.safetensors
        caploc neurons keep runs/neurons --task demo/code --to code.safetensors --quiet

    Writes:
        the file of --to: the tuned weights of the located neurons, and which model they belong to

    See also:
        neurons merge, neurons enhance
    """
    from caploc.neurons.delta import keep as run

    may = permit(allow_code, trust_remote_code)
    with console.progress(quiet) as progress:
        console.say(f"Delta: {run(folder, task, to, progress, allowed=may)}")


@app.command()
def merge(
    model: Model,
    delta: Annotated[Path, typer.Option(help="File of `caploc neurons keep`.")],
    to: Annotated[Path, typer.Option(help="New folder for the checkpoint.")],
    revision: Revision = None,
    gguf: Gguf = None,
    trust_remote_code: Trust = False,
) -> None:
    """Put tuned neurons into their model and write a checkpoint that plain transformers load.

    Examples:
        caploc neurons merge demo --delta rhyming.safetensors --to runs/demo-rhyming
        caploc neurons merge someone/a-model --revision main --delta code.safetensors --to merged

    Writes:
        the folder of --to: a checkpoint that plain transformers load

    See also:
        neurons keep, evaluate
    """
    from caploc.neurons.delta import merge as run
    from caploc.workbench import ModelOptions

    options = ModelOptions(placed(model), "cpu", "auto", revision, trust_remote_code, gguf=gguf)
    console.say(f"Checkpoint: {run(options, delta, to)}")
