"""Options that commands share, one by one and in groups, and what they mean."""

import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import MISSING, dataclass, is_dataclass
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import (
    Annotated,
    Any,
    ClassVar,
    get_args,
    get_type_hints,
)

import typer

from caploc import console
from caploc.declaration import Allowed, ModelOptions, Study
from caploc.errors import BadOption
from caploc.folder import RESULT, UNIVERSAL, check_named, check_out, finished_in, read_json
from caploc.naming import at_home, check_model_name, check_tasks, is_file
from caploc.options import Flag, Option, Workers, build, flag_of, flags, record
from caploc.pairs import identify, is_pairs, read_pairs
from caploc.progress import Progress

BUBBLEWRAP = "bubblewrap"


def option(help: str, *names: str, **more: Any) -> Any:
    """Return an option; `more` is as typer has it."""
    return typer.Option(*names, help=help, **more)


def argument(help: str, **more: Any) -> Any:
    """Return an argument; `more` is as typer has it."""
    return typer.Argument(help=help, **more)


def check_run(folder: Path) -> Path:
    """Refuse a folder without a finished run before anything is loaded; the argument itself."""
    if not is_file(folder / RESULT):
        read_json(folder / RESULT)  # says what is amiss
    return folder


def check_runs(given: list[Path] | Path | None) -> list[Path] | Path | None:
    """Refuse folders without a finished run in or right below them; the argument itself."""
    for folder in given if isinstance(given, list) else [given] if given else []:
        if not is_file(folder / UNIVERSAL):
            check_run(finished_in(folder)[0])
    return given


Model = Annotated[
    str,
    argument(
        flags(Study)["model"].option.help,
        callback=check_model_name,
    ),
]


RunWithHeads = Annotated[Path, argument("A finished run's folder.", callback=check_named)]
RunFolder = Annotated[Path, argument("A finished run's folder.", callback=check_run)]
HeadNames = Annotated[str | None, option("Heads by name, such as L0H5,L1H3, instead of the run's.")]
ONE_OR_MORE = "repeat, or with commas"


def check_named_tasks(names: Sequence[str]) -> None:
    """Refuse tasks that are not there and pairs that cannot be read, before anything is loaded."""
    check_tasks(names)
    for name in filter(is_pairs, names):
        read_pairs(name)  # says what is amiss


def check_heads(*texts: str | None) -> None:
    """Refuse what is no name of a head, before anything is loaded."""
    from caploc.components import parse_components

    parse_components([text for text in texts if text and not is_file(at_home(text))])


TASK = flags(Study)["task"].option.help
Tasks = Annotated[list[str], option(f"{TASK}; {ONE_OR_MORE}.", "--task")]


LocatedTask = Annotated[list[str], option(TASK, "--task")]


def one_task(names: Sequence[str]) -> str:
    """Return the task to locate; raises BadOption if there are several."""
    if len(several := split_names(names)) > 1:
        raise BadOption(
            f"--task names the one task to locate; got {', '.join(several)}. Name others with "
            "--also to score them too, or write a file of studies for `caploc run`."
        )
    return several[0] if several else ""


def check_folder(folder: Path | None) -> Path | None:
    """Refuse as a run's folder what can be none, before anything is loaded."""
    return None if folder is None else check_out(folder)


def check_count(parameter: typer.CallbackParam, count: int | None) -> int | None:
    """Refuse a number below 1; raises BadOption."""
    if count is not None and count < 1:
        raise BadOption(f"{parameter.opts[0]} must be 1 or more; got {count}.")
    return count


Out = Annotated[Path | None, option("Run folder; a run in it is continued.", callback=check_folder)]


def warn_of_code(trusted: bool | None) -> bool | None:
    """Say loudly what `--trust-remote-code` means."""
    if trusted:
        console.warn(
            "--trust-remote-code: Python code of the model's repository, and code that a task's "
            "file names, is run with your rights and no walls around it."
        )
    return trusted


def declared(name: str, *names: str, **more: Any) -> Any:
    """Return an option with the help that a study's has."""
    return option(flags(Study)[name].option.help, *names, **more)


Trust = Annotated[bool, declared("trust_remote_code", "--trust-remote-code", callback=warn_of_code)]


Limit = Annotated[int | None, declared("limit", callback=check_count)]
Quiet = Annotated[bool, option("No progress.", "--quiet", "-q")]
Json = Annotated[bool, option("Print the result as JSON.", "--json")]


@dataclass(frozen=True)
class Without:
    """Options of a record that a command does not take."""

    names: tuple[str, ...]


Said = dict[str, Any]  # what was said of the options of a record, by name
Loading = Annotated[Said, ModelOptions, Without(("model", "engine", "batch_size", "quantize"))]
NO_CODE = Without(("allow_code",))  # which is the command's own


def model_of(said: Mapping[str, Any], name: str, **more: Any) -> ModelOptions:
    """Say what loads the model of this name; `more` are further options."""
    return build(ModelOptions, {**said, "model": name, **more})


@record(frozen=True)
class CodeGroup:
    """Whether programs that a model writes are run, and behind which walls."""

    panel: ClassVar[str] = "Permissions"
    allow_code: Annotated[bool, flags(Study)["allow_code"].option] = False
    isolation: Annotated[
        str, Option("With --allow-code: bubblewrap, or none for resource limits alone.")
    ] = BUBBLEWRAP

    def __post_init__(self) -> None:
        if self.isolation != BUBBLEWRAP:  # which is what sandboxes do unless they are told
            from caploc.sandbox import require_isolation

            require_isolation(self.isolation)

    def check(self) -> None:
        """Refuse code that cannot be isolated, and say so where nobody asked that it be."""
        if self.allow_code:
            from caploc.sandbox import check_isolation, describe_isolation

            check_isolation()
            if self.isolation == "none":
                console.warn(f"Code that the model writes {describe_isolation()}.")


@record(frozen=True)
class WorkerGroup:
    """Who answers rows."""

    panel: ClassVar[str] = "Workers"
    workers: Annotated[
        str | None, Option("Answer rows in N processes of this machine, or `ray`: on a cluster.")
    ] = None
    ray_address: Annotated[
        str | None, Option("HOST:PORT of a Ray cluster's head, or auto; RAY_ADDRESS if absent.")
    ] = None
    gpus_per_worker: Annotated[
        float | None, Option("GPUs of a worker, 1 if absent; 0.5: two share one.")
    ] = None
    cpus_per_worker: Annotated[
        int | None, Option("CPU cores of a worker, which are its threads.")
    ] = None

    def parse(self) -> Workers | None:
        """Read them; None where this process answers."""
        if self.workers is None:
            for name in ("ray_address", "gpus_per_worker", "cpus_per_worker"):
                if (value := getattr(self, name)) is not None:
                    raise BadOption(f"{flag_of(name)} {value} says how workers run; add --workers.")
            return None
        try:
            count = None if self.workers == "ray" else int(self.workers)
        except ValueError:
            raise BadOption(
                "--workers takes a number of processes on this machine, or ray; got "
                f"{self.workers!r}."
            ) from None
        gpus = Workers.gpus if self.gpus_per_worker is None else self.gpus_per_worker
        return Workers(count, self.ray_address, gpus, self.cpus_per_worker)


@record(frozen=True)
class PermissionGroup(WorkerGroup, CodeGroup):
    """What a finished run may be asked to do, which its folder alone cannot say."""

    trust_remote_code: Annotated[bool, flags(Study)["trust_remote_code"].option] = False

    def allowed(self) -> Allowed:
        """Read them, and refuse code that cannot be isolated."""
        may = Allowed(self.allow_code, self.trust_remote_code, self.parse())
        self.check()
        return may


@record(frozen=True)
class OutputGroup:
    """What a command prints."""

    panel: ClassVar[str] = "Output"
    quiet: Annotated[bool, Option("No progress.", flags=("-q",))] = False
    as_json: Annotated[bool, Option("Print the result as JSON.", "json")] = False

    def progress(self) -> AbstractContextManager[Progress]:
        """Show progress while the block runs, unless the result is to stand alone."""
        return console.progress(self.quiet or self.as_json)

    def show(self, result: Any, table: tuple[Any, ...], *sentences: str) -> None:
        """Print a result as JSON, or its table and what there is to say beside it."""
        if self.as_json:
            console.say_json(result)
            return
        console.show_table(*table)
        for sentence in sentences:
            console.say(sentence)


def takes_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each field of its parameters that are records of options.

    A parameter that is `Annotated[Said, RECORD]` gets what was said of the record's options. A
    record's options stand under its own heading in the command's help, basic ones before them.
    """
    taken, hints = signature(command), get_type_hints(command, include_extras=True)
    records = {name: kind for name in taken.parameters if (kind := record_of(hints[name]))}
    shown = list[Parameter]()
    for name, parameter in taken.parameters.items():
        if name in records:
            shown += [typed(flag, parameter) for flag in flags_of(hints[name])]
        else:
            shown.append(parameter.replace(annotation=hints[name]))

    @wraps(command)
    def run(**given: Any) -> None:
        for name, kind in records.items():
            said = {flag.name: value_of(flag, given) for flag in flags_of(hints[name])}
            said = {flag: value for flag, value in said.items() if value is not None}
            given[name] = build(kind, said) if kind is hints[name] else said
        command(**given)

    shown.sort(key=lambda each: each.kind)
    run.__signature__ = taken.replace(parameters=shown)  # type: ignore[attr-defined]
    return run


def record_of(hint: Any) -> Any:
    """The record whose options a parameter takes, if it is one."""
    kinds = [hint, *(get_args(hint)[1:] if Said in get_args(hint) else ())]
    return next((each for each in kinds if isinstance(each, type) and is_dataclass(each)), None)


def flags_of(hint: Any) -> list[Flag]:
    """List the options that a parameter takes from its record."""
    left_out = {name for each in get_args(hint) if isinstance(each, Without) for name in each.names}
    known = flags(record_of(hint)).values()
    return [flag for flag in known if flag.option.help and flag.name not in left_out]


def value_of(flag: Flag, given: dict[str, Any]) -> Any:
    """Take what was said of an option; names that stand with commas between them one by one."""
    value = given.pop(flag.name)
    return split_names(value) if value is not None and flag.many and not flag.maps else value


METAVARS = {int: "INTEGER", float: "FLOAT"}
BASIC = "Options"  # the heading of those on the first page of help


def typed(flag: Flag, parameter: Parameter) -> Parameter:
    """Make a command's parameter of an option; its value is read, and checked, by its record."""
    help, default = flag.option.help, flag.default
    if default and default is not MISSING and not flag.maps:
        shown = ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
        help = f"{help.rstrip('.')}; {shown} if absent."
    if flag.many and not help.endswith("."):
        help = f"{help}; {ONE_OR_MORE}."
    kind: Any = list[str] | None if flag.many else bool | None if flag.takes is bool else str | None
    described = typer.Option(
        flag_of(flag.name),
        *flag.option.flags,
        help=help,
        show_default=False,
        metavar=None if kind == (bool | None) else METAVARS.get(flag.takes, "TEXT"),
        rich_help_panel=BASIC if flag.option.basic else flag.panel,
        callback=warn_of_code if flag.name == "trust_remote_code" else None,
    )
    own = parameter.replace(name=flag.name, default=None, kind=Parameter.KEYWORD_ONLY)
    return own.replace(annotation=Annotated[kind, described])


def split_names(texts: Iterable[str] | None) -> list[str]:
    """Names that stand alone or with commas between them; a file's may have commas of its own."""
    found: list[str] = []
    for text in texts or ():
        found += [text] if is_file(at_home(text)) else map(str.strip, text.split(","))
    return [name for name in found if name]


def parse_families(texts: list[str], option: str = "--family") -> dict[str, str]:
    """`math=gsm8k,arithmetic` as the family of each task; raises BadOption if none is."""
    families: dict[str, str] = {}
    for text in texts:
        name, equals, tasks = text.partition("=")
        if not (name and equals and tasks):
            raise BadOption(f"{option} takes NAME=TASK,TASK; got {text!r}.")
        families |= {task.strip(): name for task in tasks.split(",") if task.strip()}
    return families


def kinds_of(texts: list[str] | None) -> dict[str, str]:
    """The kind of each task, tasks named as every run of them does."""
    kinds = parse_families(texts or [], "--kind")
    return {identify(name): kind for name, kind in kinds.items()}


def command_line() -> str:
    """The command as it was typed."""
    return shlex.join(["caploc", *sys.argv[1:]])
