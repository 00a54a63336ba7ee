"""What the files of a run folder must hold, checked when they are read.

A folder may come from anyone, by mail as well as from a run.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from pydantic import BaseModel, RootModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from caploc import folder
from caploc.errors import CaplocError, UserError
from caploc.folder import RESULT, read_json
from caploc.heads import ALONE, AMONG, Head
from caploc.result import (
    SCHEMA,
    AmountName,
    Answerer,
    AnswerPair,
    Count,
    Document,
    Model,
    Name,
    Number,
    PartName,
    Record,
    Result,
    RunCost,
    Score,
    Size,
    TaskComparison,
)


class RunFile(Record):
    """run.json."""

    study: dict[str, Any]
    command: str = ""
    data: dict[str, str] | None = None  # a digest of the examples of each task that is a file
    versions: dict[str, str | None] | None = None


class Answers(RootModel[list[AnswerPair]]):
    """answers.json."""


class Studies(Document):
    """studies.json."""

    studies: list[Name]


class TaskScores(Document):
    """evaluation.json: tasks with the heads of the user's choice knocked out."""

    model: Name
    heads: list[AmountName]
    tasks: list[TaskComparison]
    engines: list[Answerer] = []
    cost: RunCost = RunCost()
    command: str | None = None
    versions: dict[str, str | None] = {}


class Curve(Document):
    """curve.json: each task's scores with none, one, two and more of the heads knocked out."""

    heads: list[PartName]
    curves: dict[Name, list[Score]]
    cost: RunCost | None = None


class ContrastEffect(Record):
    """Two sets of heads, and what their joint loss does beyond that of each."""

    kind: Name
    first: list[PartName]
    second: list[PartName]
    effect: Number | None = None
    low: Number | None = None
    high: Number | None = None
    q: Number | None = None
    meaning: Name | None = None


class Interactions(Document):
    """interactions.json."""

    examples: Count | None = None
    interactions: list[ContrastEffect]
    summary: list[Name] = []
    limits: Name | None = None


class Universal(Document):
    """universal.json."""

    model: Name
    universal: list[PartName] = []


class NeuronCounts(Record):
    """The neurons of each layer."""

    layers: Size
    neurons: list[Size]
    expert_widths: list[Size]
    expert_counts: list[Size]


class FoundNeuron(Record):
    """A neuron that a task names."""

    neuron: PartName


class FoundNeurons(Record):
    """A task's neurons, and those of its subsets."""

    task: Name
    neurons: list[FoundNeuron]
    subsets: list[list[PartName]]


class Neurons(Document):
    """neurons.json."""

    model: Model
    grid: NeuronCounts
    tasks: list[FoundNeurons]


class Arm(Record):
    """One way in which neurons were tuned."""

    arm: Name
    fit: dict[str, Any] | None = None


class Arms(Record):
    """The ways of one task."""

    arms: list[Arm]


class TuningOptions(Record):
    """How neurons were tuned."""

    recipe: dict[str, Any]
    noise: Number


class Enhancement(Document):
    """enhancement.json."""

    enhancing: TuningOptions
    tasks: dict[Name, Arms]


Kind = TypeVar("Kind")
File = TypeVar("File", bound=BaseModel)
QUOTED = 60  # characters of a value that a sentence repeats
DRAWN = ("css", "csb", "css-search", "csb-search")  # methods whose effects are among others

FORMS: Mapping[str, type[BaseModel]] = {
    folder.RESULT: Result,
    folder.ANSWERS: Answers,
    folder.EVALUATION: TaskScores,
    folder.CURVE: Curve,
    folder.INTERACTIONS: Interactions,
    folder.UNIVERSAL: Universal,
    folder.RUN: RunFile,
    folder.STUDIES: Studies,
    folder.NEURONS: Neurons,
    folder.ENHANCEMENT: Enhancement,
}


def read_contents(path: Path) -> Any:
    """Read a file of a run folder and check that it is what its name says.

    Raises UserError if it is not there, not readable, of a later version or not what is written.
    """
    content = read_json(path)
    parse_content(path, content)
    return content


def read_file(path: Path, kind: type[File]) -> File:
    """Read a file of a run folder, as `read_contents`; `kind` is what `FORMS` has for its name."""
    found = parse_content(path, read_json(path))
    assert isinstance(found, kind)
    return found


def parse_content(path: Path, content: Any) -> BaseModel:
    """Return the content of a file as what its name says, or raise UserError with its fault."""
    found, wrong = check_contents(path.name, content)
    if found is None:
        raise UserError(f"{path} {wrong[0]} `caploc doctor {path.parent}` says what is sound.")
    return found


def check_contents(name: str, content: Any) -> tuple[BaseModel | None, list[str]]:
    """Return the content of the file of that name, or else what is wrong, the first thing first."""
    schema = content.get("schema") if isinstance(content, dict) else None
    if isinstance(schema, int) and schema > SCHEMA:
        later = f"was written by a later version of caploc (schema {schema}, this one reads up to "
        return None, [f"{later}{SCHEMA}); use that version."]
    try:
        return FORMS[name].model_validate(upgrade(name, content)), []
    except ValidationError as error:
        faults = map(describe_fault, error.errors(include_url=False))
        return None, [
            f"is not what a run writes: {each}; was it edited by hand?" for each in faults
        ]


def upgrade(name: str, content: Any) -> Any:
    """Lift the `result.json` of an older version to today's form; other files stay.

    Parts that were missing could be null then, no estimand was named, and the place of a head
    could be said by its name alone.
    """
    if name != RESULT or not isinstance(content, dict):
        return content
    content = {part: value for part, value in content.items() if value is not None}
    if isinstance(content.get("method"), dict):
        shown = AMONG if content["method"].get("name") in DRAWN else ALONE
        content = {"estimand": {"heads": shown, "top": shown}} | content
    if isinstance(content.get("heads"), list):
        content["heads"] = heads = list(content["heads"])
        for number, entry in enumerate(heads):
            if isinstance(entry, dict) and None in (entry.get("layer"), entry.get("index")):
                with suppress(CaplocError, KeyError, TypeError, AttributeError):
                    heads[number] = entry | asdict(Head.parse(entry["head"]))
    return content


NESTED = "lists or tables nested beyond reason"


def typed(value: Kind) -> Kind:
    """Build a dataclass from a file's fields, if all are of their types; raises ValueError."""
    try:
        fields = asdict(value)  # type: ignore[call-overload]  # a dataclass
    except RecursionError:
        raise ValueError(NESTED) from None
    return read_typed(type(value), fields)


def read_typed(kind: type[Kind], fields: dict[str, Any]) -> Kind:
    """Rebuild a dataclass from a file's fields; raises as `typed`."""
    adapter: TypeAdapter[Kind] = TypeAdapter(kind)
    try:
        return adapter.validate_python(fields)
    except ValidationError as error:
        raise ValueError(describe_fault(error.errors(include_url=False)[0])) from None
    except RecursionError:
        raise ValueError(NESTED) from None


def restore(kind: type[Kind], fields: Any) -> Kind:
    """Rebuild a dataclass, and those in it, from a file; raises KeyError, TypeError, ValueError."""
    kinds = get_type_hints(kind)
    unknown = fields.keys() - kinds.keys() if isinstance(fields, dict) else {"no fields"}
    if unknown:
        raise TypeError(f"{kind.__name__} has {min(unknown)[:QUOTED]}")
    for name, part in kinds.items():
        if isinstance(part, type) and is_dataclass(part):
            restore(part, fields[name])
    return read_typed(kind, fields)


def describe_fault(fault: ErrorDetails) -> str:
    """A mistake that pydantic found, in a few words: where, and what."""
    where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in fault["loc"])
    where = where.lstrip(".")[:QUOTED] or "it"
    if fault["type"] == "missing":
        return f"{where} is missing"
    if fault["type"] == "value_error":
        return str(fault["ctx"]["error"])[:300]
    value = repr(fault["input"])
    value = value if len(value) <= QUOTED else f"{value[:QUOTED]} ..."
    what = fault["msg"].removeprefix("Input ").removeprefix("should be ")
    what = what.partition(" or instance of ")[0].partition(",")[0]
    return f"{where} is {value} and must be {what}"
