"""Segments that running rows read, stacked so that one product reads them all.

A prefix has keys and values of its own under each mask. A product for each would have the host
start more operations, the more masks run. So on a GPU the segments' tensors of a layer are put into
one, again whenever others run, and the segments become views of it: nothing stands twice.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias
from weakref import WeakSet

import torch
from jaxtyping import Int
from torch import Tensor

from caploc.engine.attention import LayerShared, Segment, shared_layers
from caploc.engine.products import StackedKeys, reads_stacks, round_up

# Times the running rows that a product's places may be; where masks differ more in the number of
# their rows, each is read in a product of its own.
PLACES = 4
Place: TypeAlias = tuple[int, int]  # a segment's length, and its number in the stack of that length
Indices: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]  # of `StackedKeys`


def pinned(device: torch.device) -> bool:
    """Say whether what is sent to a device goes through memory that it can fetch by itself."""
    return device.type == "cuda"


def send(numbers: Sequence[Sequence[int]], device: torch.device) -> Int[Tensor, "lists numbers"]:
    """Put lists of numbers, equally long, on a device in one copy that the host does not await."""
    host = torch.tensor(numbers, dtype=torch.long, pin_memory=pinned(device))
    return host.to(device, non_blocking=True)


@dataclass(eq=False)
class LayerStack:
    """One layer of all segments: their stacks by length, and where each segment's keys stand."""

    stacks: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    places: dict[int, Place] = field(default_factory=dict)  # by id of a segment's keys


class SegmentStacks:
    """Stacks of the segments that running rows read."""

    def __init__(self, layers: int) -> None:
        self.layers = [LayerStack() for _ in range(layers)]
        self.known: WeakSet[Segment] = WeakSet()
        self.count = 0

    def keep(self, segments: Iterable[Segment | None]) -> None:
        """Stack these segments anew if they are others than before; what is no more is let go.

        Rows may come to read the keys of some only: the ones they read should come first.
        """
        living = list(dict.fromkeys(each for each in segments if each is not None))
        if set(living) == set(self.known) and len(living) == self.count:
            return
        for layer in range(len(self.layers)):
            self.layers[layer] = LayerStack()
            self._stack(layer, living)
        self.known, self.count = WeakSet(living), len(living)

    def _stack(self, layer: int, segments: Sequence[Segment]) -> None:
        """Stack one layer; below masks' first cuts several segments have the same tensors."""
        stack, by_length = self.layers[layer], dict[int, dict[int, list[Segment]]]()
        for segment in segments:
            keys = segment.keys[layer]
            if keys is not None and reads_stacks(keys.device):
                by_length.setdefault(segment.length, {}).setdefault(id(keys), []).append(segment)
        for length, owners in by_length.items():
            stacked = []
            for kind in ("keys", "values"):
                first = [getattr(each[0], kind)[layer] for each in owners.values()]
                stacked.append(torch.stack(first))
                del first
                for each, view in zip(owners.values(), stacked[-1].unbind(), strict=True):
                    for segment in each:
                        getattr(segment, kind)[layer] = view
            stack.stacks[length] = stacked[0], stacked[1]
            for number, each in enumerate(owners.values()):
                stack.places[id(each[0].keys[layer])] = length, number

    def readers(
        self, segments: Sequence[Segment | None], rows_run: int | None = None
    ) -> list[LayerShared]:
        """Return for each layer what rows read whose segments these are; None reads nothing.

        Up to `rows_run` come rows that pad a step, and may read anything. Where nothing is
        stacked, or masks have very different numbers of rows, each segment is read for itself.
        """
        rows: dict[Segment, list[int]] = {}
        for row, segment in enumerate(segments):
            if segment is not None:
                rows.setdefault(segment, []).append(row)
        found = [self._patterns(layer, rows) for layer in range(len(self.layers))]
        most, size = PLACES * len(segments), rows_run or len(segments)
        kept = [layer if all(each.needed <= most for each in layer) else [] for layer in found]
        patterns = [each for layer in kept for each in layer]
        indices = _send_patterns(patterns, len(segments), size)
        alone = None if all(kept) else shared_layers(segments, len(self.layers))
        return [
            [self._stacked(number, each, indices[each]) for each in layer]
            if layer or alone is None
            else alone[number]
            for number, layer in enumerate(kept)
        ]

    def _patterns(self, layer: int, rows: Mapping[Segment, Sequence[int]]) -> list["Pattern"]:
        """Find who reads which stack of a layer."""
        readers: dict[int, dict[int, list[int]]] = {}
        for segment, members in rows.items():
            where = self.layers[layer].places.get(id(segment.keys[layer]))
            if where is not None:
                readers.setdefault(where[0], {}).setdefault(where[1], []).extend(members)
        stacks = self.layers[layer].stacks
        return [
            Pattern(
                length,
                (len(stacks[length][0]), stacks[length][0].shape[1]),
                stacks[length][0].device,
                tuple((number, tuple(found[number])) for number in sorted(found)),
            )
            for length, found in readers.items()
        ]

    def _stacked(self, layer: int, pattern: "Pattern", index: "Indices") -> StackedKeys:
        used = slice(pattern.first, pattern.first + pattern.segments)
        keys, values = self.layers[layer].stacks[pattern.length]
        return StackedKeys(keys[used], values[used], *index)


@dataclass(frozen=True)
class Pattern:
    """Which rows read which segments of a stack, by the segments' numbers there.

    The product is given some segments and places more than are read: see `round_up`.
    """

    length: int
    stacked: tuple[int, int]  # segments in the stack, and their key-value heads
    device: torch.device
    readers: tuple[tuple[int, tuple[int, ...]], ...]

    @property
    def first(self) -> int:
        return min(self.readers[0][0], self.stacked[0] - self.segments)

    @property
    def read(self) -> int:
        return self.readers[-1][0] - self.readers[0][0] + 1

    @property
    def segments(self) -> int:
        return min(round_up(self.read), self.stacked[0])

    @property
    def most(self) -> int:
        most = max(len(rows) for _, rows in self.readers)
        return round_up(most, min(8, 1 << (most - 1).bit_length()))

    @property
    def needed(self) -> int:
        """The places of a product that is given no more than is read."""
        return self.read * max(len(rows) for _, rows in self.readers)

    def numbers(self, rows: int, size: int) -> tuple[list[int], ...]:
        """Return members and groups, and each row's segment and place and whether it is apart.

        From `rows` up to `size` come rows that may read anything.
        """
        members = [0] * (self.segments * self.most)
        segment, place, apart = [0] * size, [0] * size, [1] * rows + [0] * (size - rows)
        for number, readers in self.readers:
            begin = (number - self.first) * self.most
            members[begin : begin + self.most] = readers + readers[:1] * (self.most - len(readers))
            for n, row in enumerate(readers):
                segment[row], place[row], apart[row] = number - self.first, n, 0
        return members, list(range(self.stacked[1])), segment, place, apart


def _send_patterns(patterns: Iterable[Pattern], rows: int, size: int) -> dict[Pattern, Indices]:
    """Put the indices of patterns on their devices, in one copy for each device."""
    by_device: dict[torch.device, dict[Pattern, tuple[list[int], ...]]] = {}
    for pattern in patterns:
        known = by_device.setdefault(pattern.device, {})
        if pattern not in known:  # most layers have the readers of the layer below
            known[pattern] = pattern.numbers(rows, size)
    found: dict[Pattern, Indices] = {}
    for device, known in by_device.items():
        lists = [each for numbers in known.values() for each in numbers]
        (sent,) = send([[number for each in lists for number in each]], device)
        parts = iter(sent.split([len(each) for each in lists]))
        for pattern, (*_, apart) in known.items():
            members, groups, segment, place, alone = (next(parts) for _ in range(5))
            members = members.view(pattern.segments, 1, pattern.most)
            groups = groups.view(1, -1, 1)
            found[pattern] = members, groups, segment, place, alone.bool() if any(apart) else None
    return found
