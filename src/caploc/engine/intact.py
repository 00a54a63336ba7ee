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

from caploc.engine.asks import INTACT, NumberedMask
from caploc.engine.keys import Segment, SegmentKeeper
from caploc.engine.packed import Chunk, PackedModel, Residual
from caploc.engine.planning import BatchPlan, PlannedRow


@dataclass(eq=False)
class IntactRecord:
    """The intact model's residual stream and keys over some tokens."""

    tokens: tuple[int, ...]
    segment: Segment
    residual: dict[int, Residual]

    def start(self, cut: int) -> int:
        """Return the deepest recorded depth at or below a mask's first cut."""
        return max((depth for depth in self.residual if depth <= cut), default=0)

    def part(self, first: int, last: int) -> "IntactRecord":
        """Return the record of some of the tokens, as views."""
        residual = {depth: stream[first:last] for depth, stream in self.residual.items()}
        return IntactRecord(self.tokens[first:last], self.segment.part(first, last), residual)


class IntactRecords:
    """Records of a plan's prompts and prefixes, and each mask's own reading of a prefix.

    It counts the tokens run that belong to no one row, in units of a pass through all layers, until
    a row pays for them. The last layer counts for all tokens, also where it is asked for a few.
    """

    def __init__(self, packed: PackedModel, plan: BatchPlan, masks: Sequence[NumberedMask]) -> None:
        """Record nothing before it is asked for."""
        self.packed, self.plan, self.masks = packed, plan, masks
        self.table = packed.table(masks)
        self.due = 0.0
        self.records: dict[int, IntactRecord] = {}
        self.of_prefix: dict[int, IntactRecord] = {}
        # A mask's prefix goes with the last row that reads it. The rows of a mask come one after
        # another, so `latest` keeps the newest prefix for the next of them.
        self.read: WeakValueDictionary[tuple[int, int], Segment] = WeakValueDictionary()
        self.latest: Segment | None = None

    def cost(self, tokens: int, start: int = 0) -> float:
        """Return what so many tokens cost that start at this depth."""
        return tokens * (1 - start / self.packed.depth)

    def pay(self) -> float:
        """Return the cost that no row has paid for yet; then nothing is due."""
        due, self.due = self.due, 0.0
        return due

    def start(self, row: PlannedRow) -> int:
        """Return the depth at which a row's prompt can be started."""
        record = self.records.get(row.prompt)
        return record.start(self.masks[row.mask].first_layer) if record else 0

    def prefix(self, number: int) -> IntactRecord:
        """Return the intact record of a prefix."""
        if number not in self.of_prefix:
            self.of_prefix.clear()  # stages go through the prefixes one after another
            tokens = self.plan.prefixes[number]
            chunk = Chunk(tokens, self.masks[INTACT], [len(tokens) - 1])
            (self.of_prefix[number],) = self._recorded([chunk], self.plan.prefix_depths)
        return self.of_prefix[number]

    def prefix_segment(self, prompt: int) -> Segment | None:
        """Return the intact keys of a prompt's prefix."""
        number = self.plan.prefix[prompt]
        return None if number is None else self.prefix(number).segment

    def segments(self, rows: Sequence[PlannedRow]) -> list[Segment | None]:
        """Return the keys of rows' prefixes, each under the row's mask; read what is missing."""
        pairs = [(self.plan.prefix[row.prompt], self.masks[row.mask]) for row in rows]
        found: dict[tuple[int | None, int], Segment | None] = {}
        missing: dict[int, list[NumberedMask]] = defaultdict(list)
        for number, mask in pairs:
            if (number, mask.number) not in found:
                segment = found[number, mask.number] = self._at_hand(number, mask)
                if number is not None and segment is None:
                    missing[number].append(mask)
        for number, masks in missing.items():
            for mask, segment in zip(masks, self.under(number, masks), strict=True):
                found[number, mask.number] = self.read[number, mask.number] = segment
        segments = [found[number, mask.number] for number, mask in pairs]
        self.latest = segments[-1]
        return segments

    def _at_hand(self, number: int | None, mask: NumberedMask) -> Segment | None:
        """Return the keys of a prefix under a mask if nothing must be read for them."""
        if number is None:
            return None
        if mask.first_layer >= self.packed.depth - 1:  # a layer's own cut does not change its keys
            return self.prefix(number).segment
        return self.read.get((number, mask.number))

    def under(self, number: int, masks: Sequence[NumberedMask]) -> Iterator[Segment]:
        """Read a recorded prefix under masks, in passes that start at their first cuts."""
        intact = self.prefix(number)
        length = len(intact.tokens)
        most = max(1, min(self.plan.rows, self.plan.tokens // length))
        for first in range(0, len(masks), most):
            together = masks[first : first + most]
            start = intact.start(min(mask.first_layer for mask in together))
            keeper, residual = SegmentKeeper(self.packed.depth), intact.residual.get(start)
            chunks = [
                Chunk(intact.tokens, mask, [length - 1], residual=residual) for mask in together
            ]
            self.packed.read(self.table, chunks, start, keeper)
            self.due += self.cost(length * len(together), start)
            for place, mask in enumerate(together):
                own = keeper.segment.part(place * length, (place + 1) * length)
                yield own.copied().above(mask.first_layer + 1, intact.segment)

    def record(
        self, prompts: Sequence[int], chunks: Sequence[Chunk], depths: Sequence[int]
    ) -> None:
        """Record prompts, in place of those recorded before."""
        self.records.clear()
        first = 0
        while first < len(prompts):
            last, tokens = first, 0
            end = min(len(prompts), first + self.plan.rows)
            while last < end and (
                last == first or tokens + len(chunks[last].tokens) <= self.plan.tokens
            ):
                tokens += len(chunks[last].tokens)
                last += 1
            found = self._recorded(chunks[first:last], depths)
            self.records.update(zip(prompts[first:last], found, strict=True))
            first = last

    def _recorded(self, chunks: Sequence[Chunk], depths: Sequence[int]) -> list[IntactRecord]:
        """Read chunks under no mask, and keep everything."""
        keeper = SegmentKeeper(self.packed.depth)
        with self.packed.switch.alone(), self.packed.stack.recorded(depths) as kept:
            self.packed.read(self.table, chunks, 0, keeper)
        residual = {depth: rows[0] for depth, rows in kept.items()}
        tokens = tuple(token for chunk in chunks for token in chunk.tokens)
        self.due += self.cost(len(tokens))
        whole, records, first = IntactRecord(tokens, keeper.segment, residual), [], 0
        for chunk in chunks:
            records.append(whole.part(first, first + len(chunk.tokens)))
            first += len(chunk.tokens)
        return records
