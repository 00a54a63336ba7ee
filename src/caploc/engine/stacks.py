"""Segments that running rows read, stacked so that one product reads them all.

A prefix has keys and values of its own under each mask. A product for each would have the host
start more operations, the more masks run. So on a GPU the segments' tensors of a layer are put into
one, and the segments become views of it: nothing stands twice.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias
from weakref import WeakSet

import torch
from jaxtyping import Float, Int
from torch import Tensor

from caploc.engine.attention import LayerShared, Segment, SharedKeys, shared_layers
from caploc.engine.kernels import StackedKeys, reads_stacks, round_up

# Times the running rows that a product's places may be; where masks differ more in the number of
# their rows, each is read in a product of its own.
PLACES = 4
Place: TypeAlias = tuple[int, int]  # a segment's length, and its number in the stack of that length


def pinned(device: torch.device) -> bool:
    """Say whether what is sent to a device goes through memory that it can fetch by itself."""
    return device.type == "cuda"


def send(numbers: Sequence[Sequence[int]], device: torch.device) -> Int[Tensor, "lists numbers"]:
    """Put lists of numbers, equally long, on a device in one copy that the host does not await."""
    host = torch.tensor(numbers, dtype=torch.long, pin_memory=pinned(device))
    return host.to(device, non_blocking=True)


@dataclass(eq=False)
class Stack:
    """One layer of segments of one length; `held` says whose keys stand at which number.

    It holds the keys too: another tensor could get the id of one that is gone.
    """

    keys: Float[Tensor, "segments groups tokens width"]
    values: Float[Tensor, "segments groups tokens read"]
    held: dict[int, tuple[int, Tensor]] = field(default_factory=dict)  # by id of a segment's keys


@dataclass(eq=False)
class LayerStacks:
    """One layer of all segments: a stack for each length."""

    number: int
    stacks: dict[int, Stack] = field(default_factory=dict)

    def place(self, segment: Segment) -> Place | None:
        """Find a segment's keys; None where they are not stacked."""
        stack = self.stacks.get(segment.length)
        found = None if stack is None else stack.held.get(id(segment.keys[self.number]))
        return None if found is None else (segment.length, found[0])

    def keep(self, segments: Iterable[Segment]) -> None:
        """Stack these segments, and let go what is none of theirs.

        Below masks' first cuts several segments have the same tensors.
        """
        by_length: dict[int, dict[int, list[Segment]]] = {}
        for segment in segments:
            keys = segment.keys[self.number]
            if keys is not None and reads_stacks(keys.device):
                by_length.setdefault(segment.length, {}).setdefault(id(keys), []).append(segment)
        before = self.stacks
        self.stacks = {
            length: self._kept(before.get(length), owners) for length, owners in by_length.items()
        }

    def _kept(self, before: Stack | None, owners: Mapping[int, Sequence[Segment]]) -> Stack:
        """Put newcomers in the places of those that are gone, or all into a new stack."""
        stack = before
        if stack is None or not len(stack.keys) / 2 < len(owners) <= len(stack.keys):
            one, count = next(iter(owners.values()))[0], round_up(len(owners))
            keys, values = (kept.new_zeros(count, *kept.shape) for kept in self.read(one))
            stack = Stack(keys, values)
        held = {keys: place for keys, place in stack.held.items() if keys in owners}
        taken = {number for number, _ in held.values()}
        free = iter([number for number in range(len(stack.keys)) if number not in taken])
        for segments in (each for keys, each in owners.items() if keys not in held):
            number = next(free)
            views = stack.keys[number], stack.values[number]
            for view, new in zip(views, self.read(segments[0]), strict=True):
                view.copy_(new)
            for segment in segments:
                segment.keys[self.number], segment.values[self.number] = views
            held[id(views[0])] = number, views[0]
        stack.held = held
        return stack

    def read(self, segment: Segment) -> tuple[Tensor, Tensor]:
        """Return a segment's keys and values in this layer, which has some."""
        keys, values = segment.keys[self.number], segment.values[self.number]
        assert keys is not None and values is not None
        return keys, values


class SegmentStacks:
    """Stacks of the segments that running rows read."""

    def __init__(self, layers: int) -> None:
        self.layers = [LayerStacks(number) for number in range(layers)]
        self.known: WeakSet[Segment] = WeakSet()
        self.count = 0

    def keep(self, segments: Iterable[Segment | None]) -> None:
        """Stack these segments if they are others than before; what is no more is let go."""
        living = list(dict.fromkeys(each for each in segments if each is not None))
        if set(living) == set(self.known) and len(living) == self.count:
            return
        for layer in self.layers:
            self._part(layer, living)
            layer.keep(living)
        self.known, self.count = WeakSet(living), len(living)

    def _part(self, layer: LayerStacks, living: Collection[Segment]) -> None:
        """Give segments that somebody still holds, and no row reads, tensors of their own."""
        kept = {id(each.keys[layer.number]) for each in living}
        for each in self.known:
            if layer.place(each) is not None and id(each.keys[layer.number]) not in kept:
                own = (tensor.clone() for tensor in layer.read(each))
                each.keys[layer.number], each.values[layer.number] = own

    def readers(self, segments: Sequence[Segment | None]) -> "Readers":
        """Return what rows read whose segments these are; None reads nothing.

        Where nothing is stacked, or masks have very different numbers of rows, each segment is read
        for itself.
        """
        rows: dict[Segment, list[int]] = {}
        for row, segment in enumerate(segments):
            if segment is not None:
                rows.setdefault(segment, []).append(row)
        places = PLACES * len(segments)
        found = [self._patterns(layer, rows, places) for layer in self.layers]
        kept = [layer if all(each.needed <= places for each in layer) else [] for layer in found]
        # a layer without attention has nothing to read
        every = any(found) and all(
            layer or not each for layer, each in zip(kept, found, strict=True)
        )
        alone = None if every or not rows else shared_layers(segments, len(self.layers))
        stacked = [
            [self._read(layer, each) for each in patterns]
            for layer, patterns in zip(self.layers, kept, strict=True)
        ]
        return Readers(stacked, kept, alone, len(segments))

    def _read(self, layer: LayerStacks, pattern: "Pattern") -> tuple[Tensor, Tensor]:
        used = slice(pattern.first, pattern.first + pattern.segments)
        stack = layer.stacks[pattern.length]
        return stack.keys[used], stack.values[used]

    def _patterns(
        self, layer: LayerStacks, rows: Mapping[Segment, Sequence[int]], places: int
    ) -> list["Pattern"]:
        """Find who reads which stack of a layer."""
        readers: dict[int, dict[int, list[int]]] = {}
        for segment, members in rows.items():
            where = layer.place(segment)
            assert where is not None or not layer.stacks, "a segment that was not kept is read"
            if where is not None:
                readers.setdefault(where[0], {}).setdefault(where[1], []).extend(members)
        found = []
        for length, by_number in readers.items():
            keys = layer.stacks[length].keys
            each = tuple((number, tuple(by_number[number])) for number in sorted(by_number))
            found.append(Pattern(length, (len(keys), keys.shape[1]), keys.device, each, places))
        return found


class Readers:
    """What running rows read of segments, layer by layer.

    `stacked` are the keys and values of each layer's products, and `patterns` who reads which; a
    layer that has none is read as `alone` says. There are so many `rows`. `sent` are all
    patterns' indices, for each device.
    """

    def __init__(
        self,
        stacked: Sequence[Sequence[tuple[Tensor, Tensor]]],
        patterns: Sequence[Sequence["Pattern"]],
        alone: Sequence[Sequence[SharedKeys]] | None,
        rows: int,
    ) -> None:
        self.stacked, self.patterns, self.alone, self.rows = stacked, patterns, alone, rows
        self.by_device: dict[torch.device, list[Pattern]] = {}
        for pattern in dict.fromkeys(each for layer in patterns for each in layer):
            self.by_device.setdefault(pattern.device, []).append(pattern)
        self.sent = [
            send([[n for each in known for n in each.numbers(rows)]], device)[0]
            for device, known in self.by_device.items()
        ]

    def layers(self, sent: Sequence[Tensor]) -> list[LayerShared]:
        """Say what each layer reads, by such indices as were sent."""
        indices = {
            pattern: index
            for known, numbers in zip(self.by_device.values(), sent, strict=True)
            for pattern, index in zip(known, self._split(known, numbers), strict=True)
        }
        layers = enumerate(zip(self.stacked, self.patterns, strict=True))
        return [
            [
                StackedKeys(keys, values, *indices[each])
                for (keys, values), each in zip(stacked, patterns, strict=True)
            ]
            if self.alone is None or patterns
            else self.alone[number]
            for number, (stacked, patterns) in layers
        ]

    def _split(self, known: Sequence["Pattern"], numbers: Tensor) -> Iterable["Indices"]:
        lengths = [length for each in known for length in each.lengths(self.rows)]
        parts = iter(numbers.split(lengths))
        for pattern in known:
            members, groups, segment, place, apart = (next(parts) for _ in range(5))
            yield (
                members.view(pattern.segments, 1, pattern.most),
                groups.view(1, -1, 1),
                segment,
                place,
                apart.bool() if pattern.anybody_apart(self.rows) else None,
            )


Indices: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]  # of `StackedKeys`


@dataclass(frozen=True)
class Pattern:
    """Which rows read which segments of a stack, by the segments' numbers there.

    The product is given some segments and places more than are read: see `round_up`; and the whole
    stack where that takes at most `places` places.
    """

    length: int
    stacked: tuple[int, int]  # segments in the stack, and their key-value heads
    device: torch.device
    readers: tuple[tuple[int, tuple[int, ...]], ...]
    places: int

    @property
    def first(self) -> int:
        return min(self.readers[0][0], self.stacked[0] - self.segments)

    @property
    def read(self) -> int:
        return self.readers[-1][0] - self.readers[0][0] + 1

    @property
    def segments(self) -> int:
        every = self.stacked[0]
        return every if every * self.most <= self.places else min(round_up(self.read), every)

    @property
    def most(self) -> int:
        most = max(len(rows) for _, rows in self.readers)
        return round_up(most, min(8, 1 << (most - 1).bit_length()))

    @property
    def needed(self) -> int:
        """The places of a product that is given no more than is read."""
        return self.read * max(len(rows) for _, rows in self.readers)

    def anybody_apart(self, rows: int) -> bool:
        """Say whether some of so many rows read none of the segments."""
        return sum(len(readers) for _, readers in self.readers) < rows

    def lengths(self, rows: int) -> tuple[int, ...]:
        """Count the numbers of each kind that `numbers` returns."""
        return self.segments * self.most, self.stacked[1], rows, rows, rows

    def numbers(self, rows: int) -> list[int]:
        """Return members and groups, and each row's segment and place and whether it is apart.

        They come one after another.
        """
        members = [0] * (self.segments * self.most)
        segment, place, apart = [0] * rows, [0] * rows, [1] * rows
        for number, readers in self.readers:
            begin = (number - self.first) * self.most
            members[begin : begin + self.most] = readers + readers[:1] * (self.most - len(readers))
            for n, row in enumerate(readers):
                segment[row], place[row], apart[row] = number - self.first, n, 0
        return [*members, *range(self.stacked[1]), *segment, *place, *apart]
