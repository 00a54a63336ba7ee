"""What can be chosen: each option once, with its type, its range and its help.

The command line, files of studies, the Python call and run.json are made of these records. None of
them needs PyTorch, so that mistakes are told, and help is shown, at once.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache, wraps
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import pydantic.dataclasses
from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import AfterValidator, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from caploc.errors import BadData, BadOption, CaplocError, describe_fault, unknown
from caploc.naming import at_home, is_file, placed
from caploc.registries import ESTIMATORS

Record = TypeVar("Record")

MOST_MASKS = 100_000  # drawn at once, each a byte a head
MOST_ROWS = 10**12  # a number beyond what anyone could measure is a slip of the finger
MOST_SEEDS = 2**63 - 1
GOALS = ("heads", "set", "specific")
OUTCOMES = ("metric", "logprob")
ZERO, MEAN, RESAMPLE, PATCH = MODES = ("zero", "mean", "resample", "patch")
ADDRESS = "RAY_ADDRESS"  # Ray's own variable
FORMATS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}  # of --data
DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?|mps|spread")


@dataclass(frozen=True)
class Option:
    """What is said of a field beside its type and range.

    `name` is its name on the command line and in files, if another one than in Python. A `basic`
    one is on the first page of help. With `path`, a file or folder is seen from where it was named.
    One to `trust` is given on the command line only. `methods` and `goals` are those that read it.
    """

    help: str
    name: str = ""
    flags: tuple[str, ...] = ()
    basic: bool = False
    path: bool = False
    trust: bool = False
    methods: tuple[str, ...] = ()
    goals: tuple[str, ...] = ()


def one_of(names: Collection[str], what: str) -> AfterValidator:
    """Accept these names alone; of any other the nearest is named."""

    def check(name: str | None) -> str | None:
        if name is not None and name not in names:
            raise unknown(names, name, what)
        return name

    return AfterValidator(check)


def rise(values: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    """Refuse numbers that do not rise."""
    if values is not None and list(values) != sorted(set(values)):
        raise ValueError(f"must be numbers that rise; got {', '.join(map(str, values))}")
    return values


def check_device(name: str) -> str:
    """Refuse what is the name of no device, wherever it may be."""
    if not DEVICE.fullmatch(name):
        raise BadOption(
            f"There is no device {name!r}; choose auto, cpu, cuda, cuda:1 or another number, mps "
            "or spread."
        )
    return name


if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:

    def record(*, frozen):
        """Make classes dataclasses whose fields are checked; what is wrong is a BadOption."""

        def make(kind):
            config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
            made = pydantic.dataclasses.dataclass(frozen=frozen, config=config)(kind)
            check = made.__init__

            @wraps(check)
            def init(self, *given, **named):
                try:
                    check(self, *given, **named)
                except ValidationError as error:
                    raise refusal(made, error) from None

            made.__init__ = init
            return made

        return make


@dataclass(frozen=True)
class Workers:
    """How many workers answer, and where.

    With a `count` and no `address` they are processes of this machine. Without a count there are as
    many as the cluster holds at any time, at `address`, else at RAY_ADDRESS, else on this machine.
    `gpus` is a worker's number of GPUs where there are some (a half: two workers share one), `cpus`
    its number of CPU cores, which are its threads.
    """

    count: int | None = None
    address: str | None = None
    gpus: float = 1.0
    cpus: int | None = None

    @property
    def place(self) -> str | None:
        """The address of the cluster; None where one is started on this machine."""
        return self.address or (os.environ.get(ADDRESS) or None if self.count is None else None)


def parse_data(files: Any, start: Path = Path()) -> dict[str, str]:
    """Read `test=FILE` texts, or a table of such, into absolute paths.

    Raises BadOption if one is not of that form.
    """
    parts = files.items() if isinstance(files, Mapping) else (str(f).split("=", 1) for f in files)
    found = {}
    for split, *file in parts:
        if not (split and file and file[0]):
            raise BadOption(
                f"--data takes SPLIT=FILE, such as test=gsm8k_test.jsonl; got {split!r}."
            )
        found[split] = str((start / at_home(file[0])).absolute())
    return found


def data_format(file: Path) -> str:
    """Return the reader for a data file, by its ending; raises BadOption if it has none."""
    if file.suffix not in FORMATS:
        raise BadOption(f"--data files end in {', '.join(FORMATS)}; got {file.name!r}.")
    return FORMATS[file.suffix]


@record(frozen=True)
class TaskOptions:
    """How a task is to be asked; the defaults are the task's own.

    `data` holds a file for each split that is not to come from the Hub. With `training` the
    examples are those of the training split, the task asked and judged as ever.
    """

    panel: ClassVar[str] = "Task"
    metric: Annotated[str | None, Option("The task's metric[,filter] to use.")] = None
    outcome: Annotated[
        str, one_of(OUTCOMES, "--outcome"), Option("metric, or logprob of the gold answer.")
    ] = "metric"
    fewshot: Annotated[
        int | None, Ge(0), Option("Examples in the prompt; the task's own if absent.")
    ] = None
    delimiter: Annotated[
        str | None, Option("Text between prompt and answer, such as ' '; if absent the task's own.")
    ] = None
    chat_template: Annotated[bool, Option("Use the model's chat template.")] = False
    data: Annotated[
        dict[str, str],
        Option("SPLIT=FILE: read a split from a file (jsonl, csv, parquet)."),
    ] = field(default_factory=dict)
    allow_code: Annotated[
        bool, Option("Run code that the model writes, in bubblewrap.", trust=True)
    ] = False
    training: bool = False

    def check_files(self) -> None:
        """Refuse files of examples that are not there, hold nothing, or are not of one format."""
        formats = {data_format(Path(file)) for file in self.data.values()}
        for name, file in self.data.items():
            if not is_file(Path(file)):
                raise BadData(f"--data {name}={file}: there is no such file.")
            if Path(file).stat().st_size == 0:
                raise BadData(f"--data {name}={file}: the file is empty.")
        if len(formats) > 1:
            raise BadOption("All --data files of one run must be of one format.")

    def plain(self) -> "TaskOptions":
        """Return the options for other tasks: how the model is spoken to, no more."""
        return TaskOptions(chat_template=self.chat_template, allow_code=self.allow_code)


@record(frozen=True)
class Mode:
    """What a knocked-out head hands on: zero, or what it does elsewhere.

    For `patch`, example n of the task `corrupted` is the counterpart of example n.
    """

    panel: ClassVar[str] = "Knockout"
    name: Annotated[
        str,
        one_of(MODES, "mode"),
        Option(
            "What replaces a head's output: zero, its mean over examples, its output on "
            "another example (resample) or on the corrupted prompt (patch).",
            "mode",
        ),
    ] = ZERO
    corrupted: Annotated[
        str | None,
        Option(
            "For --mode patch: the task whose examples are the corrupted counterparts.", path=True
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.name != PATCH:
            if self.corrupted is not None:
                raise BadOption(f"--corrupted is for --mode {PATCH}; got --mode {self.name}.")
        elif self.corrupted is None:
            raise BadOption(
                f"--mode {PATCH} needs --corrupted TASK: the same examples, each with a corrupted "
                "prompt of as many tokens."
            )

    @property
    def tasks(self) -> tuple[str, ...]:
        return () if self.corrupted is None else (self.corrupted,)

    def check_beside(self, others: Sequence[str]) -> None:
        """Refuse, by a BadOption, other tasks where only one has corrupted prompts."""
        if self.name == PATCH and others:
            raise BadOption(
                f"--mode {PATCH} has corrupted prompts of one task, and none for {others[0]}; "
                "leave other tasks out."
            )


@record(frozen=True)
class Settings:
    """What a search may be told. Each uses what it needs.

    `budget` is the most rows of the default search (None: what its stages usually take).
    `estimator` is for masks drawn beforehand (None: the method's own). `mask_counts` and `rates`
    (None: those of the paper) span the settings that a search for the best of them tries.
    """

    panel: ClassVar[str] = "Search"
    masks: Annotated[
        int,
        Ge(1),
        Le(MOST_MASKS),
        Option("Masks to draw (css, csb).", methods=("css", "csb")),
    ] = 100
    rate: Annotated[
        float,
        Gt(0),
        Lt(1),
        Option("Share of heads in a mask (css, csb).", methods=("css", "csb")),
    ] = 0.02
    top: Annotated[int, Ge(1), Option("Heads to name at most.", basic=True)] = 5
    seed: Annotated[int, Ge(0), Le(MOST_SEEDS), Option("Seed of examples, masks and controls.")] = 0
    goal: Annotated[
        str,
        one_of(GOALS, "--goal"),
        Option(
            "heads: those that matter most alone; set: the one that breaks most; specific: "
            "one that also leaves the tasks of --spare alone.",
            basic=True,
            methods=("scan",),
        ),
    ] = "heads"
    price: Annotated[
        float,
        Gt(0),
        Le(1),
        Option(
            "The most that --goal specific may cost a spared task; .02 is 2 points.",
            goals=("specific",),
        ),
    ] = 0.02
    budget: Annotated[
        int | None,
        Ge(1),
        Le(MOST_ROWS),
        Option(
            "Rows of the search with heads knocked out, at most; if absent, what suits the method.",
            basic=True,
        ),
    ] = None
    estimator: Annotated[
        str | None,
        Option(
            "For css, csb, one-shot: lasso, paired.",
            methods=("css", "csb", "one-shot"),
        ),
        one_of(ESTIMATORS, "estimator"),
    ] = None
    mask_counts: Annotated[
        tuple[Annotated[int, Ge(1), Le(MOST_MASKS)], ...],
        MinLen(1),
        AfterValidator(rise),
        Option(
            "Numbers of masks to try (css-search, csb-search).",
            methods=("css-search", "csb-search"),
        ),
    ] = (100, 200, 300, 400)
    rates: Annotated[
        tuple[Annotated[float, Gt(0), Lt(1)], ...] | None,
        MinLen(1),
        AfterValidator(rise),
        Option(
            "Rates to try (css-search, csb-search); .01 to .1 if absent.",
            methods=("css-search", "csb-search"),
        ),
    ] = None


@dataclass(frozen=True)
class Flag:
    """An option by the name under which it is given, and where its value belongs."""

    name: str
    place: tuple[str, ...]  # attributes, from the outermost record
    type: Any
    default: Any  # MISSING: it must be given
    option: Option
    panel: str

    @property
    def many(self) -> bool:
        """Tell whether several values may be given."""
        return get_origin(plain_type(self.type)) in (tuple, dict)

    @property
    def maps(self) -> bool:
        """Tell whether its values have names, as `test=FILE` has."""
        return get_origin(plain_type(self.type)) is dict

    @property
    def takes(self) -> type:
        """The type of one value."""
        kind = plain_type(self.type)
        inner = get_args(kind)[0] if get_origin(kind) is tuple else kind
        found = plain_type(inner)
        return found if isinstance(found, type) else str


def plain_type(annotation: Any) -> Any:
    """A field's type without what is said of it, and without None."""
    if get_origin(annotation) is Annotated:
        return plain_type(get_args(annotation)[0])
    if type(None) in get_args(annotation):
        return plain_type(get_args(annotation)[0])
    return annotation


@cache
def flags(kind: Any) -> Mapping[str, Flag]:
    """Every option of a record and of the records in it, by name."""
    return {flag.name: flag for flag in _flags(kind)}


def _flags(kind: Any, above: tuple[str, ...] = ()) -> Iterator[Flag]:
    types = get_type_hints(kind, include_extras=True)
    for each in fields(kind):
        annotation, place = types[each.name], (*above, each.name)
        if is_dataclass(annotation) and hasattr(annotation, "panel"):
            yield from _flags(annotation, place)
            continue
        said = [one for one in get_args(annotation)[1:] if isinstance(one, Option)]
        option = said[0] if said else Option("")
        factory = each.default_factory
        default = each.default if factory is MISSING else factory()
        panel = "Permissions" if option.trust else getattr(kind, "panel", "Options")
        yield Flag(option.name or each.name, place, annotation, default, option, panel)


def build(kind: type[Record], said: Mapping[str, Any], start: Path = Path()) -> Record:
    """Build a record, and those in it, from what was said of its options, by their names.

    Files and folders are seen from `start`. Raises BadOption or UnknownName, with the value, what
    is allowed and what to do.
    """
    known, nested = flags(cast(Any, kind)), dict[str, Any]()
    for name, value in said.items():
        if name not in known:
            raise unknown(known, name, "option", "caploc locate --help-all lists them.")
        *parents, last = known[name].place
        inner = nested
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = value if is_dataclass(value) else read_value(known[name], value, start)
    return kind(**nested)


def read_value(flag: Flag, value: Any, start: Path) -> Any:
    """Read an option's value; paths in it, where there are such, are seen from a folder."""
    if flag.maps:
        return parse_data(value, start)
    if value is None or not flag.option.path:
        return value
    if isinstance(value, str):
        return placed(value, start)
    return tuple(placed(each, start) for each in value)


def flag_of(name: str) -> str:
    """The option as it is typed."""
    return f"--{name.replace('_', '-')}"


def refusal(kind: type, error: ValidationError) -> CaplocError:
    """Build the error for what is wrong with a record: all of it, in sentences.

    A list is not called too short for the items that were refused.
    """
    faults = sorted(error.errors(include_url=False), key=lambda one: one["type"] == "too_short")
    found = [refused(kind, one) for one in faults if one["type"] != "too_short" or one is faults[0]]
    return type(found[0])(" ".join(dict.fromkeys(map(str, found))))


def refused(kind: type, error: ErrorDetails) -> CaplocError:
    """Build the error for one mistake in the fields of a record."""
    own = error.get("ctx", {}).get("error")
    if isinstance(own, CaplocError):
        return own
    if error["type"] == "unexpected_keyword_argument":
        return unknown([each.name for each in fields(kind)], str(error["loc"][-1]), "option")
    names = [each.name for each in fields(kind)]
    place = tuple(names[step] if isinstance(step, int) else step for step in error["loc"][:2])
    found = [one.name for one in flags(kind).values() if place[: len(one.place)] == one.place]
    name = flag_of(found[0] if found else ".".join(place))
    return BadOption(f"{name} {describe_fault(error)}.")
