"""One forward pass over packed rows, each token under its own row's mask; what it starts from.

Below a mask's first knocked-out layer nothing differs from the intact model: neither the residual
stream nor the keys and values. A row whose prompt is recorded takes both from the record and starts
at the deepest recorded depth that its mask leaves intact. A prefix, shared by all prompts, is
recorded once, and read once for each mask from the depth where that mask begins to matter.
"""

import inspect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from itertools import groupby
from operator import or_
from typing import Any
from weakref import WeakValueDictionary, finalize

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from caploc.engine.asks import INTACT, NumberedMask
from caploc.engine.attention import (
    AttentionSwitch,
    DecodeAttention,
    KeyKeeper,
    KeySlots,
    LayerShared,
    PrefillAttention,
    PrefillBlock,
    Segment,
    SegmentKeeper,
    SlotKeeper,
)
from caploc.engine.kernels import pinned, send
from caploc.engine.planning import BatchPlan, PlannedRow, model_devices
from caploc.models.cutting import MaskTable, PackedCut
from caploc.models.hooks import forward_as, temporary_hooks
from caploc.models.loading import CutModel
from caploc.models.projections import decoder_layers
from caploc.models.substitutes import number_substitutes

Residual = Float[Tensor, "tokens hidden"]
Residuals = Float[Tensor, "rows tokens hidden"]


def layers_cut(masks: Sequence[NumberedMask]) -> int:
    """Return the layers that any of the masks cuts, as bits."""
    return reduce(or_, (mask.layers for mask in masks), 0)


@dataclass(eq=False)
class Chunk:
    """A row's tokens in a pass that reads it from its beginning, after its segment.

    `tree` and `depths` are for rows that branch: which of the row's tokens each token reads, and
    how many tokens of the row stand before it on its branch. A `residual` replaces the layers
    below; all chunks of a pass start at the same depth.
    """

    tokens: Sequence[int]
    mask: NumberedMask
    read: Sequence[int]  # places whose next-token logits are wanted
    segment: Segment | None = None
    tree: Bool[Tensor, "length length"] | None = None
    depths: Sequence[int] | None = None
    residual: Residual | None = None


@dataclass(eq=False)
class FedRow:
    """The token a running row is fed in a step, and how many of its own have keys in its slot."""

    token: int
    mask: NumberedMask
    kept: int
    segment: Segment | None


@dataclass(eq=False)
class Pass:
    """One forward pass over packed tokens, all tensors on the model's device.

    Row `owners[i]` of the mask table holds for token i; `layers` are the layers that any of these
    masks cuts, as bits. The logits after the tokens at the places `read` are wanted. With `start`,
    `residual` goes into that layer and those below are skipped.
    """

    tokens: Int[Tensor, " tokens"]
    positions: Int[Tensor, " tokens"]
    table: MaskTable
    owners: Int[Tensor, " tokens"]
    layers: int
    attention: PrefillAttention | DecodeAttention
    read: Int[Tensor, " read"]
    start: int = 0
    residual: Residual | None = None


class PackedModel:
    """A model that reads packed rows. The hooks that cut by masks stay as long as it lives."""

    def __init__(self, loaded: CutModel, longest: int) -> None:
        """Find the decoder's layers; rows of at most `longest` tokens are given to it."""
        self.loaded, self.model, self.longest = loaded, loaded.model, longest
        self.device = loaded.device
        self.spread = len(model_devices(loaded.model)) > 1
        self.depth = len(loaded.projections)
        self.stack = DecoderStack(decoder_layers(loaded.model, loaded.projections))
        self.switch = AttentionSwitch(loaded.model)
        self.cut = PackedCut(loaded.projections, loaded.grid)
        finalize(self, self.cut.remove)
        self.picks = "logits_to_keep" in inspect.signature(loaded.model.forward).parameters

    def table(self, masks: Sequence[NumberedMask]) -> MaskTable:
        """Put masks on the device, each in the row of its number."""
        kept = ~torch.stack([mask.heads for mask in masks])
        kept = (kept.pin_memory() if pinned(self.device) else kept).to(
            self.device, non_blocking=True
        )
        sources, substitutes = number_substitutes([mask.substitute for mask in masks])
        if not substitutes.sources:
            return MaskTable(kept)
        return MaskTable(kept, sources.to(self.device), substitutes)

    def forward(self, one: Pass) -> Float[Tensor, "read vocabulary"]:
        # the last layer may be on another device than the first, and a place on the host fits any
        read = one.read.cpu() if self.spread else one.read
        where = {"logits_to_keep": read} if self.picks else {}
        with (
            self.switch.attending(one.attention),
            self.cut.cutting(one.table, one.owners, one.positions, one.layers),
            self.stack.started(one.start, None if one.residual is None else one.residual[None]),
        ):
            logits: Tensor = self.model(
                input_ids=one.tokens[None],
                position_ids=one.positions[None],
                use_cache=False,
                **where,
            ).logits[0]
        return logits if self.picks else logits[one.read]

    def read(
        self,
        table: MaskTable,
        chunks: Sequence[Chunk],
        start: int = 0,
        keeper: KeyKeeper | None = None,
    ) -> Float[Tensor, "read vocabulary"]:
        """Read rows from their beginning, and return the logits each wants, chunk by chunk."""
        tokens, positions, owners, read = list[int](), list[int](), list[int](), list[int]()
        for chunk in chunks:
            before = chunk.segment.length if chunk.segment else 0
            depths = chunk.depths or range(len(chunk.tokens))
            positions += [before + depth for depth in depths]
            owners += [chunk.mask.number] * len(chunk.tokens)
            read += [len(tokens) + place for place in chunk.read]
            tokens += chunk.tokens
        residual, blocks = None, _group_chunks(chunks)
        if start:
            residual = torch.cat([c.residual for c in chunks if c.residual is not None])
        on_device = self.here(tokens, positions, owners)
        return self.forward(
            Pass(
                on_device[0],
                on_device[1],
                table,
                on_device[2],
                layers_cut([chunk.mask for chunk in chunks]),
                PrefillAttention(blocks, keeper),
                self.here(read)[0],
                start,
                residual,
            )
        )

    def step(
        self,
        table: MaskTable,
        room: KeySlots,
        rows: Sequence[FedRow],
        shared: Sequence[LayerShared],
    ) -> Float[Tensor, "rows vocabulary"]:
        """Feed row i its token in slot i, and return its next-token logits."""
        fed = [
            (
                row.token,
                row.kept + (row.segment.length if row.segment else 0),
                row.mask.number,
                row.kept,
            )
            for row in rows
        ]
        tokens, positions, owners, places = self.here(*zip(*fed, strict=True))
        reach = max(row.kept for row in rows) + 1
        attention = DecodeAttention(room, places, shared, reach)
        read = torch.arange(len(tokens), device=tokens.device)
        layers = layers_cut([row.mask for row in rows])
        return self.forward(Pass(tokens, positions, table, owners, layers, attention, read))

    def into_slots(
        self, room: KeySlots, slots: Sequence[int], chunks: Sequence[Chunk]
    ) -> SlotKeeper:
        """Return what keeps the chunks of a pass from the beginning of these slots on."""
        pairs = list(zip(slots, (len(chunk.tokens) for chunk in chunks), strict=True))
        here = self.here(
            [slot for slot, length in pairs for _ in range(length)],
            [place for _, length in pairs for place in range(length)],
        )
        return SlotKeeper(room, here[0], here[1])

    def here(self, *numbers: Sequence[int]) -> Int[Tensor, "lists numbers"]:
        """Put lists of numbers, equally long, on the model's device in one copy."""
        return send([list(each) for each in numbers], self.device)


def _group_chunks(chunks: Sequence[Chunk]) -> list[PrefillBlock]:
    """Make blocks of neighbours that are equally long and read the same."""
    found, first = list[PrefillBlock](), 0

    def shape(chunk: Chunk) -> tuple[int, int, int]:
        return len(chunk.tokens), id(chunk.segment), id(chunk.tree)

    for (length, *_), alike in groupby(chunks, key=shape):
        rows = list(alike)
        found.append(PrefillBlock(first, len(rows), length, rows[0].segment, rows[0].tree))
        first += length * len(rows)
    return found


class DecoderStack:
    """The decoder layers, bottom up. Depth d is the residual stream that goes into layer d."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self.layers = list(layers)
        self.in_tuple = False  # whether a layer's output is a tuple: seen while recording

    @contextmanager
    def recorded(self, depths: Iterable[int]) -> Iterator[dict[int, Residuals]]:
        """Keep the residual stream of a forward pass at these depths, for a block."""
        kept: dict[int, Residuals] = {}

        def note(depth: int, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            # cloned: some layers add to their input in place
            kept[depth] = _hidden(args, kwargs).clone()

        def see_form(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            self.in_tuple = isinstance(output, tuple)

        def register() -> Iterator[Any]:
            for depth in depths:
                layer = self.layers[depth]
                yield layer.register_forward_pre_hook(partial(note, depth), with_kwargs=True)
            yield from (layer.register_forward_hook(see_form) for layer in self.layers[:1])

        with temporary_hooks(register()):
            yield kept

    @contextmanager
    def started(self, depth: int, residual: Residuals | None) -> Iterator[None]:
        """Skip the layers below `depth`, for a block; `residual` goes into that layer.

        Whatever the model does outside its layers (embedding, rotary positions, final norm) is
        done as always.
        """
        handed = (residual,) if self.in_tuple else residual
        with ExitStack() as back:
            for layer in self.layers[: depth if residual is not None else 0]:
                back.enter_context(forward_as(layer, lambda *args, **kwargs: handed))
            yield


def _hidden(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    hidden: Tensor = args[0] if args else kwargs["hidden_states"]
    return hidden


@dataclass(eq=False)
class IntactRecord:
    """The intact model's residual stream and keys over some tokens."""

    tokens: tuple[int, ...]
    segment: Segment
    residual: dict[int, Residual]

    def start(self, cut: int) -> int:
        """Return the deepest recorded depth at or below a mask's first cut."""
        return min(cut, max(self.residual, default=0))

    def part(self, first: int, last: int) -> "IntactRecord":
        """Return the record of some of the tokens, as views."""
        residual = {depth: stream[first:last] for depth, stream in self.residual.items()}
        return IntactRecord(self.tokens[first:last], self.segment.part(first, last), residual)


class IntactRecords:
    """Records of a plan's prompts and prefixes, and each mask's own reading of a prefix.

    It counts the tokens run that belong to no one row, in units of a pass through all layers, until
    a row pays for them.
    """

    def __init__(self, packed: PackedModel, plan: BatchPlan, masks: Sequence[NumberedMask]) -> None:
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
        if number not in self.of_prefix:
            self.of_prefix.clear()  # stages go through the prefixes one after another
            tokens = self.plan.prefixes[number]
            chunk = Chunk(tokens, self.masks[INTACT], [len(tokens) - 1])
            (self.of_prefix[number],) = self._recorded([chunk], self.plan.deep)
        return self.of_prefix[number]

    def prefix_segment(self, prompt: int) -> Segment | None:
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

    def kept_segments(self) -> list[Segment]:
        """Return the segments of prefixes that are kept whether rows read them or not."""
        newest = [] if self.latest is None else [self.latest]
        return [*newest, *(record.segment for record in self.of_prefix.values())]

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

    def record(self, prompts: Sequence[int], chunks: Sequence[Chunk]) -> None:
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
            found = self._recorded(chunks[first:last], True)
            self.records.update(zip(prompts[first:last], found, strict=True))
            first = last

    def _recorded(self, chunks: Sequence[Chunk], deep: bool) -> list[IntactRecord]:
        """Read chunks under no mask, and keep everything."""
        keeper, depths = SegmentKeeper(self.packed.depth), range(1, self.packed.depth)
        with self.packed.switch.alone(), self.packed.stack.recorded(depths if deep else ()) as kept:
            self.packed.read(self.table, chunks, 0, keeper)
        residual = {depth: rows[0] for depth, rows in kept.items()}
        tokens = tuple(token for chunk in chunks for token in chunk.tokens)
        self.due += self.cost(len(tokens))
        whole, records, first = IntactRecord(tokens, keeper.segment, residual), [], 0
        for chunk in chunks:
            records.append(whole.part(first, first + len(chunk.tokens)))
            first += len(chunk.tokens)
        return records
