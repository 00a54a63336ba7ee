"""Commands on feed-forward neurons (CNL)."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from caploc import console
from caploc.cli import options
from caploc.cli.options import argument, option
from caploc.folder import check_new
from caploc.naming import default_folder, placed
from caploc.neurons.options import Enhancing
from caploc.options import ModelFields, TaskOptions, build, flags, parse_data, record

if TYPE_CHECKING:
    from caploc.neurons.report import Exhibit
    from caploc.workbench import Allowed

neurons = typer.Typer(
    name="neurons",
    help="Find, erase and tune feed-forward neurons (CNL).",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)

Folder = Annotated[Path, argument("Folder of a finished `caploc neurons locate`.")]
Draws = Annotated[int, option("Draws of random neurons, 5 or more; 19 for p = .05.")]
Kinds = Annotated[list[str] | None, option("NAME=TASK,TASK: tasks of one kind; repeat.", "--kind")]
Points = Annotated[int, option("Points of an integral (S).")]
Sigma = Annotated[float, option("Standard deviations above the mean.")]
Share = Annotated[float | None, option("Choose this share of all neurons instead.")]
OfRun = Annotated[
    list[str] | None, option(f"Only this task of the run; {options.ONE_OR_MORE}.", "--task")
]
Judged = Annotated[int | None, option("Examples of each task to judge on, at most.", "--limit")]
Seed = Annotated[int, option("Seed of everything that is drawn at random.")]


@record(frozen=True)
class AllowedGroup(options.CodeGroup):
    """What a finished run of neurons may be asked to do, which its folder alone cannot say."""

    trust_remote_code: Annotated[bool, flags(ModelFields)["trust_remote_code"].option] = False

    def allowed(self) -> "Allowed":
        """Read them, once it is clear that programs can be run as asked."""
        from caploc.workbench import Allowed

        self.check()
        return Allowed(self.allow_code, self.trust_remote_code)


def run_and_show(
    run: Callable[..., Any], *asked: object, page: Path, output: options.OutputGroup, **more: object
) -> None:
    """Run what a command asks for, watched, and print its tables, or its result as JSON."""
    with output.progress() as progress:
        result, shown = run(*asked, progress=progress, command=options.command_line(), **more)
    show(result, shown, page, output.as_json)


def show(result: Any, exhibits: "list[Exhibit]", page: Path, as_json: bool) -> None:
    """Print a result's tables with their notes, and where its page is; or the result as JSON."""
    if as_json:
        console.say_json(result)
        return
    for each in exhibits:
        console.show_table(each.columns, each.rows, each.title)
        for note in each.notes:
            console.say(note)
    console.say(f"Report: {page / 'report.html'}")


@neurons.command()
@options.takes_groups
def locate(
    model: options.Model,
    task: options.Tasks,
    method: Annotated[
        str,
        option(
            "gradient, integrated (the paper's), joint, activation, logit.",
        ),
    ] = "gradient",
    target: Annotated[
        str, option("logprob, logprob-sum, probability of the first token.")
    ] = "logprob",
    positions: Annotated[str, option("all, answer, last of the prompt.")] = "all",
    steps: Points = 19,
    rule: Annotated[str, option("Where these points lie: midpoint, left, right.")] = "midpoint",
    sigma: Sigma = 6.0,
    share: Share = None,
    votes: Annotated[
        float | None, option("Choose neurons that pass in this share of examples.")
    ] = None,
    per_layer: Annotated[
        bool, option("Take mean and deviation layer by layer.", "--per-layer")
    ] = False,
    absolute: Annotated[bool, option("Ignore the sign of scores.", "--absolute")] = False,
    normalised: Annotated[
        bool, option("Divide each example's scores by their sum.", "--normalised/--raw")
    ] = True,
    examples: Annotated[int | None, option("Examples of each task.")] = 400,
    subsets: Annotated[int, option("Disjoint subsets of them.")] = 5,
    least: Annotated[float, option("Share of subsets that must choose a neuron.")] = 0.6,
    judged: Annotated[
        int, option("Held-out examples that the neurons are erased on (0: none).")
    ] = 60,
    kind: Kinds = None,
    seed: Seed = 0,
    fewshot: options.Fewshot = None,
    chat_template: options.Chat = False,
    data: options.Data = None,
    batch_size: options.Batch = None,
    quantize: options.Quantize = None,
    out: options.Out = None,
    *,
    workers: options.ScoringGroup,
    code: options.CodeGroup,
    loading: options.Loading,
    output: options.OutputGroup,
) -> None:
    """Find the neurons that a task's examples have in common.

    The same command continues a run that was stopped.

    Examples:
        caploc neurons locate smollm2 --task words/past --task words/plural --share 0.01
        caploc neurons locate smollm2 --task words/capital --method integrated --out runs/neurons
        caploc neurons locate smollm2 --task words/capital --workers 2 --judged 0

    Writes:
        neurons.json: the neurons of each task, and how tasks overlap
        report.html: the page

    See also:
        neurons erase, neurons controls, neurons enhance, neurons overlap
    """
    from caploc.neurons.attribution import Attribution
    from caploc.neurons.locating import locate as run
    from caploc.neurons.study import NeuronStudy
    from caploc.stats.threshold import Rule

    tasks = tuple(dict.fromkeys(map(placed, options.split_names(task))))
    study = NeuronStudy(
        model=options.model_of(
            loading, model, batch_size=batch_size, quantize=quantize, workers=workers.parse()
        ),
        tasks=tasks,
        attribution=Attribution(method, target, positions, steps, rule),
        rule=Rule(sigma, share, votes, per_layer, absolute, normalised),
        options=TaskOptions(
            fewshot=fewshot,
            chat_template=chat_template,
            data=parse_data(data or []),
            allow_code=code.allow_code,
        ),
        examples=examples,
        subsets=subsets,
        least=least,
        seed=seed,
        judged=judged,
    )
    folder = out or default_folder("neurons", model, method, *task)
    code.check()
    run_and_show(run, study, folder, page=folder, output=output, kinds=options.kinds_of(kind))


@neurons.command()
def overlap(
    folders: Annotated[list[Path], argument("Folders of `caploc neurons locate`.")],
    kind: Kinds = None,
    out: Annotated[Path | None, option("Folder; the first run's if absent.")] = None,
    as_json: options.Json = False,
) -> None:
    """Hold the neurons of several runs of one model against each other.

    Examples:
        caploc neurons overlap runs/math runs/language --kind math=gsm8k,metamath
        caploc neurons overlap runs/first runs/second --json

    Writes:
        overlap.json: neurons in common, beside chance
        report.html: the page; below the first run, in overlap/, without --out

    See also:
        neurons locate, neurons erase
    """
    from caploc.neurons.locating import overlap as run

    found = run(folders, options.kinds_of(kind), out, command=options.command_line())
    show(*found, out or folders[0] / "overlap", as_json)


@neurons.command()
@options.takes_groups
def erase(
    folder: Folder,
    task: OfRun = None,
    neuron: Annotated[
        list[str] | None,
        option(f"Erase these, L3N217, not the located ones; {options.ONE_OR_MORE}.", "--neurons"),
    ] = None,
    mode: Annotated[str, option("zero or mean.")] = "zero",
    draws: Draws = 19,
    doses: Annotated[
        str, option("Shares of the located neurons to erase, highest first.")
    ] = "0.1,0.25,0.5,0.75,1",
    also: Annotated[
        list[str] | None,
        option(f"Another task to judge; {options.ONE_OR_MORE}."),
    ] = None,
    limit: Judged = None,
    seed: Seed = 0,
    *,
    may: AllowedGroup,
    output: options.OutputGroup,
) -> None:
    """Erase located neurons, and others as many, and see what each task loses.

    Examples:
        caploc neurons erase runs/neurons
        caploc neurons erase runs/neurons --task words/past --neurons L20N1134,L3N217

    Writes:
        erasure.json: what each task loses, by arm
        erasure/report.html: the page

    See also:
        neurons locate, neurons enhance
    """
    from caploc.neurons.erasure import Erasing
    from caploc.neurons.erasure import erase as run

    tasks, names = (tuple(options.split_names(texts)) for texts in (task, neuron))
    shares = options.numbers(doses, float)
    asked = Erasing(mode, draws, shares, limit, seed, tasks, names)
    others, page = options.split_names(also), folder / "erasure"
    allowed = may.allowed()
    run_and_show(run, folder, asked, others, page=page, output=output, allowed=allowed)


@neurons.command()
@options.takes_groups
def controls(
    folder: Folder,
    task: OfRun = None,
    method: Annotated[
        list[str] | None,
        option(
            "Another score: activation, logit, joint (all three if absent), gradient, "
            f"integrated; {options.ONE_OR_MORE}.",
        ),
    ] = None,
    plain: Annotated[
        str | None, option("A task of plain text, or a file with a text a line.")
    ] = None,
    sigmas: Annotated[str, option("Standard deviations to try.")] = "3,4,5,6,8",
    draws: Draws = 19,
    limit: Judged = 60,
    seed: Seed = 0,
    *,
    may: AllowedGroup,
    output: options.OutputGroup,
) -> None:
    """Hold located neurons against those of controls, and try other thresholds.

    Controls are neurons found with answers put to other questions, on plain text, and by other
    scores: as many of each.

    Examples:
        caploc neurons controls runs/neurons
        caploc neurons controls runs/neurons --plain words/copy --method activation

    Writes:
        controls.json: what they share with the task's own, and what erasing them costs
        controls/report.html: the page

    See also:
        neurons locate, neurons erase
    """
    from caploc.neurons.controls import OTHERS, Controlling, measure_controls

    others = tuple(options.split_names(method) or OTHERS)
    text = None if plain is None else placed(plain)
    levels, tasks = options.numbers(sigmas, float), tuple(options.split_names(task))
    asked = Controlling(others, text, levels, draws, limit, seed, tasks)
    allowed, page = may.allowed(), folder / "controls"
    run_and_show(measure_controls, folder, asked, page=page, output=output, allowed=allowed)


@neurons.command()
@options.takes_groups
def enhance(
    folder: Folder,
    save: Annotated[
        Path | None,
        option("New folder for a checkpoint of each task's tuned located neurons."),
    ] = None,
    *,
    tuning: Annotated[options.Said, Enhancing],
    may: AllowedGroup,
    output: options.OutputGroup,
) -> None:
    """Tune located neurons alone, beside other arms, and see what gets better.

    Examples:
        caploc neurons enhance runs/neurons --task words/past --steps 40
        caploc neurons enhance runs/neurons --arm located --arm random
        caploc neurons enhance runs/neurons --arm located --save runs/tuned

    Writes:
        enhancement.json: what each arm gains; each is kept as it ends
        enhancement/report.html: the page
        the folder of --save: below it a checkpoint a task, for stock transformers

    See also:
        neurons locate, neurons erase
    """
    if save is not None:
        check_new(save)
    asked = build(Enhancing, tuning)
    from caploc.neurons.enhancing import enhance_located

    page, more = folder / "enhancement", {"allowed": may.allowed(), "save": save}
    run_and_show(enhance_located, folder, asked, page=page, output=output, **more)
