"""Attention over packed rows: many rows of different lengths, one after another in one sequence.

Everything else in a decoder works token by token, so that rows packed end to end need no padding.
Attention alone must know which token belongs to which row. transformers hands every attention
layer's queries, keys and values to the function its config names; the one registered here passes
them to whatever `AttentionSwitch.attending` has set for this thread: a `PrefillAttention` for rows
that are read from their beginning, a `DecodeAttention` for rows that go a token further.

Keys and values that outlive a pass are kept as segments, which many rows share, and in the slots of
running rows.

Axes: `tokens` are those of all rows of the pass; `heads` query heads; `groups` key-value heads;
`asked` the queries of all heads that read one key-value head; `width` that of a key or a value.
Groups and widths may differ between layers, and are `_` in lists of layers.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import accumulate
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from caploc.engine.kernels import (
    Pairs,
    RaggedRows,
    SharedRows,
    attend_slots,
    has_kernel,
    join_parts,
    multiply,
    reads_ragged,
    scale_first,
    slot_pairs,
)
from caploc.errors import ModelBusy

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
        return self._changed(last - first, lambda kept: kept[:, first:last])

    def copied(self) -> "Segment":
        """Return the same in tensors of its own, so that what it is a view of can be let go."""
        own = partial(torch.clone, memory_format=torch.contiguous_format)
        return self._changed(self.length, own)

    def _changed(self, length: int, change: Callable[[Tensor], Tensor]) -> "Segment":
        both = (self.keys, self.values)
        return Segment(length, *([x if x is None else change(x) for x in kept] for kept in both))


@dataclass(eq=False)
class KeySlots:
    """Room for the keys and values of `rows` running rows, `length` own tokens each.

    Running rows hold the first slots without gaps, so that a step reads one block of memory. A
    layer's tensors are made when its first keys come, on their device and of their type.
    """

    rows: int
    length: int
    layers: int

    def __post_init__(self) -> None:
        self.keys: list[Float[Tensor, "rows _ length _"] | None] = [None] * self.layers
        self.values: list[Float[Tensor, "rows _ length _"] | None] = [None] * self.layers

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


@dataclass(eq=False)
class SlotKeeper:
    """Keeps a pass in the slots of its rows."""

    room: KeySlots
    slots: Int[Tensor, " tokens"]
    places: Int[Tensor, " tokens"]

    def keep(self, layer: int, keys: Keys, values: Keys) -> None:
        if self.slots.device != keys.device:  # the layers of another device begin
            self.slots, self.places = (x.to(keys.device) for x in (self.slots, self.places))
        self.room.write(layer, self.slots, self.places, keys, values)


class SegmentKeeper:
    """Keeps a whole pass as one segment."""

    def __init__(self, layers: int) -> None:
        self.segment = Segment(0, [None] * layers, [None] * layers)

    def keep(self, layer: int, keys: Keys, values: Keys) -> None:
        """Keep one layer, contiguous: it is read many times, and what it is a view of is let go."""
        self.segment.length = keys.shape[1]
        self.segment.keys[layer] = keys.contiguous()
        self.segment.values[layer] = values.contiguous()


KeyKeeper = SlotKeeper | SegmentKeeper


NAME = "caploc_packed"
# What some models hand to attention that packed attention does not know, and refuses.
UNKNOWN = ("softcap", "s_aux", "position_bias", "head_mask")
BUSY = (
    "Another thread runs knocked-out rows through this model; wait until it has its answers, or "
    "load the model once for each thread."
)
Queries = Float[Tensor, "heads tokens width"]
PartRead = tuple[Float[Tensor, "rows groups asked read"], Float[Tensor, "rows groups asked"]]


class Unsupported(Exception):
    """The model asks something of attention that packed attention does not know."""


@dataclass(eq=False)
class PrefillBlock:
    """Rows of equal length, side by side in the pass, that read the same segment first.

    `tree` says which tokens of a row each of its tokens reads; None is all up to itself.
    """

    first: int  # the block's first token in the pass
    rows: int
    length: int
    segment: Segment | None = None
    tree: Bool[Tensor, "length length"] | None = None
    bias: Tensor | None = field(init=False, default=None)

    def read(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float
    ) -> Float[Tensor, "rows heads length width"]:
        """Return what each head reads for each token; all are rows heads tokens width."""
        if self.segment is None and self.tree is None:
            shared = queries.shape[1] // keys.shape[1]
            if queries.device.type != "cpu":  # only the CPU's kernel knows shared key-value heads
                keys, values = (x.repeat_interleave(shared, 1) for x in (keys, values))
            return F.scaled_dot_product_attention(
                queries, keys, values, is_causal=True, scale=scale, enable_gqa=shared > 1
            )
        asked = _grouped(queries, keys.shape[1])
        own = _attend_part(asked, keys, values, scale, self._mask(asked))
        if self.segment is None:
            return _ungrouped(own[0], self.length)
        kept, kept_values = self.segment.keys[layer], self.segment.values[layer]
        assert kept is not None and kept_values is not None
        before = _attend_segment(asked, kept, kept_values, scale)
        return _ungrouped(_merged(before, own), self.length)

    def _mask(self, asked: Tensor) -> Float[Tensor, "asked length"]:
        """Return as a bias which of its row's tokens each token reads."""
        shape = asked.shape[2], self.length
        if self.bias is None or self.bias.device != asked.device or self.bias.shape != shape:
            every, seen = (self.length, self.length), self.tree
            if seen is None:
                seen = torch.ones(every, dtype=torch.bool, device=asked.device).tril()
            bias = _as_bias(seen.to(asked.device), asked.dtype)
            self.bias = bias.repeat(shape[0] // self.length, 1)
        return self.bias


@dataclass(eq=False)
class PrefillAttention:
    """Attends for rows read from their beginning; blocks cover all tokens in order."""

    blocks: Sequence[PrefillBlock]
    keeper: KeyKeeper | None = None
    ragged: dict[torch.device, RaggedRows] = field(init=False, default_factory=dict)

    def attend(
        self, layer: int, queries: Queries, keys: Keys, values: Keys, scale: float
    ) -> Float[Tensor, "tokens heads width"]:
        """Return what each head reads for each token."""
        if self.keeper is not None:
            self.keeper.keep(layer, keys, values)
        if reads_ragged(queries, values) and self.uniform():
            return self._ragged(queries.device).attend(layer, queries, keys, values, scale)
        heads, tokens, _ = queries.shape
        read = values.new_empty((tokens, heads, values.shape[-1]))
        for block in self.blocks:
            place = slice(block.first, block.first + block.rows * block.length)
            shape = block.rows, block.length
            q, k, v = (
                x[:, place].unflatten(1, shape).transpose(0, 1) for x in (queries, keys, values)
            )
            out = block.read(layer, q, k, v, scale)
            read[place].unflatten(0, shape).copy_(out.transpose(1, 2))
        return read

    def uniform(self) -> bool:
        """Say whether no row branches, and either all rows read a segment or none does."""
        kinds = {block.segment is None for block in self.blocks}
        return len(kinds) == 1 and all(block.tree is None for block in self.blocks)

    def _ragged(self, device: torch.device) -> RaggedRows:
        """Describe the pass's rows on a device, made once for all its layers."""
        if device not in self.ragged:
            rows = [
                (block.length, block.segment) for block in self.blocks for _ in range(block.rows)
            ]
            self.ragged[device] = RaggedRows.of(rows, device)
        return self.ragged[device]


@dataclass(eq=False)
class SharedKeys:
    """One layer of a segment, and which running rows read it; `place` is they, for an index."""

    keys: Keys
    values: Keys
    rows: tuple[int, ...]
    place: Int[Tensor, " members"] | slice  # neighbours as a slice


@dataclass(eq=False)
class JoinedKeys:
    """One layer of segments, end to end. `held` are their keys, views of it, and where each begins.

    Views are held by id: another tensor could get the id of one that is gone.
    """

    keys: Keys
    values: Keys
    held: dict[int, tuple[int, Tensor]]


@dataclass(eq=False)
class LayerShared:
    """What running rows read of segments in one layer: `parts`, and all of them in one product."""

    parts: Sequence[SharedKeys]
    joined: JoinedKeys | None = None
    together: SharedRows | None = None


class SharedSegments:
    """The segments that running rows read.

    A prefix has keys and values of its own under each mask. A product for each would have the host
    start more operations, the more masks run. So where there is a kernel for it, a layer's keys are
    put end to end, and the segments become views of them: nothing stands twice.
    """

    def __init__(self, layers: int, device: torch.device, dtype: torch.dtype) -> None:
        self.joins = has_kernel(device, dtype)
        self.joined: list[JoinedKeys | None] = [None] * layers

    def keep(self, segments: Iterable[Segment | None]) -> None:
        """Join these segments, the only ones that rows may read, and let go what is no more."""
        if self.joins:
            living = [each for each in segments if each is not None]
            self.joined = [_join(n, before, living) for n, before in enumerate(self.joined)]

    def readers(self, segments: Sequence[Segment | None]) -> list[LayerShared]:
        """Return what rows read in each layer whose segments these are; None reads nothing.

        Segments with equal keys are one: below their masks' first cuts, rows of different masks
        read the same tensors.
        """
        members: dict[Segment, list[int]] = {}
        for row, segment in enumerate(segments):
            if segment is not None:
                members.setdefault(segment, []).append(row)
        together = cache(SharedRows.of)  # most layers have the readers of the layer below

        @cache
        def place(rows: tuple[int, ...], device: torch.device) -> Int[Tensor, " members"] | slice:
            neighbours = rows[-1] - rows[0] == len(rows) - 1
            return slice(rows[0], rows[-1] + 1) if neighbours else torch.tensor(rows, device=device)

        found = []
        for layer, joined in enumerate(self.joined):
            readers: dict[int, tuple[Tensor, Tensor, list[int]]] = {}
            for segment, rows in members.items():
                keys, values = segment.keys[layer], segment.values[layer]
                if keys is not None and values is not None:
                    readers.setdefault(id(keys), (keys, values, []))[2].extend(rows)
            each = [(keys, values, tuple(sorted(rows))) for keys, values, rows in readers.values()]
            if joined is None or not each:
                parts = [SharedKeys(k, v, rows, place(rows, k.device)) for k, v, rows in each]
                found.append(LayerShared(parts))
            else:
                spans = tuple((rows, joined.held[id(k)][0], k.shape[1]) for k, _, rows in each)
                found.append(LayerShared([], joined, together(spans, joined.keys.device)))
        return found


def _join(layer: int, before: JoinedKeys | None, segments: Sequence[Segment]) -> JoinedKeys | None:
    """Put one layer of segments end to end, unless they stand so already."""
    owners: dict[int, list[Segment]] = {}
    for segment in segments:
        if segment.keys[layer] is not None:
            owners.setdefault(id(segment.keys[layer]), []).append(segment)
    if not owners or (before is not None and owners.keys() == before.held.keys()):
        return before if owners else None
    keys: Any = [each[0].keys[layer] for each in owners.values()]
    values: Any = [each[0].values[layer] for each in owners.values()]
    joined = JoinedKeys(torch.cat(keys, 1), torch.cat(values, 1), {})
    ends = accumulate(each.shape[1] for each in keys)
    for same, end in zip(owners.values(), ends, strict=True):
        first = end - same[0].length
        views = joined.keys[:, first:end], joined.values[:, first:end]
        for segment in same:
            segment.keys[layer], segment.values[layer] = views
        joined.held[id(views[0])] = first, views[0]
    return joined


@dataclass(eq=False)
class DecodeAttention:
    """Attends for running rows, with one new token each: row i holds slot i.

    `places` say where in its slot each row's new key and value go.
    """

    room: KeySlots
    places: Int[Tensor, " rows"]
    shared: Sequence[LayerShared]  # layer by layer
    reach: int  # most own tokens of a row, the new one included
    bias: Tensor | None = field(init=False, default=None)
    pairs: dict[tuple[int, int], Pairs] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.slots = torch.arange(len(self.places), device=self.places.device)

    def attend(
        self, layer: int, queries: Queries, keys: Keys, values: Keys, scale: float
    ) -> Float[Tensor, "rows heads width"]:
        if self.slots.device != keys.device:  # a pass meets each device's layers once
            self.slots, self.places = (x.to(keys.device) for x in (self.slots, self.places))
            self.bias = None if self.bias is None else self.bias.to(keys.device)
            self.pairs.clear()
        self.room.write(layer, self.slots, self.places, keys, values)
        kept, kept_values = self.room.keys[layer], self.room.values[layer]
        assert kept is not None and kept_values is not None
        shared = self.shared[layer]
        if reads_ragged(queries, values):
            read, weight = attend_slots(
                queries, kept, kept_values, self._pairs(queries, kept), scale
            )
            if shared.joined is None or shared.together is None:
                return read
            joined = shared.joined.keys, shared.joined.values
            return join_parts(read, weight, *shared.together.attend(queries, *joined, scale))
        own_keys, own_values = (x[: len(self.slots), :, : self.reach] for x in (kept, kept_values))
        asked = _grouped(queries.transpose(0, 1)[:, :, None], keys.shape[0])
        own = _attend_part(asked, own_keys, own_values, scale, self._mask(asked))
        if not shared.parts:
            return own[0].flatten(1, 2)
        read, weight = torch.zeros_like(own[0]), torch.full_like(own[1], -torch.inf)
        for part in shared.parts:
            read[part.place], weight[part.place] = _attend_segment(
                asked[part.place], part.keys, part.values, scale
            )
        return _merged((read, weight), own).flatten(1, 2)

    def _pairs(self, queries: Queries, kept: Float[Tensor, "slots groups length width"]) -> Pairs:
        """Pair rows with their own keys, made once for all layers that are alike."""
        _, groups, length, _ = kept.shape
        asked = queries.shape[0] // groups
        if (groups, asked) not in self.pairs:
            self.pairs[groups, asked] = slot_pairs(self.places, self.reach, groups, asked, length)
        return self.pairs[groups, asked]

    def _mask(self, asked: Tensor) -> Float[Tensor, "rows groups asked reach"]:
        """Return as a bias which own tokens each row's queries read."""
        if self.bias is None:
            seen = torch.arange(self.reach, device=asked.device) <= self.places[:, None]
            self.bias = _as_bias(seen, asked.dtype)[:, None, None]
        return self.bias.expand(-1, *asked.shape[1:3], -1)


def _attend_part(
    queries: Float[Tensor, "rows groups asked width"],
    keys: Float[Tensor, "rows groups tokens width"],
    values: Float[Tensor, "rows groups tokens read"],
    scale: float,
    bias: Float[Tensor, "..."] | None,
) -> PartRead:
    """Attend to a part of the tokens; also the logarithm of the weight that the part deserves.

    On a CPU this is the kernel behind `scaled_dot_product_attention`, which hides the second.
    """
    if queries.device.type == "cpu":
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            queries, keys, values, 0.0, False, attn_mask=bias, scale=scale
        )
    queries, scale = scale_first(queries, scale)
    products = multiply(queries.flatten(0, 1), keys.flatten(0, 1))
    scores = products.mul_(scale).unflatten(0, (len(queries), -1))
    if bias is not None:
        scores += bias
    weights = scores.softmax(-1).to(values.dtype)
    return weights @ values, scores.logsumexp(-1)


def _attend_segment(
    asked: Float[Tensor, "rows groups asked width"], keys: Keys, values: Keys, scale: float
) -> PartRead:
    """Attend to one segment for many rows, in one product for all of them."""
    everyone = asked.transpose(0, 1).flatten(1, 2)[None]
    read, weight = _attend_part(everyone, keys[None], values[None], scale, None)
    shape = (len(asked), -1)
    read, weight = (each[0].unflatten(1, shape).transpose(0, 1) for each in (read, weight))
    return read, weight


def _merged(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> Tensor:
    """Join the attention to two parts; a part of weight -inf counts nothing."""
    (read, weight), (other, other_weight) = first, second
    share = torch.sigmoid(weight - other_weight)[..., None]
    return (other + share * (read - other)).to(other.dtype)


def _grouped(queries: Float[Tensor, "rows heads tokens width"], groups: int) -> Tensor:
    """Put queries of all heads that read one key-value head together: rows groups asked width."""
    return queries.unflatten(1, (groups, -1)).flatten(2, 3)


def _ungrouped(read: Float[Tensor, "rows groups asked width"], tokens: int) -> Tensor:
    """Undo `_grouped` for what the queries read: rows heads tokens width."""
    return read.unflatten(2, (-1, tokens)).flatten(1, 2)


def _as_bias(seen: Bool[Tensor, "..."], dtype: torch.dtype) -> Tensor:
    """Return 0 where a token is seen and minus infinity where it is not."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)


_local = threading.local()
_making = threading.Lock()
_locks: "WeakKeyDictionary[PreTrainedModel, threading.RLock]" = WeakKeyDictionary()


class AttentionSwitch:
    """Sets a model's attention function, for which transformers looks into its configs.

    It does what `set_attn_implementation` does without going through all modules in every pass.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        configs = (getattr(module, "config", None) for module in model.modules())
        found = {id(config): config for config in configs if config is not None}
        self.configs: list[Any] = list(found.values())
        with _making:
            self.lock = _locks.setdefault(model, threading.RLock())
        self.usual = [config._attn_implementation for config in self.configs]

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other threads from changing how the model runs, for a block."""
        if not self.lock.acquire(blocking=False):
            raise ModelBusy(BUSY)
        try:
            yield
        finally:
            self.lock.release()

    @contextmanager
    def attending(self, attention: PrefillAttention | DecodeAttention) -> Iterator[None]:
        """Have this thread's forward passes of the model use `attention`, for a block.

        Raises ModelBusy if another thread is inside such a block; in another's forward pass.
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


def _attend_packed(
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
    return attention.attend(layer, query[0], key[0], value[0], scale)[None], None


AttentionInterface.register(NAME, _attend_packed)
