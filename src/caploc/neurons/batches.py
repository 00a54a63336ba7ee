"""Examples as padded batches for forward and backward passes, and what gold answers are worth.

What of an answer is attributed to neurons is a *target*: one number for each example, higher is
better. The paper's own is not known to us; the mean log-probability of the gold answer is our
default, and the probability of its first token is what knowledge neurons use.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor
from transformers import PreTrainedModel

from caploc.engine.encoding import Span
from caploc.engine.memory import BatchSizer, DecoderShape, bytes_per_scored_token

R = TypeVar("R")
MOST_TOKENS = {"cpu": 4096, "mps": 8192}
MOST_TOKENS_ELSEWHERE = 32768
KEPT = 3  # working memory that a backward pass needs, in that of the forward pass of one layer


@dataclass(frozen=True)
class Batch:
    """Examples side by side, padded on the right: a causal model's positions never see padding.

    Row i reads `tokens[i, : lengths[i]]`; the tokens `gold` are to be predicted at positions
    `places`, `rows` says whose they are.
    """

    tokens: Int[Tensor, "rows time"]
    lengths: Int[Tensor, " rows"]
    rows: Int[Tensor, " predicted"]
    places: Int[Tensor, " predicted"]
    gold: Int[Tensor, " predicted"]

    @classmethod
    def of(cls, spans: Sequence[Span], device: torch.device) -> "Batch":
        """Pad the inputs of some spans; their continuations are what is to be predicted."""
        lengths = torch.tensor([len(span.inputs) for span in spans])
        tokens = torch.zeros((len(spans), int(lengths.max())), dtype=torch.long)
        rows: list[int] = []
        places: list[int] = []
        gold: list[int] = []
        for number, span in enumerate(spans):
            tokens[number, : len(span.inputs)] = torch.tensor(span.inputs)
            count = len(span.continuation)
            rows += [number] * count
            places += range(len(span.inputs) - count, len(span.inputs))
            gold += span.continuation
        numbers = [torch.tensor(values) for values in (rows, places, gold)]
        return cls(*(each.to(device) for each in (tokens, lengths, *numbers)))

    @property
    def size(self) -> int:
        return len(self.tokens)

    @property
    def real(self) -> Bool[Tensor, "rows time"]:
        """Positions that are no padding."""
        time = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return time < self.lengths[:, None]

    @property
    def predicting(self) -> Bool[Tensor, "rows time"]:
        """Positions at which an answer's tokens are predicted."""
        chosen = torch.zeros_like(self.tokens, dtype=torch.bool)
        chosen[self.rows, self.places] = True
        return chosen

    @property
    def last_of_prompt(self) -> Bool[Tensor, "rows time"]:
        """The position at which each answer's first token is predicted."""
        first = torch.full((self.size,), self.tokens.shape[1], device=self.tokens.device)
        first = first.scatter_reduce(0, self.rows, self.places, "amin")
        chosen = torch.zeros_like(self.tokens, dtype=torch.bool)
        chosen[torch.arange(self.size, device=first.device), first] = True
        return chosen

    def repeated(self, times: int) -> "Batch":
        """Repeat the whole batch, copy after copy."""
        copies = torch.arange(times, device=self.rows.device).repeat_interleave(len(self.rows))
        return Batch(
            self.tokens.repeat(times, 1),
            self.lengths.repeat(times),
            self.rows.repeat(times) + copies * self.size,
            self.places.repeat(times),
            self.gold.repeat(times),
        )


class Batcher:
    """Cuts examples into batches that fit, and halves them for good when one did not."""

    def __init__(self, model: PreTrainedModel, most_rows: int | None = None) -> None:
        """Batch for passes of this model that keep what a backward pass needs."""
        shape = DecoderShape.of(model)
        self.device = model.device
        self.sizer = BatchSizer(model, most_rows)
        self.token_bytes = shape.layers * shape.working * KEPT
        self.scored_bytes = 2 * bytes_per_scored_token(model)
        self.most_tokens = MOST_TOKENS.get(model.device.type, MOST_TOKENS_ELSEWHERE)

    def rows(self, span: Span, copies: int) -> int:
        """Count the examples as long as this one that fit, each `copies` times."""
        length = len(span.inputs)
        each = self.token_bytes * length + self.scored_bytes * len(span.continuation)
        fitting = min(self.sizer.budget() // (each * copies), self.most_tokens // (length * copies))
        return int(max(1, min(self.sizer.most, fitting)))

    def run(
        self, spans: Sequence[Span], work: Callable[[Batch], list[R]], copies: int = 1
    ) -> Iterator[tuple[list[int], list[R]]]:
        """Work on every example once, longest first; yields their numbers and results."""
        order = sorted(range(len(spans)), key=lambda number: -len(spans[number].inputs))
        done = 0
        while done < len(order):
            chosen = order[done : done + self.rows(spans[order[done]], copies)]
            done += len(chosen)
            results = self.sizer.run(
                lambda part: work(Batch.of([spans[number] for number in part], self.device)),
                chosen,
            )
            yield chosen, results


def gold_logprobs(model: PreTrainedModel, batch: Batch) -> Float[Tensor, " predicted"]:
    """Compute the log-probability of every gold token, in nats, in float32 whatever the dtype."""
    given: dict[str, Any] = {"input_ids": batch.tokens, "attention_mask": batch.real.long()}
    places = batch.places
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        needed, places = torch.unique(batch.places, return_inverse=True)
        given["logits_to_keep"] = needed
    logits = model(**given, use_cache=False).logits[batch.rows, places]
    return logits.float().log_softmax(-1).gather(1, batch.gold[:, None])[:, 0]


def mean_logprob(batch: Batch, logprobs: Float[Tensor, " predicted"]) -> Float[Tensor, " rows"]:
    """Average the log-probability of gold tokens: minus the loss that tuning minimises, in nats."""
    return sum_logprob(batch, logprobs) / sum_logprob(batch, torch.ones_like(logprobs))


def sum_logprob(batch: Batch, logprobs: Float[Tensor, " predicted"]) -> Float[Tensor, " rows"]:
    """Add up the log-probabilities of the whole answer, in nats."""
    return logprobs.new_zeros(batch.size).index_add(0, batch.rows, logprobs)


def first_probability(
    batch: Batch, logprobs: Float[Tensor, " predicted"]
) -> Float[Tensor, " rows"]:
    """Take the probability of the answer's first token."""
    first = torch.ones_like(batch.rows, dtype=torch.bool)
    first[1:] = batch.rows[1:] != batch.rows[:-1]
    return logprobs[first].exp()


Target = Callable[[Batch, Tensor], Tensor]
TARGETS: dict[str, Target] = {
    "logprob": mean_logprob,
    "logprob-sum": sum_logprob,
    "probability": first_probability,
}


@torch.no_grad()
def gold_means(model: PreTrainedModel, spans: Sequence[Span]) -> Float64[np.ndarray, " examples"]:
    """Average each span's log-probability over its continuation's tokens, in the given order."""
    means = np.full(len(spans), np.nan)

    def work(batch: Batch) -> list[float]:
        return mean_logprob(batch, gold_logprobs(model, batch).double()).tolist()

    for numbers, found in Batcher(model).run(spans, work):
        means[numbers] = found
    return means
