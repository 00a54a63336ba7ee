"""Attention of running rows that go one or a few tokens further, with the keys in their slots."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from caploc.engine.attention import (
    Queries,
    bias_of,
    grouped,
    merged,
    partial,
    together,
    ungrouped,
)
from caploc.engine.keys import Keys, Segment, Slots


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
