"""Read a run's files, and refuse what no run writes.

A folder may come from anyone, by mail as well as from a run.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from caploc.contents.forms import (
    SCHEMA,
    AnswerForm,
    Curve,
    Interactions,
    ResultForm,
    RunForm,
    Studies,
    Universal,
)
from caploc.contents.neuron_forms import Enhancement, Neurons
from caploc.errors import UserError
from caploc.folder import (
    ANSWERS,
    CURVE,
    ENHANCEMENT,
    INTERACTIONS,
    NEURONS,
    RESULT,
    RUN,
    STUDIES,
    UNIVERSAL,
    read_json,
)

Kind = TypeVar("Kind")
QUOTED = 60  # characters of a value that a sentence repeats

FORMS: Mapping[str, TypeAdapter[Any]] = {
    RESULT: TypeAdapter(ResultForm),
    ANSWERS: TypeAdapter(list[AnswerForm]),
    CURVE: TypeAdapter(Curve),
    INTERACTIONS: TypeAdapter(Interactions),
    UNIVERSAL: TypeAdapter(Universal),
    RUN: TypeAdapter(RunForm),
    STUDIES: TypeAdapter(Studies),
    NEURONS: TypeAdapter(Neurons),
    ENHANCEMENT: TypeAdapter(Enhancement),
}


def read_contents(path: Path) -> Any:
    """Read a file of a run folder, as `read_json`, and check that it is what its name says.

    Raises:
        UserError: if it is not there, not readable, of a later version or not what is written.
    """
    content = read_json(path)
    for fault in faults(path.name, content):
        raise UserError(f"{path} {fault} `caploc doctor {path.parent}` says what is sound.")
    return content


def typed(value: Kind) -> Kind:
    """A dataclass put together from a file's fields, if all of them are of their types.

    Raises:
        ValueError: naming the first one that is not, or if they are nested beyond reason.
    """
    adapter: TypeAdapter[Kind] = TypeAdapter(type(value))
    try:
        return adapter.validate_python(asdict(value))  # type: ignore[call-overload]  # a dataclass
    except ValidationError as error:
        raise ValueError(describe_fault(error.errors(include_url=False)[0])) from None
    except RecursionError:
        raise ValueError("lists or tables nested beyond reason") from None


def faults(name: str, content: Any) -> Iterator[str]:
    """What is wrong with the content of the file of that name, the first thing first."""
    schema = content.get("schema") if isinstance(content, dict) else None
    if isinstance(schema, int) and schema > SCHEMA:
        yield (
            f"was written by a later version of caploc (schema {schema}, this one reads up to "
            f"{SCHEMA}); use that version."
        )
        return
    try:
        FORMS[name].validate_python(content)
    except ValidationError as error:
        for fault in error.errors(include_url=False):
            yield f"is not what a run writes: {describe_fault(fault)}; was it edited by hand?"


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
