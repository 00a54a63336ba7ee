"""What a task asks of a model, what comes back, and what caploc needs to know of a task."""

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

from caploc.result import Score


@dataclass(frozen=True, slots=True)
class Generate:
    """Continue `prompt`; `options` is the JSON of lm-eval's generation arguments."""

    prompt: str
    options: str


@dataclass(frozen=True, slots=True)
class LogLikelihood:
    """How likely is `continuation` after `context`, and is it what greedy decoding would say?

    `tokens` spell the continuation as a model wrote it; if empty, they are the tokenizer's.
    """

    context: str
    continuation: str
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Rolling:
    """How likely is the whole text, window by window?"""

    text: str


Request = Generate | LogLikelihood | Rolling


def prompt_of(request: Request) -> str:
    """The text that a request begins with: prompt, context, or all of it."""
    if isinstance(request, Generate):
        return request.prompt
    return request.context if isinstance(request, LogLikelihood) else request.text


@dataclass(frozen=True, slots=True)
class Generated:
    """The text up to the first stop string, and all tokens decoded, those of the end included.

    `end` is the stop string or the text of the end token that ended it, None for the limit.
    """

    text: str
    said: tuple[int, ...] = ()
    end: str | None = None


@dataclass(frozen=True, slots=True)
class Scored:
    """Summed log-probability, in nats, of `tokens` tokens; `greedy`: each was the likeliest.

    If not, `instead` is the text that was likelier, up to its first other token, where it is known.
    """

    logprob: float
    greedy: bool
    tokens: int
    instead: str = ""


Response = Generated | Scored


def options_json(options: dict[str, Any]) -> str:
    """Generation arguments in their one canonical form."""
    return json.dumps(options, sort_keys=True)


def responses_json(responses: tuple[Response, ...]) -> str:
    """Responses as the store keeps them."""
    return json.dumps([asdict(response) for response in responses])


def responses_from_json(text: str) -> tuple[Response, ...]:
    """Read what `responses_json` wrote."""
    return tuple(
        Generated(**fields | {"said": tuple(fields["said"])})
        if "text" in fields
        else Scored(**fields)
        for fields in json.loads(text)
    )


@dataclass(frozen=True, slots=True)
class Shown:
    """One answered example as a reader sees it."""

    prompt: str
    gold: str | None
    answer: str


@runtime_checkable
class Task(Protocol):
    """A capability's evaluation set: text in, numbers out."""

    @property
    def name(self) -> str: ...
    @property
    def metric(self) -> str: ...
    @property
    def outcome_kind(self) -> str:
        """ "metric", "logprob" or "signal"."""

    @property
    def higher_is_better(self) -> bool: ...
    @property
    def version(self) -> str:
        """Everything that can change an outcome besides the example and its responses."""

    @property
    def executes_code(self) -> bool:
        """Tell whether `item` runs, in the sandbox, a program that the model wrote."""

    @property
    def size(self) -> int:
        """Number of examples."""

    @property
    def chance(self) -> float:
        """Return the mean outcome of guessing; 0 where nothing is offered to guess among."""

    def in_metric(self) -> "Task":
        """Return the same task with its own metric as the outcome."""

    def key(self, example: int) -> str:
        """Return a digest of everything the example asks and is judged by."""

    def requests(self, example: int) -> Sequence[Request]:
        """Return what must be asked of the model for one row."""

    def question(self, example: int) -> str:
        """Return the text by which copies of a question are known: the last words of its prompt.

        Examples that put the same question are one piece of evidence, whatever their answers.
        """

    def gold(self, example: int) -> str | None:
        """Return the right answer in words, None where the task has none."""

    def lacks(self, example: int) -> str | None:
        """Say what an example lacks to be judged; None if nothing."""

    def without(self, examples: Collection[int]) -> "Task":
        """Return the task without these examples; the others are numbered anew."""

    def choice(self, example: int) -> int | None:
        """Return the number of the right choice, None where the model picks among none."""

    def margin(self, example: int, responses: Sequence[Response]) -> float:
        """Return by how much the right choice is likelier than the likeliest other one, in nats."""

    def item(self, example: int, responses: Sequence[Response]) -> Any:
        """Return the task's own per-example result: what its metric aggregates."""

    def outcome(self, item: Any) -> float:
        """One row's outcome; higher is better, whatever the metric."""

    def score(self, examples: Sequence[int], items: Sequence[Any]) -> Score:
        """Return the task's own aggregate of its items."""

    def first(self, limit: int | None) -> list[int]:
        """Return the numbers of the first `limit` examples, None: of all, for a final score."""

    def show(self, example: int, responses: Sequence[Response]) -> Shown:
        """Prompt, gold answer and the model's answer, for people."""
