"""Attention over packed rows: many rows of different lengths, one after another in one sequence.

Everything else in a decoder works token by token, so that rows packed end to end need no padding.
Attention alone must know which token belongs to which row. transformers hands every attention
layer's queries, keys and values to the function its config names; the one registered here passes
them to whatever `Switch.attending` has set for this thread: a `Reading` or a `Step`.

Axes: `tokens` are those of all rows of the pass; `heads` query heads; `groups` key-value heads.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from caploc.engine.keys import Keys
from caploc.errors import ModelBusy

NAME = "caploc_packed"
# What some models hand to attention that packed attention does not know, and refuses.
UNKNOWN = ("softcap", "s_aux", "position_bias", "head_mask")
Queries = Float[Tensor, "heads tokens width"]


class Unsupported(Exception):
    """The model asks something of attention that packed attention does not know."""


@runtime_checkable
class Attention(Protocol):
    """Answers one pass's queries, layer by layer."""

    def attend(
        self, layer: int, queries: Queries, keys: Keys, values: Keys, scale: float
    ) -> Float[Tensor, "tokens heads width"]:
        """What each head reads for each token."""
        ...


_local = threading.local()
_making = threading.Lock()
_locks: "WeakKeyDictionary[PreTrainedModel, threading.RLock]" = WeakKeyDictionary()
BUSY = (
    "Another thread runs knocked-out rows through this model; wait until it has its answers, or "
    "load the model once for each thread."
)


class Switch:
    """Sets a model's attention function, for which transformers looks into its configs.

    What `set_attn_implementation` does, without going through all modules in every pass.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        """Find every config that the model's modules look into."""
        configs = (getattr(module, "config", None) for module in model.modules())
        found = {id(config): config for config in configs if config is not None}
        self.configs: list[Any] = list(found.values())
        with _making:
            self.lock = _locks.setdefault(model, threading.RLock())
        self.usual = [config._attn_implementation for config in self.configs]

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Inside the block, no other thread can change how the model runs.

        Raises:
            ModelBusy: if one does now.
        """
        if not self.lock.acquire(blocking=False):
            raise ModelBusy(BUSY)
        try:
            yield
        finally:
            self.lock.release()

    @contextmanager
    def attending(self, attention: Attention) -> Iterator[None]:
        """Inside the block, this thread's forward passes of the model use `attention`.

        Raises:
            ModelBusy: if another thread is inside such a block; in another thread's forward pass.
        """
        with self.alone():
            for config in self.configs:
                config._attn_implementation = NAME
            _local.attention = attention
            try:
                yield
            finally:
                _local.attention = None
                for config, usual in zip(self.configs, self.usual, strict=True):
                    config._attn_implementation = usual


def _packed(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    for name in UNKNOWN:
        if others.get(name) is not None:
            raise Unsupported(f"attention with {name}")
    attention = getattr(_local, "attention", None)
    if attention is None:
        raise ModelBusy(BUSY)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer: Any = module.layer_idx
    read = attention.attend(layer, query[0], key[0], value[0], scale)
    return read[None], None


AttentionInterface.register(NAME, _packed)


def partial(
    queries: Float[Tensor, "rows groups asked width"],
    keys: Float[Tensor, "rows groups tokens width"],
    values: Float[Tensor, "rows groups tokens read"],
    scale: float,
    bias: Float[Tensor, "..."] | None,
) -> tuple[Float[Tensor, "rows groups asked read"], Float[Tensor, "rows groups asked"]]:
    """Attention to a part of the tokens, and the logarithm of the weight that the part deserves.

    On a CPU this is the kernel behind `scaled_dot_product_attention`, which hides the second.
    """
    if queries.device.type == "cpu":
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            queries, keys, values, 0.0, False, attn_mask=bias, scale=scale
        )
    scores = ((queries * scale) @ keys.transpose(-1, -2)).float()
    if bias is not None:
        scores += bias
    weights = scores.softmax(-1).to(values.dtype)
    return weights @ values, scores.logsumexp(-1)


def together(
    asked: Float[Tensor, "rows groups asked width"], keys: Keys, values: Keys, scale: float
) -> tuple[Float[Tensor, "rows groups asked read"], Float[Tensor, "rows groups asked"]]:
    """`partial` attention of many rows to one segment, in one product for all of them."""
    everyone = asked.transpose(0, 1).flatten(1, 2)[None]
    read, weight = partial(everyone, keys[None], values[None], scale, None)
    shape = (len(asked), -1)
    return split(read[0], 1, shape).transpose(0, 1), split(weight[0], 1, shape).transpose(0, 1)


def merged(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> Tensor:
    """Attention to two parts, from the attention to each; a part of weight -inf counts nothing."""
    (read, weight), (other, other_weight) = first, second
    share = torch.sigmoid(weight - other_weight)[..., None].to(read.dtype)
    return other + share * (read - other)


def split(tensor: Tensor, axis: int, shape: tuple[int, int]) -> Tensor:
    """One axis as two; -1 stands for what is left."""
    parts: Tensor = tensor.unflatten(axis, shape)
    return parts


def grouped(queries: Float[Tensor, "rows heads tokens width"], groups: int) -> Tensor:
    """Queries of all heads that read one key-value head, side by side: rows groups asked width."""
    return split(queries, 1, (groups, -1)).flatten(2, 3)


def ungrouped(read: Float[Tensor, "rows groups asked width"], tokens: int) -> Tensor:
    """What `grouped` queries read, head by head: rows heads tokens width."""
    return split(read, 2, (-1, tokens)).flatten(1, 2)


def bias_of(seen: Bool[Tensor, "..."], dtype: torch.dtype) -> Tensor:
    """0 where a token is seen, minus infinity where it is not."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)
