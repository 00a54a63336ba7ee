"""What the engine is asked, and what it answers."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from caploc.grid import Grid, Mask
from caploc.tasks.requests import Request, Response


@dataclass(frozen=True, slots=True)
class Ask:
    """A request under a mask; `key` is the asker's own and comes back with the answer.

    Asks with the same first part of the key belong to one row of measurement, such as the choices
    of one question.
    """

    key: tuple[int, int]
    request: Request
    knocked_out: Mask


@dataclass(frozen=True, slots=True)
class Answer:
    """The response to an ask, its share of the seconds that went by, and what it took.

    `forward_tokens` are the tokens run for it, in units of a pass through all layers, with its part
    of what was computed for several; `plain_tokens` are those of reading and saying it alone.
    """

    key: tuple[int, int]
    response: Response
    seconds: float
    forward_tokens: float
    plain_tokens: int


@runtime_checkable
class Engine(Protocol):
    """Whatever answers asks, in any order."""

    @property
    def grid(self) -> Grid:
        """The parts that masks are over."""
        ...

    def answer(self, asks: Iterable[Ask]) -> Iterator[list[Answer]]:
        """Answer every ask once, in lists as they are done."""
        ...
