"""What the intact model computed, kept so that knocked-out rows can start where they differ.

Below a mask's first knocked-out layer nothing differs from the intact model: neither the residual
stream nor the keys and values. A row whose prompt is recorded takes both from the record and starts
at the deepest recorded depth that its mask leaves intact. A prefix, shared by all prompts, is
recorded once, and read once for each mask from the depth where that mask begins to matter.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

import torch
from jaxtyping import Bool
from torch import Tensor

from caploc.engine.keys import Segment
from caploc.engine.packed import Chunk, IntoSegment, PackedModel
from caploc.engine.stack import Residual

Mask = Bool[Tensor, " heads"]


@dataclass(frozen=True)
class KnockedOut:
    """A mask, and its first knocked-out layer (the number of layers if it knocks out nothing)."""

    number: int
    heads: Mask
    cut: int


@dataclass(eq=False)
class Record:
    """The intact model's residual stream and keys over some tokens."""

    tokens: tuple[int, ...]
    segment: Segment
    residual: dict[int, Residual]

    def start(self, cut: int) -> int:
        """The deepest recorded depth at or below a mask's first cut."""
        return max((depth for depth in self.residual if depth <= cut), default=0)

    def part(self, first: int, last: int) -> "Record":
        """The record of some of the tokens, as views."""
        residual = {depth: stream[first:last] for depth, stream in self.residual.items()}
        return Record(self.tokens[first:last], self.segment.part(first, last), residual)


class Meter:
    """Tokens run through the model, in units of a pass through all its layers, not yet paid for.

    The last layer counts for all tokens, also where it is asked for a few of them alone.
    """

    def __init__(self, layers: int) -> None:
        """Start at nothing."""
        self.layers, self.due = layers, 0.0

    def run(self, tokens: int, start: int = 0) -> float:
        """What so many tokens cost that start at this depth."""
        return tokens * (1 - start / self.layers)

    def add(self, tokens: int, start: int = 0) -> None:
        """Note a pass that belongs to no one row."""
        self.due += self.run(tokens, start)

    def pay(self) -> float:
        """What is due; then nothing is."""
        due, self.due = self.due, 0.0
        return due


class Intact:
    """Records of prompts and prefixes, and each mask's own reading of a prefix."""

    def __init__(
        self,
        packed: PackedModel,
        prefixes: Sequence[Sequence[int]],
        prefix_depths: Sequence[int],
        most_tokens: int,
        most_rows: int,
        meter: Meter,
    ) -> None:
        """Nothing is recorded before it is asked for; a pass that does has so many rows at most."""
        self.packed, self.meter = packed, meter
        self.most_tokens, self.most_rows = most_tokens, most_rows
        self.prefixes, self.prefix_depths = prefixes, prefix_depths
        self.heads = torch.zeros(packed.loaded.grid.size, dtype=torch.bool)
        self.records: dict[int, Record] = {}
        self.of_prefix: dict[int, Record] = {}
        # A mask's prefix goes with the last row that reads it. The rows of a mask come one after
        # another, so `latest` keeps the newest prefix for the next of them.
        self.read: WeakValueDictionary[tuple[int, int], Segment] = WeakValueDictionary()
        self.latest: Segment | None = None

    def prefix(self, number: int) -> Record:
        """The intact record of a prefix."""
        if number not in self.of_prefix:
            self.of_prefix.clear()  # stages go through the prefixes one after another
            tokens = self.prefixes[number]
            chunk = Chunk(tokens, self.heads, [len(tokens) - 1])
            (self.of_prefix[number],) = self.recorded([chunk], self.prefix_depths)
        return self.of_prefix[number]

    def segments(self, wanted: Sequence[tuple[int | None, KnockedOut]]) -> list[Segment | None]:
        """The keys of prefixes, each under a mask; those not at hand are read, many in a pass."""
        found: dict[tuple[int | None, int], Segment | None] = {}
        missing: dict[int, list[KnockedOut]] = defaultdict(list)
        for number, mask in wanted:
            if (number, mask.number) not in found:
                segment = found[number, mask.number] = self.at_hand(number, mask)
                if number is not None and segment is None:
                    missing[number].append(mask)
        for number, masks in missing.items():
            for mask, segment in zip(masks, self.under(number, masks), strict=True):
                found[number, mask.number] = self.read[number, mask.number] = segment
        rows = [found[number, mask.number] for number, mask in wanted]
        self.latest = rows[-1]
        return rows

    def at_hand(self, number: int | None, mask: KnockedOut) -> Segment | None:
        """The keys of a prefix under a mask if nothing must be read for them."""
        if number is None:
            return None
        if mask.cut >= self.packed.depth - 1:  # a layer's own cut does not change its keys
            return self.prefix(number).segment
        return self.read.get((number, mask.number))

    def under(self, number: int, masks: Sequence[KnockedOut]) -> Iterator[Segment]:
        """Read a recorded prefix under masks, in passes that start at their first cuts."""
        intact = self.prefix(number)
        length = len(intact.tokens)
        most = max(1, min(self.most_rows, self.most_tokens // length))
        for first in range(0, len(masks), most):
            together = masks[first : first + most]
            start = intact.start(min(mask.cut for mask in together))
            keeper = IntoSegment(self.packed.depth)
            residual = intact.residual.get(start)
            chunks = [
                Chunk(intact.tokens, mask.heads, [length - 1], residual=residual)
                for mask in together
            ]
            self.packed.read(chunks, start, keeper)
            self.meter.add(length * len(together), start)
            for place, mask in enumerate(together):
                own = keeper.segment.part(place * length, (place + 1) * length)
                yield own.copied().above(mask.cut + 1, intact.segment)

    def record(
        self, prompts: Sequence[int], chunks: Sequence[Chunk], depths: Sequence[int]
    ) -> None:
        """Record prompts, in place of those recorded before."""
        self.records.clear()
        first = 0
        while first < len(prompts):
            last, tokens = first, 0
            end = min(len(prompts), first + self.most_rows)
            while last < end and (
                last == first or tokens + len(chunks[last].tokens) <= self.most_tokens
            ):
                tokens += len(chunks[last].tokens)
                last += 1
            found = self.recorded(chunks[first:last], depths)
            self.records.update(zip(prompts[first:last], found, strict=True))
            first = last

    def recorded(self, chunks: Sequence[Chunk], depths: Sequence[int]) -> list[Record]:
        """Read chunks under no mask, and keep everything."""
        keeper = IntoSegment(self.packed.depth)
        with self.packed.switch.alone(), self.packed.stack.recorded(depths) as kept:
            self.packed.read(chunks, 0, keeper)
        residual = {depth: rows[0] for depth, rows in kept.items()}
        tokens = tuple(token for chunk in chunks for token in chunk.tokens)
        self.meter.add(len(tokens))
        whole, records, first = Record(tokens, keeper.segment, residual), [], 0
        for chunk in chunks:
            records.append(whole.part(first, first + len(chunk.tokens)))
            first += len(chunk.tokens)
        return records
