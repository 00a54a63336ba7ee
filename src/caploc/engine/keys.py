"""Keys and values that outlive a forward pass: shared segments, and the slots of running rows.

Axes: `groups` are key-value heads; `width` is that of a key or a value. Both may differ between
layers, and are `_` in lists of layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

CONTIGUOUS = torch.contiguous_format
Keys = Float[Tensor, "groups tokens width"]
LayerKeys = Float[Tensor, "_ tokens _"]


@dataclass(eq=False)
class Segment:
    """Keys and values of consecutive tokens in each layer (None where a layer has no attention).

    Segments may share tensors: below a mask's first knocked-out layer its keys and values are
    those of the intact model, and the same tensors stand in both.
    """

    length: int
    keys: list[LayerKeys | None]
    values: list[LayerKeys | None]

    def above(self, layers: int, lower: "Segment") -> "Segment":
        """Return this segment with the first `layers` layers of another in place of its own."""
        return Segment(
            self.length,
            lower.keys[:layers] + self.keys[layers:],
            lower.values[:layers] + self.values[layers:],
        )

    def part(self, first: int, last: int) -> "Segment":
        """Return views of the tokens from `first` up to `last`."""
        return Segment(
            last - first,
            [None if k is None else k[:, first:last] for k in self.keys],
            [None if v is None else v[:, first:last] for v in self.values],
        )

    def copied(self) -> "Segment":
        """Return the same in tensors of its own, so that what it is a view of can be let go."""
        return Segment(
            self.length,
            [None if k is None else k.clone(memory_format=CONTIGUOUS) for k in self.keys],
            [None if v is None else v.clone(memory_format=CONTIGUOUS) for v in self.values],
        )


@dataclass(eq=False)
class KeySlots:
    """Room for the keys and values of `rows` running rows, `length` own tokens each.

    Running rows hold the first slots without gaps, so that a step reads one block of memory. A
    layer's tensors are made when its first keys come, on their device and of their type.
    """

    rows: int
    length: int
    layers: int
    keys: list[Float[Tensor, "rows _ length _"] | None] = field(init=False)
    values: list[Float[Tensor, "rows _ length _"] | None] = field(init=False)

    def __post_init__(self) -> None:
        self.keys, self.values = [None] * self.layers, [None] * self.layers

    def write(
        self,
        layer: int,
        slots: Int[Tensor, " tokens"],
        places: Int[Tensor, " tokens"],
        keys: Keys,
        values: Keys,
    ) -> None:
        """Put each token's key and value into its row's slot, at its place there."""
        for kept, new in ((self.keys, keys), (self.values, values)):
            self._room(kept, layer, new)[slots, :, places] = new.transpose(0, 1)

    def share(self, layers: int, slots: Sequence[int], segment: Segment) -> None:
        """Copy a segment's first `layers` layers to the beginning of some slots."""
        for layer in range(layers):
            for kept, source in ((self.keys, segment.keys), (self.values, segment.values)):
                new = source[layer]
                if new is not None:
                    room = self._room(kept, layer, new)
                    for slot in slots:
                        room[slot, :, : segment.length] = new

    def move(
        self, sources: Int[Tensor, " rows"], targets: Int[Tensor, " rows"], length: int
    ) -> None:
        """Copy the first `length` tokens of some slots to others."""
        for room in (*self.keys, *self.values):
            if room is not None:
                here = targets.to(room.device), sources.to(room.device)  # layers may lie elsewhere
                room[here[0], :, :length] = room[here[1], :, :length]

    def _room(self, kept: list[Tensor | None], layer: int, new: Keys) -> Tensor:
        room = kept[layer]
        if room is None:
            groups, _, width = new.shape
            room = kept[layer] = new.new_zeros((self.rows, groups, self.length, width))
        return room


@runtime_checkable
class KeyKeeper(Protocol):
    """Keeps the keys and values of a pass."""

    def keep(self, layer: int, keys: Keys, values: Keys) -> None:
        """Take in one layer's keys and values."""
        ...


@dataclass(eq=False)
class SlotKeeper:
    """Keeps a pass in the slots of its rows."""

    room: KeySlots
    slots: Int[Tensor, " tokens"]
    places: Int[Tensor, " tokens"]

    def keep(self, layer: int, keys: Keys, values: Keys) -> None:
        """Write one layer's keys and values to the slots."""
        if self.slots.device != keys.device:  # the layers of another device begin
            self.slots, self.places = (x.to(keys.device) for x in (self.slots, self.places))
        self.room.write(layer, self.slots, self.places, keys, values)


class SegmentKeeper:
    """Keeps a whole pass as one segment."""

    def __init__(self, layers: int) -> None:
        self.segment = Segment(0, [None] * layers, [None] * layers)

    def keep(self, layer: int, keys: Keys, values: Keys) -> None:
        """Keep one layer's keys and values.

        Made contiguous: queries read them many times, and what they are views of is let go.
        """
        self.segment.length = keys.shape[1]
        self.segment.keys[layer] = keys.contiguous()
        self.segment.values[layer] = values.contiguous()
