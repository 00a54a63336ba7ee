"""The mean of several tasks, each scored by its own metric: the heads paper's `gen`."""

from collections.abc import Sequence
from typing import Any

from caploc.errors import BadOption
from caploc.tasks.harness import HarnessTask, digest, mean_of_scores
from caploc.tasks.requests import Request, Response
from caploc.tasks.task import Score, Shown


class Mixture:
    """Several tasks as one; their examples are numbered through, and its score is their mean.

    An item is `[part, item of that part]`, which JSON keeps as it is.
    """

    def __init__(self, name: str, parts: Sequence[HarnessTask]) -> None:
        """Join the parts.

        Raises:
            BadOption: if one is better when higher and another when lower.
        """
        self.name, self.parts = name, list(parts)
        self.places = [
            (part, example) for part, task in enumerate(parts) for example in range(task.size)
        ]
        self.outcome_kind = parts[0].outcome_kind
        metrics = sorted({part.metric for part in parts})
        logprob = self.outcome_kind == "logprob"
        self.metric = "logprob" if logprob else f"mean of {' and '.join(metrics)}"
        self.higher_is_better = parts[0].higher_is_better
        self.version = digest([[part.name, part.version] for part in parts])
        self.executes_code = any(part.executes_code for part in parts)
        if len({part.higher_is_better for part in parts}) > 1:
            raise BadOption(
                f"The tasks of {name} cannot be averaged: some of their metrics "
                f"({', '.join(metrics)}) are better when higher and some when lower."
            )

    def in_metric(self) -> "Mixture":
        """The same mixture with its tasks' own metrics as the outcome."""
        if self.outcome_kind == "metric":
            return self
        return Mixture(self.name, [part.in_metric() for part in self.parts])

    def in_likelihood(self) -> "Mixture | None":
        """The same mixture with log-probabilities as the outcome, if all of its tasks have them."""
        parts = [part.in_likelihood() for part in self.parts]
        known = [part for part in parts if part is not None]
        return Mixture(self.name, known) if len(known) == len(parts) else None

    @property
    def size(self) -> int:
        """Number of examples."""
        return len(self.places)

    @property
    def chance(self) -> float:
        """The mean outcome of guessing over examples, of which a large part has more."""
        return sum(part.chance * part.size for part in self.parts) / max(self.size, 1)

    def key(self, example: int) -> str:
        """A digest of everything the example asks and is judged by."""
        part, place = self.places[example]
        return digest([self.parts[part].name, self.parts[part].key(place)])

    def requests(self, example: int) -> Sequence[Request]:
        """What must be asked for one row."""
        part, place = self.places[example]
        return self.parts[part].requests(place)

    def item(self, example: int, responses: Sequence[Response]) -> list[Any]:
        """The part that the example is from, and its own per-example result."""
        part, place = self.places[example]
        return [part, self.parts[part].item(place, responses)]

    def outcome(self, item: Any) -> float:
        """The outcome that the part makes of its item."""
        task: HarnessTask = self.parts[item[0]]
        return task.outcome(item[1])

    def first(self, limit: int | None) -> list[int]:
        """The examples of a final score: those of every part, `limit` of each of its tasks."""
        numbers = {place: number for number, place in enumerate(self.places)}
        return [
            numbers[part, example]
            for part, task in enumerate(self.parts)
            for example in task.first(limit)
        ]

    def score(self, examples: Sequence[int], items: Sequence[Any]) -> Score:
        """The plain mean of the parts' own scores; a part without an example is left out."""
        asked: list[list[int]] = [[] for _ in self.parts]
        own: list[list[Any]] = [[] for _ in self.parts]
        for example, (part, item) in zip(examples, items, strict=True):
            asked[part].append(self.places[example][1])
            own[part].append(item)
        scores = [
            task.score(numbers, results)
            for task, numbers, results in zip(self.parts, asked, own, strict=True)
            if numbers
        ]
        mean, stderr = mean_of_scores([s.score for s in scores], [s.stderr for s in scores])
        return Score(mean, stderr, len(items))

    def show(self, example: int, responses: Sequence[Response]) -> Shown:
        """Prompt, gold answer and the model's answer."""
        part, place = self.places[example]
        return self.parts[part].show(place, responses)

    def extracted(self, example: int, responses: Sequence[Response]) -> str | None:
        """What the part's filter takes out of the answer, None if it finds nothing."""
        part, place = self.places[example]
        return self.parts[part].extracted(place, responses)
