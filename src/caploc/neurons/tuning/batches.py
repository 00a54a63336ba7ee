"""Spans of tokens as batches to learn from: which, in what order, and how they are padded."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from caploc.designs import generator
from caploc.engine.wording import Span
from caploc.errors import BadData


@dataclass(frozen=True)
class Batch:
    """Rows padded on the right, and where in them which gold answer tokens are predicted.

    `attention` is 1 at tokens and 0 at padding. Answer token i is predicted in row `rows[i]` at
    position `positions[i]`, and is `targets[i]`.
    """

    inputs: Int[Tensor, "rows tokens"]
    attention: Int[Tensor, "rows tokens"]
    rows: Int[Tensor, " answers"]
    positions: Int[Tensor, " answers"]
    targets: Int[Tensor, " answers"]

    @property
    def tokens(self) -> int:
        """Number of tokens read, padding left out."""
        return int(self.attention.sum())


def collate(spans: Sequence[Span], device: torch.device) -> Batch:
    """Pad spans into one batch; every position of a continuation is a target, no other is."""
    longest = max(len(span.inputs) for span in spans)
    inputs = torch.zeros((len(spans), longest), dtype=torch.long)
    attention = torch.zeros_like(inputs)
    rows, positions, targets = list[int](), list[int](), list[int]()
    for row, span in enumerate(spans):
        length, answer = len(span.inputs), len(span.continuation)
        inputs[row, :length] = torch.tensor(span.inputs)
        attention[row, :length] = 1
        rows += [row] * answer
        positions += range(length - answer, length)
        targets += span.continuation
    told = (torch.tensor(each, device=device) for each in (rows, positions, targets))
    return Batch(inputs.to(device), attention.to(device), *told)


def log_probabilities(model: PreTrainedModel, batch: Batch) -> Float[Tensor, " answers"]:
    """The log-probability of each gold answer token, given the gold ones before it; float32.

    Logits before the first answer are not computed where the model allows it.
    """
    first = int(batch.positions.min())
    spared: dict[str, Tensor] = {}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        length = batch.inputs.shape[1]
        spared["logits_to_keep"] = torch.arange(first, length, device=batch.inputs.device)
    logits = model(
        input_ids=batch.inputs, attention_mask=batch.attention, use_cache=False, **spared
    ).logits
    offset = first if spared else 0
    predicted = logits[batch.rows, batch.positions - offset].float()
    return -functional.cross_entropy(predicted, batch.targets, reduction="none")


@torch.no_grad()
def gold_log_probabilities(
    model: PreTrainedModel, spans: Sequence[Span], batch_size: int = 32
) -> Float64[np.ndarray, " examples"]:
    """For each span the mean log-probability of its continuation's tokens, in the given order."""
    means = np.full(len(spans), np.nan)
    ordered = sorted(range(len(spans)), key=lambda number: len(spans[number].inputs))
    for start in range(0, len(ordered), batch_size):
        numbers = ordered[start : start + batch_size]
        batch = collate([spans[number] for number in numbers], model.device)
        found = log_probabilities(model, batch).double()
        sums = torch.zeros(len(numbers), dtype=torch.float64, device=found.device)
        sums.index_add_(0, batch.rows, found)
        lengths = torch.bincount(batch.rows, minlength=len(numbers))
        means[numbers] = (sums / lengths).cpu().numpy()
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
