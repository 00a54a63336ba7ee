"""Attention over packed rows: many rows of different lengths, one after another in one sequence.

Everything else in a decoder works token by token, so that rows packed end to end need no padding.
Attention alone must know which token belongs to which row. transformers hands every attention
layer's queries, keys and values to the function its config names; the one registered here passes
them to whatever `Switch.attending` has set for this thread.

Axes: `tokens` are those of all rows of the pass; `heads` query heads; `groups` key-value heads.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from caploc.engine.keys import Segment, Slots
from caploc.engine.tails import KeysKnown

NAME = "caploc_packed"
# What some models hand to attention that packed attention does not know, and refuses.
UNKNOWN = ("softcap", "s_aux", "position_bias", "head_mask")
Queries = Float[Tensor, "heads tokens width"]
Keys = Float[Tensor, "groups tokens width"]


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


class Switch:
    """Sets a model's attention function, for which transformers looks into its configs.

    What `set_attn_implementation` does, without going through all modules in every pass.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        """Find every config that the model's modules look into."""
        configs = (getattr(module, "config", None) for module in model.modules())
        found = {id(config): config for config in configs if config is not None}
        self.configs: list[Any] = list(found.values())
        self.usual = [config._attn_implementation for config in self.configs]

    @contextmanager
    def attending(self, attention: Attention) -> Iterator[None]:
        """Inside the block, this thread's forward passes of the model use `attention`."""
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
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer: Any = module.layer_idx
    read = _local.attention.attend(layer, query[0], key[0], value[0], scale)
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


@dataclass(eq=False)
class Block:
    """Rows of equal length, side by side in the pass, that read the same segment first.

    `tree` says which tokens of a row each of its tokens reads; None is all up to itself. Of each
    row the predictions after its last `tail` tokens are wanted, or of some of these.
    """

    first: int  # the block's first token in the pass
    rows: int
    length: int
    tail: int
    segment: Segment | None = None
    tree: Bool[Tensor, "length length"] | None = None
    bias: Tensor | None = field(init=False, default=None)

    @property
    def tails(self) -> Int[Tensor, " tails"]:
        """The places in the pass of each row's last `tail` tokens."""
        places = self.first + torch.arange(self.rows * self.length)
        return split(places, 0, (self.rows, -1))[:, self.length - self.tail :].flatten()

    def read(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float
    ) -> Float[Tensor, "rows heads asking width"]:
        """What each head reads for the last tokens of each row: as many as there are queries.

        All are rows x heads x tokens x width.
        """
        asking = queries.shape[2]
        if asking == self.length and self.segment is None and self.tree is None:
            shared = queries.shape[1] // keys.shape[1]
            if queries.device.type != "cpu":  # only the CPU's kernel knows shared key-value heads
                keys, values = (x.repeat_interleave(shared, 1) for x in (keys, values))
            return F.scaled_dot_product_attention(
                queries, keys, values, is_causal=True, scale=scale, enable_gqa=shared > 1
            )
        groups = keys.shape[1]
        asked = grouped(queries, groups)
        own = partial(asked, keys, values, scale, self.mask(asked, asking))
        if self.segment is None:
            return ungrouped(own[0], asking)
        kept, kept_values = self.segment.keys[layer], self.segment.values[layer]
        assert kept is not None and kept_values is not None
        before = together(asked, kept, kept_values, scale)
        return ungrouped(merged(before, own), asking)

    def mask(self, asked: Tensor, asking: int) -> Float[Tensor, "asked length"]:
        """Which of its row's tokens each query of the last `asking` tokens reads, as a bias."""
        repeats = asked.shape[2] // asking
        shape = (repeats * asking, self.length)
        if self.bias is None or self.bias.device != asked.device or self.bias.shape != shape:
            seen = self.tree
            if seen is None:
                seen = torch.ones(self.length, self.length, dtype=torch.bool).tril()
            bias = bias_of(seen[self.length - asking :].to(asked.device), asked.dtype)
            self.bias = bias.repeat(repeats, 1)
        return self.bias


@runtime_checkable
class Keeper(Protocol):
    """Keeps a pass's keys and values."""

    def keep(self, layer: int, keys: Keys, values: Keys) -> None:
        """Take in one layer's."""
        ...


@dataclass(eq=False)
class Reading:
    """Rows read from their beginning, each after its segment; blocks cover all tokens in order.

    The layer `narrow` (None: no layer) is asked twice: once with all tokens, for their keys and
    values, and then with the blocks' tails.
    """

    blocks: Sequence[Block]
    keeper: Keeper | None = None
    narrow: int | None = None
    known: tuple[Keys, Keys] | None = field(init=False, default=None)

    def attend(
        self, layer: int, queries: Queries, keys: Keys, values: Keys, scale: float
    ) -> Float[Tensor, "tokens heads width"]:
        """What each head reads for each token, or in the narrow layer for those of the tails.

        Raises:
            KeysKnown: in the narrow layer's first call.
        """
        if self.known is not None:
            keys, values = self.known
        elif self.keeper is not None:
            self.keeper.keep(layer, keys, values)
        narrow = layer == self.narrow
        if narrow and self.known is None:
            self.known = keys, values
            raise KeysKnown
        heads, tokens, _ = queries.shape
        read, first = values.new_empty((tokens, heads, values.shape[-1])), 0
        for block in self.blocks:
            asking = block.tail if narrow else block.length
            asked = slice(first, first + block.rows * asking)
            place = slice(block.first, block.first + block.rows * block.length)
            q = split(queries[:, asked], 1, (block.rows, asking)).transpose(0, 1)
            k, v = (
                split(x[:, place], 1, (block.rows, block.length)).transpose(0, 1)
                for x in (keys, values)
            )
            out = block.read(layer, q, k, v, scale)
            split(read[asked], 0, (block.rows, asking)).copy_(out.transpose(1, 2))
            first = asked.stop
        return read


@dataclass(eq=False)
class Shared:
    """One layer of a segment, and which running rows read it: rows in a row as a slice."""

    keys: Keys
    values: Keys
    rows: Int[Tensor, " members"] | slice


def shared_layers(segments: Sequence[Segment | None], layers: int) -> list[list[Shared]]:
    """For each layer the segments that running rows read; those with equal keys are one.

    Below their masks' first cuts, rows of different masks read the same tensors.
    """
    members: dict[int, tuple[Segment, list[int]]] = {}
    for row, segment in enumerate(segments):
        if segment is not None:
            members.setdefault(id(segment), (segment, []))[1].append(row)
    found = []
    for layer in range(layers):
        readers: dict[int, list[int]] = {}
        tensors = {}
        for segment, rows in members.values():
            keys, values = segment.keys[layer], segment.values[layer]
            if keys is not None and values is not None:
                readers.setdefault(id(keys), []).extend(rows)
                tensors[id(keys)] = keys, values
        found.append(
            [
                Shared(*tensors[key], _rows(rows, tensors[key][0].device))
                for key, rows in readers.items()
            ]
        )
    return found


def _rows(rows: list[int], device: torch.device) -> Int[Tensor, " members"] | slice:
    rows = sorted(rows)
    if rows[-1] - rows[0] == len(rows) - 1:
        return slice(rows[0], rows[-1] + 1)
    return torch.tensor(rows, device=device)


@dataclass(eq=False)
class Step:
    """Running rows that go on: row i holds slot i, and has one or more new tokens in this pass.

    `slots` and `places` say for each token of the pass where its key and value go; `before` is how
    many own tokens each row had.
    """

    room: Slots
    slots: Int[Tensor, " tokens"]
    places: Int[Tensor, " tokens"]
    before: Int[Tensor, " rows"]
    shared: Sequence[Sequence[Shared]]  # layer by layer
    longest: int  # most new tokens of a row
    reach: int  # most own tokens of a row, the new ones included
    bias: Tensor | None = field(init=False, default=None)

    def attend(
        self, layer: int, queries: Queries, keys: Keys, values: Keys, scale: float
    ) -> Float[Tensor, "tokens heads width"]:
        """What each head reads for each token."""
        if self.slots.device != keys.device:
            self._move(keys.device)
        self.room.write(layer, self.slots, self.places, keys, values)
        kept, kept_values = self.room.keys[layer], self.room.values[layer]
        assert kept is not None and kept_values is not None
        rows = len(self.before)
        own_keys, own_values = (x[:rows, :, : self.reach] for x in (kept, kept_values))
        asked = grouped(self._padded(queries), keys.shape[0])
        own = partial(asked, own_keys, own_values, scale, self._mask(asked))
        if not self.shared[layer]:
            return self._packed(ungrouped(own[0], self.longest))
        read, weight = torch.zeros_like(own[0]), torch.full_like(own[1], -torch.inf)
        for part in self.shared[layer]:
            read[part.rows], weight[part.rows] = together(
                asked[part.rows], part.keys, part.values, scale
            )
        return self._packed(ungrouped(merged((read, weight), own), self.longest))

    def _move(self, device: torch.device) -> None:
        """Go on to the layers of another device; a pass meets each device's layers once."""
        self.slots, self.places, self.before = (
            numbers.to(device) for numbers in (self.slots, self.places, self.before)
        )
        self.bias = None if self.bias is None else self.bias.to(device)

    def _mask(self, asked: Tensor) -> Float[Tensor, "rows groups asked reach"]:
        """Which own tokens each row's queries read, as a bias."""
        if self.bias is None:
            new = torch.arange(self.longest, device=asked.device)
            own = torch.arange(self.reach, device=asked.device)
            seen = own <= (self.before[:, None] + new)[:, :, None]
            bias = bias_of(seen, asked.dtype)[:, None]
            self.bias = bias.repeat(1, 1, asked.shape[2] // self.longest, 1)
        return self.bias.expand(-1, asked.shape[1], -1, -1)

    def _padded(self, queries: Queries) -> Float[Tensor, "rows heads new width"]:
        if self.longest == 1:
            return queries.transpose(0, 1)[:, :, None]
        heads, _, width = queries.shape
        padded = queries.new_zeros((len(self.before), heads, self.longest, width))
        padded[self.slots, :, self.places - self.before[self.slots]] = queries.transpose(0, 1)
        return padded

    def _packed(self, read: Tensor) -> Float[Tensor, "tokens heads width"]:
        if self.longest == 1:
            return read[:, :, 0].contiguous()
        return read[self.slots, :, self.places - self.before[self.slots]]
