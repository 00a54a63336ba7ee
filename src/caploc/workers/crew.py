"""What the fleet needs of those who run the workers, and what they report."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from caploc import errors
from caploc.engine import Answer, Ask
from caploc.errors import CaplocError
from caploc.tasks.requests import Request
from caploc.workers.identity import Identity


@dataclass(frozen=True)
class Refusal:
    """An error that a worker raised on purpose, as it travels: the name of its class, its text."""

    kind: str
    text: str

    @classmethod
    def of(cls, error: CaplocError) -> "Refusal":
        """Pack an error."""
        return cls(type(error).__name__, str(error))

    def error(self) -> CaplocError:
        """The error again."""
        found: CaplocError = getattr(errors, self.kind, CaplocError)(self.text)
        return found


@dataclass(frozen=True)
class Joined:
    """A worker on a node has its model and waits for rows, or has refused it."""

    worker: int
    node: str
    identity: Identity | Refusal


@dataclass(frozen=True)
class Some:
    """A worker has answered some of a group."""

    worker: int
    group: int
    answers: list[Answer]


@dataclass(frozen=True)
class Done:
    """A worker has ended a group, or has refused to go on."""

    worker: int
    group: int
    refusal: Refusal | None = None


@dataclass(frozen=True)
class Lost:
    """A worker is gone, with whatever it held."""

    worker: int
    why: str  # ends a sentence that begins with "because"


Event = Joined | Some | Done | Lost


class Crew(Protocol):
    """Whoever runs workers. Workers have numbers, and a new one never gets an old one's."""

    def refresh(self) -> None:
        """Start the workers that are missing, and let go of those that there is no place for."""
        ...

    def give(self, worker: int, group: int, asks: Sequence[Ask]) -> None:
        """Have a worker answer a group."""
        ...

    def shared_tokens(self, worker: int, requests: Sequence[Request]) -> float:
        """`BatchEngine.shared_tokens`, by a worker."""
        ...

    def events(self, seconds: float) -> list[Event]:
        """What happened; waits so long for something to happen."""
        ...

    def dismiss(self, worker: int) -> None:
        """Kill a worker, whatever it does; nothing more is heard of it."""
        ...

    def bar(self) -> None:
        """Have one worker less from now on: there is a place where none can work."""
        ...

    @property
    def expected(self) -> int:
        """How many workers there should be."""
        ...

    def close(self) -> None:
        """Kill all workers, and end what was started for them."""
        ...
