"""Attention of rows that are read from their beginning, each after its segment."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from caploc.engine.attention import (
    Queries,
    bias_of,
    grouped,
    merged,
    partial,
    split,
    together,
    ungrouped,
)
from caploc.engine.keys import Keys, Segment
from caploc.engine.tails import KeysKnown


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
