"""What the files of a run folder must hold, checked when they are read."""

from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, RootModel, TypeAdapter, ValidationError

from caploc.errors import UserError, describe_faults
from caploc.folder import read_json
from caploc.options import ZERO
from caploc.result import (
    SCHEMA,
    AnswerPair,
    ComponentName,
    Document,
    GridShape,
    Name,
    Number,
    Record,
    RunCost,
    Score,
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
    fingerprint: Name | None = None  # of the weights, and the grid: what rows are read by
    grid: GridShape | None = None
    heads: list[ComponentName]
    mode: Name = ZERO  # of knocking out
    tasks: list[TaskComparison]
    cost: RunCost = RunCost()
    command: str | None = None
    versions: dict[str, str | None] = {}


class Curve(Document):
    """curve.json: each task's scores with none, one, two and more of the heads knocked out."""

    heads: list[ComponentName]
    curves: dict[Name, list[Score]]
    cost: RunCost | None = None


class ContrastEffect(Record):
    """Two sets of heads, and what their joint loss does beyond that of each."""

    kind: Name
    first: list[ComponentName]
    second: list[ComponentName]
    effect: Number | None = None
    low: Number | None = None
    high: Number | None = None
    q: Number | None = None
    meaning: Name | None = None


class Interactions(Document):
    """interactions.json."""

    interactions: list[ContrastEffect]


Kind = TypeVar("Kind")
File = TypeVar("File", bound=BaseModel)


def read_file(path: Path, kind: type[File]) -> File:
    """Read a file of a run folder as `kind`.

    Raises UserError if it is not there, not readable, of another version or not what is written.
    """
    return check_contents(path, kind, read_json(path))


def check_contents(path: Path, kind: type[File], content: Any) -> File:
    """Return what was read from a file as what it should be; raises UserError."""
    schema = content.get("schema", SCHEMA) if isinstance(content, dict) else SCHEMA
    if schema != SCHEMA:
        raise UserError(
            f"{path} was written by another version of caploc (schema {schema}, this one reads "
            f"{SCHEMA}); use that version."
        )
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise UserError(
            f"{path} is not what a run writes ({describe_faults(error)}); was it edited by hand?"
        ) from None


def restore(kind: type[Kind], fields: Any) -> Kind:
    """Rebuild a dataclass, and those in it, from a file; raises ValueError."""
    try:
        return TypeAdapter(kind).validate_python(fields)
    except ValidationError as error:
        raise ValueError(describe_faults(error)) from None
