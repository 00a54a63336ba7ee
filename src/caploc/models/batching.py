"""How many rows go into a batch: from the memory there is, halved when that was too many."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import psutil
import torch
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size
from transformers import PreTrainedModel

from caploc.errors import OutOfMemory

T = TypeVar("T")
R = TypeVar("R")
SHARE = 0.5  # of the free memory; the rest is for activations and other processes
MOST_ROWS = {"cpu": 256, "mps": 128, "cuda": 1024}
ACTIVATIONS = 24  # hidden-sized vectors alive per token while a layer runs, gates included


class BatchSizer:
    """Decides the rows of a batch from their lengths; shrinks for good after out-of-memory."""

    def __init__(self, model: PreTrainedModel, rows: int | None = None) -> None:
        """Size for this model; `rows` sets the largest batch by hand."""
        self.model = model
        self.most = rows or MOST_ROWS.get(model.device.type, 64)
        self.token_bytes = bytes_per_token(model)
        self.scored_bytes = bytes_per_scored_token(model)
        self.caution = 1  # doubled whenever a batch did not fit

    def rows(self, length: int, scored: int = 1) -> int:
        """Rows that fit when each has `length` tokens, and logits kept for `scored` of them."""
        budget = SHARE * free_memory(self.model.device) / self.caution
        each = self.token_bytes * max(length, 1) + self.scored_bytes * scored
        return int(max(1, min(self.most, budget // each)))

    def batches(
        self, items: Sequence[T], size: Callable[[T], tuple[int, int]]
    ) -> Iterator[list[T]]:
        """Cut `items`, longest first, into batches; the size is asked anew for each.

        `size` gives an item's tokens, and how many of them keep their logits.
        """
        done = 0
        while done < len(items):
            batch = list(items[done : done + self.rows(*size(items[done]))])
            done += len(batch)
            yield batch

    def run(self, work: Callable[[list[T]], list[R]], batch: list[T]) -> list[R]:
        """Do the work, in halves if the batch does not fit.

        Raises:
            OutOfMemory: if a single row does not fit.
        """
        try:
            return work(batch)
        except Exception as error:
            if not should_reduce_batch_size(error):
                raise
            if len(batch) == 1:
                raise OutOfMemory(
                    f"Not even one row fits into the memory of {self.model.device}; use a smaller "
                    "dtype (--dtype bfloat16), fewer examples in the prompt, or a larger device."
                ) from error
        # Outside the handler: the failed batch's tensors are held by the exception until here.
        clear_device_cache(garbage_collection=True)
        half = len(batch) // 2
        self.caution *= 2
        return self.run(work, batch[:half]) + self.run(work, batch[half:])


def bytes_per_token(model: PreTrainedModel) -> int:
    """Memory that one token of one row takes: its keys and values, and a layer's activations."""
    config: Any = model.config.get_text_config()
    layers, hidden = config.num_hidden_layers, config.hidden_size
    heads = getattr(config, "num_attention_heads", None) or 1
    groups = getattr(config, "num_key_value_heads", None) or heads
    width = getattr(config, "head_dim", None) or hidden // (
        heads if isinstance(heads, int) else max(heads)
    )
    groups = groups if isinstance(groups, int) else max(groups)
    size = model.dtype.itemsize
    return size * (2 * layers * groups * width + ACTIVATIONS * hidden)


def bytes_per_scored_token(model: PreTrainedModel) -> int:
    """Memory of one position's logits, as the model gives them and in float32."""
    return int(model.config.get_text_config().vocab_size) * (model.dtype.itemsize + 4)


def free_memory(device: torch.device) -> int:
    """Bytes that can still be taken on the device."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + kept)
    return int(psutil.virtual_memory().available)
