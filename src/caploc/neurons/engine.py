"""Neurons in the engine: cut while a model answers, and read in passes over examples side by side.

A cut neuron hands on zero, in every position, of prompt and answer alike.

Passes are with gradients or without, in batches that are halved when one does not fit into memory.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from accelerate.utils.memory import clear_device_cache
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from caploc.engine.api import Answer, Ask
from caploc.engine.batch import BatchEngine
from caploc.engine.encoding import Span
from caploc.engine.planning import MOST_ROWS, BatchSizer
from caploc.models.cutting import Projections, knocked_out
from caploc.models.hooks import forward_as, temporary_hooks
from caploc.models.placement import input_device
from caploc.models.projections import decoder_layers, text_config
from caploc.modes import Intervention, Sources
from caploc.neurons.model import NeuronGrid, NeuronModel, as_neurons, find_sites
from caploc.tasks.task import Request, Task


class Erasure(Intervention):
    """Neurons hand on zero once they are erased.

    Rows of neurons are kept apart from those of heads by their question.
    """

    def sources(self, task: Task) -> Sources:
        return Sources("neurons zero", lambda _, requests: [None] * len(requests))


@dataclass(frozen=True)
class NeuronEngine:
    """Answers asks whose masks are sets of neurons, one set after another."""

    inner: BatchEngine[Any]
    loaded: NeuronModel

    @classmethod
    def of(cls, inner: BatchEngine[Any]) -> "NeuronEngine":
        """Find and prove the neurons of a model that is loaded."""
        return cls(inner, as_neurons(inner.loaded, whole=False))

    @property
    def grid(self) -> NeuronGrid:
        return self.loaded.grid

    def misfit(self, request: Request) -> str | None:
        return self.inner.misfit(request)

    def answer(self, asks: Iterable[Ask]) -> Iterator[list[Answer]]:
        """Answer every ask once; those of one set of neurons together."""
        intact = np.zeros(self.inner.grid.size, dtype=bool)
        sets: dict[bytes, list[Ask]] = {}
        for ask in asks:
            sets.setdefault(ask.knocked_out.tobytes(), []).append(ask)
        for members in sets.values():
            with self.cut(members[0]):
                plain = [replace(ask, knocked_out=intact) for ask in members]
                yield from self.inner.answer(plain)

    def cut(self, ask: Ask) -> AbstractContextManager[None]:
        """Cut the neurons of an ask, for a block."""
        masks = torch.from_numpy(np.ascontiguousarray(ask.knocked_out))[None]
        return knocked_out(self.loaded.projections, self.grid, masks)


# What a pass keeps of a token on the way to its gradients, about: vectors in each layer as wide as
# the feed-forward block and as the model. Where a guess is too low, batches are halved; but main
# memory gives no error to tell so, and the guess is a high one.
INNER, HIDDEN = 4, 10
LOGITS = 16  # bytes of each logit: as the model gives it, and in float32 on both ways


@contextmanager
def checkpointed(model: nn.Module, projections: Projections) -> Iterator[None]:
    """Have every layer keep no more than its input for a backward pass, for a block."""
    with ExitStack() as back:
        for layer in decoder_layers(model, projections):
            again = partial(checkpoint, layer.forward, use_reentrant=False)
            back.enter_context(forward_as(layer, again))
        yield


R = TypeVar("R")
MOST_TOKENS = {"cpu": 4096, "mps": 8192}
MOST_TOKENS_ELSEWHERE = 32768


@dataclass(frozen=True)
class Batch:
    """Examples side by side, padded on the right: a causal model's positions never see padding.

    Row i reads `tokens[i, : lengths[i]]`; the tokens `gold` are to be predicted at positions
    `places`, `rows` says whose they are. So many copies of the batch fit into a pass `at_once`
    (None: as many as are wanted).
    """

    tokens: Int[Tensor, "rows time"]
    lengths: Int[Tensor, " rows"]
    rows: Int[Tensor, " predicted"]
    places: Int[Tensor, " predicted"]
    gold: Int[Tensor, " predicted"]
    at_once: int | None = None

    @classmethod
    def of(cls, spans: Sequence[Span], device: torch.device, at_once: int | None = None) -> "Batch":
        """Pad the inputs of some spans; their continuations are what is to be predicted."""
        rows = [torch.tensor(span.inputs, dtype=torch.long) for span in spans]
        tokens = pad_sequence(rows, batch_first=True)
        lengths = torch.tensor([len(row) for row in rows], device=device)
        predicted = [
            (number, len(span.inputs) - len(span.continuation) + place, token)
            for number, span in enumerate(spans)
            for place, token in enumerate(span.continuation)
        ]
        rows, places, gold = torch.tensor(predicted, device=device).T.contiguous()
        return cls(tokens.to(device), lengths, rows, places, gold, at_once)

    @property
    def size(self) -> int:
        return len(self.tokens)

    @property
    def real(self) -> Bool[Tensor, "rows time"]:
        """Positions that are no padding."""
        time = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return time < self.lengths[:, None]

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
    """Cuts examples into batches that fit, and halves them for good when one did not.

    Where not even one example fits as often as it is to stand in a pass, its copies are shared
    among several.
    """

    def __init__(
        self, model: PreTrainedModel, most_rows: int | None = None, memory: int | None = None
    ) -> None:
        """Batch for passes that take `memory` bytes beside the weights at most.

        None is half of what is free, or nearly all on a GPU.
        """
        config: Any = text_config(model)
        inner, hidden = max(find_sites(model)[1].neurons_per_layer), config.hidden_size
        self.device = input_device(model)
        self.sizer = BatchSizer(model, most_rows or MOST_ROWS.get(self.device.type), memory)
        layers = config.num_hidden_layers
        self.token_bytes = layers * (INNER * inner + HIDDEN * hidden) * model.dtype.itemsize
        self.logit_bytes = LOGITS * config.vocab_size
        self.most_tokens = MOST_TOKENS.get(self.device.type, MOST_TOKENS_ELSEWHERE)

    def row_bytes(self, span: Span) -> int:
        """Guess what a pass takes of memory for an example."""
        return int(self.token_bytes * len(span.inputs) + self.logit_bytes * len(span.continuation))

    def fitting(self, span: Span) -> int:
        """Count the rows as long as this one that a pass may have."""
        by_memory = self.sizer.budget() // self.row_bytes(span)
        return int(min(by_memory, self.most_tokens // len(span.inputs), self.sizer.most))

    def rows(self, span: Span, copies: int) -> int:
        """Count the examples as long as this one that fit, each `copies` times."""
        return max(1, self.fitting(span) // copies)

    def at_once(self, span: Span, rows: int, copies: int) -> int:
        """Count the copies of so many rows as long as this one that fit into a pass."""
        return max(1, min(copies, self.fitting(span) // rows))

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
                lambda part: self.work(work, [spans[number] for number in part], copies), chosen
            )
            yield chosen, results

    def work(self, work: Callable[[Batch], list[R]], spans: Sequence[Span], copies: int) -> list[R]:
        """Work on a batch; on a single example with fewer copies in a pass until these fit."""
        at_once = self.at_once(spans[0], len(spans), copies)
        try:
            return work(Batch.of(spans, self.device, at_once))
        except Exception as error:
            if len(spans) > 1 or at_once == 1:
                raise
            self.sizer.shrink(error, smallest=False)
        # Outside the handler: the failed pass's tensors are held by the exception until here.
        clear_device_cache(garbage_collection=True)
        return self.work(work, spans, at_once // 2)


def gold_logprobs(model: PreTrainedModel, batch: Batch) -> Float[Tensor, " predicted"]:
    """Compute the log-probability of every gold token, in nats, in float32 whatever the dtype."""
    head = model.get_output_embeddings()

    def pick_predicting(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        read, *rest = args
        # a row for each token that is predicted, so that no logits are made of any other place
        return (read[batch.rows.to(read.device), batch.places.to(read.device)][None], *rest)

    with temporary_hooks([head.register_forward_pre_hook(pick_predicting)]):
        logits = model(
            input_ids=batch.tokens, attention_mask=batch.real.long(), use_cache=False
        ).logits[0]
    gold = batch.gold.to(logits.device)[:, None]
    return logits.float().log_softmax(-1).gather(1, gold)[:, 0].to(batch.rows.device)


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


@torch.no_grad()
def gold_means(model: PreTrainedModel, spans: Sequence[Span]) -> Float64[np.ndarray, " examples"]:
    """Average each span's log-probability over its continuation's tokens, in the given order."""
    means = np.full(len(spans), np.nan)

    def work(batch: Batch) -> list[float]:
        return mean_logprob(batch, gold_logprobs(model, batch).double()).tolist()

    for numbers, found in Batcher(model).run(spans, work):
        means[numbers] = found
    return means
