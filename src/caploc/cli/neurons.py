"""Commands on feed-forward neurons (CNL)."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from caploc import console
from caploc.cli import options
from caploc.cli.options import Without, argument, option
from caploc.declaration import ModelOptions
from caploc.folder import check_new
from caploc.naming import default_folder
from caploc.neurons.options import Enhancing, Erasing, NeuronStudy
from caploc.options import build, flags, record
from caploc.pairs import is_pairs, name_task

if TYPE_CHECKING:
    from caploc.declaration import Allowed
    from caploc.neurons.report import Exhibit
    from caploc.neurons.result import NeuronFile

neurons = typer.Typer(
    name="neurons",
    help="Find, erase and tune feed-forward neurons (CNL).",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)

Folder = Annotated[Path, argument("Folder of a finished `caploc neurons locate`.")]
Kinds = Annotated[list[str] | None, option("NAME=TASK,TASK: tasks of one kind; repeat.", "--kind")]


@record(frozen=True)
class AllowedGroup(options.CodeGroup):
    """What a finished run of neurons may be asked to do, which its folder alone cannot say."""

    trust_remote_code: Annotated[bool, flags(ModelOptions)["trust_remote_code"].option] = False

    def allowed(self) -> "Allowed":
        """Read them, once it is clear that programs can be run as asked."""
        from caploc.declaration import Allowed

        self.check()
        return Allowed(self.allow_code, self.trust_remote_code)


def run_and_show(
    run: Callable[..., Any], *asked: object, page: Path, output: options.OutputGroup, **more: object
) -> None:
    """Run what a command asks for, watched, and print its tables, or its result as JSON."""
    with output.progress() as progress:
        result, shown = run(*asked, progress=progress, command=options.command_line(), **more)
    show(result, shown, page, output.as_json)


def show(result: "NeuronFile", exhibits: "list[Exhibit]", page: Path, as_json: bool) -> None:
    """Print a result's tables with their notes, and where its page is; or the result as JSON."""
    if as_json:
        console.say_json(result.as_dict())
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
    kind: Kinds = None,
    out: options.Out = None,
    *,
    study: Annotated[
        options.Said,
        NeuronStudy,
        Without(("model", "task", "engine", "metric", "outcome", "delimiter", "allow_code")),
    ],
    code: options.CodeGroup,
    output: options.OutputGroup,
) -> None:
    """Find the neurons that a task's examples have in common.

    The same command continues a run that was stopped.

    Examples:
        caploc neurons locate smollm2 --task words/past --task words/plural --share 0.01
        caploc neurons locate smollm2 --task words/capital --method integrated --out runs/neurons

    Writes:
        neurons.json: the neurons of each task, and how tasks overlap
        report.html: the page

    See also:
        neurons erase, neurons enhance, neurons overlap
    """
    from caploc.neurons.locating import locate as run

    tasks = list(dict.fromkeys(options.split_names(task)))
    options.check_named_tasks(tasks)
    said = study | {"model": model, "task": tasks, "allow_code": code.allow_code}
    method = build(NeuronStudy, said).attribution.method
    names = (Path(name).stem if is_pairs(name) else name for name in tasks)
    folder = out or default_folder("neurons", model, method, *names)
    code.check()
    asked = build(NeuronStudy, said | {"task": [name_task(name, folder) for name in tasks]})
    kinds = options.kinds_of(kind)
    run_and_show(run, asked, folder, page=folder, output=output, kinds=kinds)


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
    *,
    asked: Erasing,
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
    from caploc.neurons.erasure import erase as run

    allowed, page = may.allowed(), folder / "erasure"
    run_and_show(run, folder, asked, page=page, output=output, allowed=allowed)


@neurons.command()
@options.takes_groups
def enhance(
    folder: Folder,
    save: Annotated[
        Path | None,
        option("New folder for a checkpoint of each task's tuned located neurons."),
    ] = None,
    *,
    asked: Enhancing,
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
    from caploc.neurons.enhancing import enhance_located

    page, more = folder / "enhancement", {"allowed": may.allowed(), "save": save}
    run_and_show(enhance_located, folder, asked, page=page, output=output, **more)
    if save is not None and not output.as_json:
        console.say(f"Saved: {save}")
