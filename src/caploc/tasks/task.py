"""What the rest of caploc needs to know of a task."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from caploc.result import Score
from caploc.tasks.requests import Request, Response


@dataclass(frozen=True, slots=True)
class Shown:
    """One answered example as a reader sees it."""

    prompt: str
    gold: str | None
    answer: str


@runtime_checkable
class Task(Protocol):
    """A capability's evaluation set: text in, numbers out."""

    name: str
    metric: str
    outcome_kind: str  # "metric" or "logprob"
    higher_is_better: bool
    version: str  # everything that can change an outcome besides the example and its responses
    executes_code: bool  # whether `item` runs, in the sandbox, a program that the model wrote

    @property
    def size(self) -> int:
        """Number of examples."""
        ...

    @property
    def chance(self) -> float:
        """Return the mean outcome of guessing; 0 where nothing is offered to guess among."""
        ...

    def in_metric(self) -> "Task":
        """Return the same task with its own metric as the outcome."""
        ...

    def in_likelihood(self) -> "Task | None":
        """Return the same task with the log-probability of the right answer as the outcome.

        None for a task that names no right answers.
        """
        ...

    def key(self, example: int) -> str:
        """Return a digest of everything the example asks and is judged by."""
        ...

    def requests(self, example: int) -> Sequence[Request]:
        """Return what must be asked of the model for one row."""
        ...

    def item(self, example: int, responses: Sequence[Response]) -> Any:
        """Return the task's own per-example result: what its metric aggregates."""
        ...

    def outcome(self, item: Any) -> float:
        """One row's outcome; higher is better, whatever the metric."""
        ...

    def score(self, examples: Sequence[int], items: Sequence[Any]) -> Score:
        """Return the task's own aggregate of its items."""
        ...

    def first(self, limit: int | None) -> list[int]:
        """Return the examples of a final score."""
        ...

    def show(self, example: int, responses: Sequence[Response]) -> Shown:
        """Prompt, gold answer and the model's answer, for people."""
        ...
