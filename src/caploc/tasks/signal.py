"""How strongly a model holds on to its right answers: what the default search scans."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from caploc.errors import BadOption
from caploc.result import Score
from caploc.tasks.harness import digest_json, mean_score
from caploc.tasks.task import (
    Example,
    Generate,
    Generated,
    LogLikelihood,
    Metric,
    Request,
    Response,
    Rolling,
    Scored,
    Task,
    weigh_choices,
)


@dataclass(frozen=True)
class Signal:
    """A task whose outcome is the log-probability of what the intact model rightly answers.

    Of a written answer that is the model's own text and the stop string that ended it, read in one
    pass in the tokens that it wrote: its own words and spelling, not the canonical ones, are what a
    knockout must not change. Of a choice it is the log of the chance of the right choice between it
    and the likeliest other one. Any other outcome is its own signal (`linear`). An item is
    `[signal, kept]`: whether the answer is still the one that the model would give, None where that
    cannot be told from the pass.
    `answers` holds the intact model's responses by example.
    """

    task: Task
    answers: Mapping[int, Sequence[Response]]

    metric = Metric("signal", "signal")

    @property
    def name(self) -> str:
        return self.task.name

    @property
    def version(self) -> str:
        return self.task.version

    @property
    def size(self) -> int:
        return self.task.size

    @cached_property
    def linear(self) -> bool:
        """Whether the signal is the task's own outcome, and not a log-probability."""
        example = next(iter(self.answers), None)
        if example is None or self.task.metric.kind != "metric":
            return True
        first, *others = self.task.requests(example)
        if isinstance(first, Rolling):
            return True
        if others:
            return self.task.example(example).right is None
        return isinstance(first, LogLikelihood) and not self.task.metric.name.startswith("acc")

    def in_metric(self) -> Task:
        return self.task.in_metric()

    def without(self, examples: Collection[int]) -> "Signal":
        left = [example for example in range(self.size) if example not in examples]
        answers = {n: self.answers[e] for n, e in enumerate(left) if e in self.answers}
        return Signal(self.task.without(examples), answers)

    def example(self, example: int) -> Example:
        return self.task.example(example)

    def key(self, example: int) -> str:
        return digest_json([self.task.key(example), *map(repr, self.requests(example))])

    def requests(self, example: int) -> Sequence[Request]:
        requests = self.task.requests(example)
        first = requests[0]
        if not isinstance(first, Generate):
            return requests
        said = self.answers[example][0]
        if not isinstance(said, Generated):
            raise BadOption(f"Example {example} of {self.name} has no written answer to score.")
        return (LogLikelihood(first.prompt, said.text + (said.end or ""), said.said),)

    def item(self, example: int, responses: Sequence[Response]) -> list[float | bool | None]:
        first = responses[0]
        assert isinstance(first, Scored)
        if self.linear:
            return [self.task.outcome(self.task.item(example, responses)), None]
        if len(responses) == 1:
            return [first.logprob, first.greedy]
        margin = margin_of(self.task.example(example), responses)
        return [-math.log1p(math.exp(-margin)) if margin > -700 else margin, margin > 0]

    def outcome(self, item: Any) -> float:
        return float(item[0])

    def score(self, examples: Sequence[int], items: Sequence[Any]) -> Score:
        return mean_score([self.outcome(item) for item in items])

    def first(self, limit: int | None) -> list[int]:
        return self.task.first(limit)


def margin_of(example: Example, responses: Sequence[Response]) -> float:
    """Return by how much the right choice is likelier than the likeliest other one, in nats.

    Where the metric divides by the choices' lengths, so does this; the unit stays that of a choice
    of mean length. Raises BadOption if it is not known which choice is right.
    """
    if example.right is None:
        raise BadOption(f"Which choice is right is not known of {example.question!r}.")
    likelihood = np.array(weigh_choices(example, responses))
    if example.lengths:
        likelihood *= np.maximum(example.lengths, 1).mean()
    return float(likelihood[example.right] - np.delete(likelihood, example.right).max())
