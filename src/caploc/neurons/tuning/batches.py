"""Spans of tokens to learn from and to be judged by: which, and in what order."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float64
from transformers import PreTrainedModel

from caploc.designs import generator
from caploc.engine.encoding import Span
from caploc.errors import BadData
from caploc.neurons.batches import Batch
from caploc.neurons.targets import gold_logprobs, mean_logprob


@torch.no_grad()
def gold_log_probabilities(
    model: PreTrainedModel, spans: Sequence[Span], batch_size: int = 32
) -> Float64[np.ndarray, " examples"]:
    """For each span the mean log-probability of its continuation's tokens, in the given order."""
    means = np.full(len(spans), np.nan)
    ordered = sorted(range(len(spans)), key=lambda number: len(spans[number].inputs))
    for start in range(0, len(ordered), batch_size):
        numbers = ordered[start : start + batch_size]
        batch = Batch.of([spans[number] for number in numbers], model.device)
        found = mean_logprob(batch, gold_logprobs(model, batch).double())
        means[numbers] = found.cpu().numpy()
    return means


def split(
    spans: Sequence[Span], share: float, seed: int
) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    """A part to train on and a random part, `share` of all and at least one, to choose by.

    Raises:
        BadData: if there are fewer than 2 spans.
    """
    if len(spans) < 2:
        raise BadData(
            f"{len(spans)} training examples cannot be split into some to train on and some to "
            "choose the learning rate by; give at least 2, and better 100."
        )
    held_out = min(max(1, round(share * len(spans))), len(spans) - 1)
    order = generator(seed).permutation(len(spans)).tolist()
    return tuple(spans[i] for i in order[held_out:]), tuple(spans[i] for i in order[:held_out])


def batches(spans: Sequence[Span], size: int, count: int, seed: int) -> list[tuple[Span, ...]]:
    """Batches of `size` spans, each span once before any comes again, each round in a new order.

    Asking for more keeps the first ones. Fewer spans than `size` make smaller batches.
    """
    size, random = min(size, len(spans)), generator(seed)
    order: list[int] = []
    while len(order) < size * count:
        order += random.permutation(len(spans)).tolist()
    return [tuple(spans[i] for i in order[n * size : (n + 1) * size]) for n in range(count)]
