"""What a task asks of a model, what comes back, and what caploc needs to know of a task."""

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

from caploc.result import READ_OFF, Score


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
class Metric:
    """What the outcome of a task's row is: its own metric, or a log-probability, or a signal.

    `chance` is the mean outcome of guessing; 0 where nothing is offered to guess among. With
    `runs_code` an item is what a program that the model wrote does in the sandbox.
    """

    name: str
    kind: str = "metric"  # or logprob, or signal
    higher_is_better: bool = True
    chance: float = 0.0
    runs_code: bool = False


@dataclass(frozen=True, slots=True)
class Example:
    """An example before it is answered; None is what the task has not, or does not tell.

    By `question`, the last words of the prompt, copies are known: they are one piece of evidence,
    whatever their answers. `lacks` says what is missing to judge an answer. `choices` are the
    answers offered, the one with the number `right` is right, and the metric divides their
    log-probabilities by `lengths`, if there are any, or takes from each (`mutual`) what it is
    without the question, which is asked after all of them.
    """

    question: str
    gold: str | None = None
    lacks: str | None = None
    right: int | None = None
    choices: tuple[str, ...] = ()
    lengths: tuple[int, ...] = ()
    mutual: bool = False


@runtime_checkable
class Task(Protocol):
    """A capability's evaluation set: text in, numbers out."""

    @property
    def name(self) -> str: ...
    @property
    def metric(self) -> Metric: ...
    @property
    def version(self) -> str:
        """Everything that can change an outcome besides the example and its responses."""

    @property
    def size(self) -> int:
        """Number of examples."""

    def in_metric(self) -> "Task":
        """Return the same task with its own metric as the outcome."""

    def key(self, example: int) -> str:
        """Return a digest of everything the example asks and is judged by."""

    def requests(self, example: int) -> Sequence[Request]:
        """Return what must be asked of the model for one row."""

    def example(self, example: int) -> Example:
        """Return what is known of an example."""

    def without(self, examples: Collection[int]) -> "Task":
        """Return the task without these examples; the others are numbered anew."""

    def item(self, example: int, responses: Sequence[Response]) -> Any:
        """Return the task's own per-example result: what its metric aggregates."""

    def outcome(self, item: Any) -> float:
        """One row's outcome; higher is better, whatever the metric."""

    def score(self, examples: Sequence[int], items: Sequence[Any]) -> Score:
        """Return the task's own aggregate of its items."""

    def first(self, limit: int | None) -> list[int]:
        """Return the numbers of the first `limit` examples, None: of all, for a final score."""


def write_answer(example: Example, responses: Sequence[Response]) -> str:
    """Write what a model answered: its text, its choice, or how likely the right answer is."""
    first = responses[0]
    if isinstance(first, Generated):
        return first.text
    if len(responses) == 1:
        instead = f" (its first choice is {first.instead!r})" if first.instead else ""
        said = " (its first choice)" if first.greedy else instead
        return f"{READ_OFF}{first.logprob:.2f}{said}"
    likelihoods = weigh_choices(example, responses)
    best = likelihoods.index(max(likelihoods))
    return example.choices[best] if best < len(example.choices) else f"choice {best}"


def choices_of(example: Example, responses: Sequence[Response]) -> list[Scored]:
    """Return the responses of the choices: a metric may ask for more, after all of them."""
    asked = responses[: len(example.choices) or None]
    return [each for each in asked if isinstance(each, Scored)]


def weigh_choices(example: Example, responses: Sequence[Response]) -> list[float]:
    """Return what the metric compares of each choice, in nats, or nats per unit of length."""
    weights = [each.logprob for each in choices_of(example, responses)]
    if example.lengths:
        return [each / max(size, 1) for each, size in zip(weights, example.lengths, strict=True)]
    if example.mutual:
        alone = [each.logprob for each in responses[len(weights) :] if isinstance(each, Scored)]
        return [each - without for each, without in zip(weights, alone, strict=True)]
    return weights
