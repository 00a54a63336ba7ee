"""The contract of an engine: what it is asked, what it answers, and which model does. No torch."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from caploc.components import Grid, Heads, Mask
from caploc.tasks.task import Request, Response


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Source:
    """Texts on which the intact heads' outputs take the place of those knocked out.

    With `mean` it is each head's mean over all tokens of the texts; else there is one text, and it
    is the output at the same position, counted from the text's beginning: past its end that on its
    last token.
    """

    texts: tuple[Request, ...]
    mean: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """A request under a mask; `key` is the asker's own and comes back with the answer.

    Asks with the same first part of the key belong to one row of measurement, such as the choices
    of one question. Without a `source` what heads hand on is zero.
    """

    key: tuple[int, int]
    request: Request
    knocked_out: Mask
    source: Source | None = None


@dataclass(frozen=True, slots=True)
class Way:
    """Which engine answered, by its name, and why those asked first did not; empty if it was."""

    engine: str
    why: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The response to an ask, its share of the seconds that went by, and the tokens it took.

    `forward_tokens` are the tokens run for it, in units of a pass through all layers, with its part
    of what was computed for several; `plain_tokens` are those of answering it alone. `way` says
    who answered, where there is a choice.
    """

    key: tuple[int, int]
    response: Response
    seconds: float
    forward_tokens: float
    plain_tokens: int
    way: Way | None = None


@runtime_checkable
class Engine(Protocol):
    """Whatever answers asks, in any order; masks are over the parts of its grid."""

    @property
    def grid(self) -> Grid: ...

    def answer(self, asks: Iterable[Ask]) -> Iterator[list[Answer]]:
        """Answer every ask once, in lists as they are done."""


@runtime_checkable
class Identified(Protocol):
    """Which model answers, wherever its weights are: what questions and results say of it.

    `name` is as the user gave it; `fingerprint` changes whenever the weights or the config do;
    `dtype` is that of the weights, the text of `device` its name; masks are over the `grid`, and
    what does the same work but is not in it is named by `uncovered`.
    """

    @property
    def name(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def device(self) -> object: ...
    @property
    def grid(self) -> Grid[Any]: ...
    @property
    def uncovered(self) -> tuple[str, ...]: ...


@runtime_checkable
class HeadModel(Identified, Protocol):
    """A model whose parts are its attention heads."""

    @property
    def grid(self) -> Heads: ...


Model_co = TypeVar("Model_co", bound=Identified, covariant=True)


@runtime_checkable
class RowEngine(Engine, Protocol[Model_co]):
    """An engine that says which model answers."""

    @property
    def loaded(self) -> Model_co: ...

    def misfit(self, request: Request) -> str | None:
        """Say why the model cannot read a request whole; None if it can, or is elsewhere."""
