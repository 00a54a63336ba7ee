"""One forward pass over packed rows, each token under its own row's mask."""

import inspect
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any
from weakref import finalize

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from caploc.engine.asks import NumberedMask
from caploc.engine.attention import (
    AttentionSwitch,
    DecodeAttention,
    KeysKnown,
    PackedAttention,
    PrefillAttention,
    PrefillBlock,
    SharedKeys,
)
from caploc.engine.keys import KeyKeeper, KeySlots, Segment, SlotKeeper
from caploc.engine.memory import model_devices
from caploc.models.cutting import PackedCut, forward_as
from caploc.models.loading import CutModel
from caploc.models.projections import decoder_layers

Residual = Float[Tensor, "tokens hidden"]
Residuals = Float[Tensor, "rows tokens hidden"]
MaskTable = Bool[Tensor, "masks heads"]  # a row for each numbered mask; here True is kept


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

    @property
    def shape(self) -> tuple[int, int, int]:
        """Chunks of equal shape share a block of attention."""
        return len(self.tokens), id(self.segment), id(self.tree)


@dataclass(eq=False)
class FedRow:
    """What a running row is fed in a step, and how many of its own tokens have keys in its slot."""

    tokens: Sequence[int]
    mask: NumberedMask
    kept: int
    segment: Segment | None


@dataclass(eq=False)
class Pass:
    """One forward pass over packed tokens, all tensors on the model's device.

    Row `owners[i]` of the mask table holds for token i; `layers` are the layers that any of these
    masks cuts, as bits. The logits after the tokens at the places `read` are wanted. With `start`,
    `residual` goes into that layer and those below are skipped. `tails` are the places that the
    last layer answers for (None: all); it is asked for them as `narrowed` does.
    """

    tokens: Int[Tensor, " tokens"]
    positions: Int[Tensor, " tokens"]
    table: MaskTable
    owners: Int[Tensor, " tokens"]
    layers: int
    attention: PackedAttention
    read: Int[Tensor, " read"]
    start: int = 0
    residual: Residual | None = None
    tails: Int[Tensor, " tails"] | None = None


class PackedModel:
    """A model that reads packed rows. The hooks that cut by masks stay as long as it lives."""

    def __init__(self, loaded: CutModel, longest: int, *, narrows: bool = True) -> None:
        """Find the decoder's layers; rows of at most `longest` tokens are given to it.

        `narrows` says whether the last layer may be asked for some of the tokens alone.
        """
        self.loaded, self.model, self.longest = loaded, loaded.model, longest
        self.narrows = narrows
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
        return (~torch.stack([mask.heads for mask in masks])).to(self.device)

    def forward(self, one: Pass) -> Float[Tensor, "read vocabulary"]:
        """Run a pass; return the logits it wants."""
        # the last layer may be on another device than the first, and a place on the host fits any
        read = one.read.cpu() if self.spread else one.read
        where = {"logits_to_keep": read} if self.picks else {}
        with (
            self.switch.attending(one.attention),
            self.cut.cutting(one.table, one.owners, one.layers, one.tails),
            self.stack.started(one.start, None if one.residual is None else one.residual[None]),
            narrowed(self.stack.layers[-1], one.tails),
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
        tokens: list[int] = []
        positions: list[int] = []
        owners: list[int] = []
        read: list[int] = []
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
        tails = self.tails(blocks)
        on_device = self.here(tokens, positions, owners)
        return self.forward(
            Pass(
                on_device[0],
                on_device[1],
                table,
                on_device[2],
                _layers_cut([chunk.mask for chunk in chunks]),
                PrefillAttention(blocks, keeper, None if tails is None else self.depth - 1),
                self.here(read)[0],
                start,
                residual,
                tails,
            )
        )

    def step(
        self,
        table: MaskTable,
        room: KeySlots,
        rows: Sequence[FedRow],
        shared: Sequence[Sequence[SharedKeys]],
    ) -> Float[Tensor, "tokens vocabulary"]:
        """Feed running rows, row i in slot i, and return the logits after each token fed."""
        slots = [slot for slot, row in enumerate(rows) for _ in row.tokens]
        places = [row.kept + n for row in rows for n in range(len(row.tokens))]
        before = [row.segment.length if row.segment else 0 for row in rows]
        here = self.here(
            [token for row in rows for token in row.tokens],
            [before[slot] + place for slot, place in zip(slots, places, strict=True)],
            [rows[slot].mask.number for slot in slots],
            slots,
            places,
        )
        longest, reach = max(len(row.tokens) for row in rows), max(places) + 1
        kept = self.here([row.kept for row in rows])[0]
        attention = DecodeAttention(room, here[3], here[4], kept, shared, longest, reach)
        layers, read = (
            _layers_cut([row.mask for row in rows]),
            torch.arange(len(slots), device=self.device),
        )
        return self.forward(Pass(here[0], here[1], table, here[2], layers, attention, read))

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

    def tails(self, blocks: Sequence[PrefillBlock]) -> Int[Tensor, " tails"] | None:
        """Find the places in a pass after which predictions are wanted; None for all of them."""
        if not self.narrows or all(block.tail == block.length for block in blocks):
            return None
        return self.here([place for block in blocks for place in block.tails])[0]

    def decided(
        self, logits: Float[Tensor, "read vocabulary"], began: float
    ) -> tuple[list[int], float]:
        """Choose the likeliest tokens, as a team's leader does; also the seconds since then."""
        best: list[int] = logits.argmax(-1).tolist()
        seconds = time.perf_counter() - began
        if self.loaded.team is None:
            return best, seconds
        told, *tokens = self.loaded.team.agree([seconds, *map(float, best)])
        return [int(token) for token in tokens], told

    def here(self, *numbers: Sequence[int]) -> Int[Tensor, "lists numbers"]:
        """Put lists of numbers, equally long, on the model's device in one copy."""
        pinned = self.device.type == "cuda"  # copied while the host goes on
        host = torch.tensor([list(each) for each in numbers], dtype=torch.long, pin_memory=pinned)
        return host.to(self.device, non_blocking=True)


def _layers_cut(masks: Sequence[NumberedMask]) -> int:
    """Join the layers that masks cut, as bits."""
    return reduce(or_, (mask.layers for mask in masks), 0)


def _group_chunks(chunks: Sequence[Chunk]) -> list[PrefillBlock]:
    """Join neighbours of equal shape to blocks."""
    found: list[PrefillBlock] = []
    first, last = 0, None
    for chunk in chunks:
        tail = len(chunk.tokens) - min(chunk.read)
        if chunk.shape == last:
            found[-1].rows += 1
            found[-1].tail = max(found[-1].tail, tail)
        else:
            length, segment = len(chunk.tokens), chunk.segment
            found.append(PrefillBlock(first, 1, length, tail, segment, chunk.tree))
        first, last = first + len(chunk.tokens), chunk.shape
    return found


class DecoderStack:
    """The decoder layers, bottom up. Depth d is the residual stream that goes into layer d."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self.layers = list(layers)
        self.in_tuple = False  # whether a layer's output is a tuple: seen while recording

    @contextmanager
    def recorded(self, depths: Sequence[int]) -> Iterator[dict[int, Residuals]]:
        """Keep the residual stream of a forward pass at these depths, for a block."""
        kept: dict[int, Residuals] = {}
        with ExitStack() as hooks:
            for depth in depths:

                def note(
                    module: nn.Module,
                    args: tuple[Any, ...],
                    kwargs: dict[str, Any],
                    depth: int = depth,
                ) -> None:
                    # cloned: some layers add to their input in place
                    kept[depth] = _hidden(args, kwargs).clone()

                handle = self.layers[depth].register_forward_pre_hook(note, with_kwargs=True)
                hooks.callback(handle.remove)
            if self.layers:
                hooks.callback(self.layers[0].register_forward_hook(self._see_form).remove)
            yield kept

    def _see_form(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self.in_tuple = isinstance(output, tuple)

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


@contextmanager
def narrowed(layer: nn.Module, tails: Int[Tensor, " tails"] | None) -> Iterator[None]:
    """Have the last layer compute only these tokens of the pass, for a block; None: all of them.

    Of the others it must only know keys and values. So the layer is called twice: with all tokens,
    until attention has their keys and values, and with the tails of the rows, which then read them.
    Its output is 0 for all others.
    """
    if tails is None:
        yield
        return
    usual = layer.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        hidden = _hidden(args, kwargs)
        try:
            return usual(*args, **kwargs)
        except KeysKnown:
            pass  # what follows is outside: the handler holds on to the first call's tensors
        count = hidden.shape[1]
        output = usual(
            *(select_tokens(value, tails, count) for value in args),
            **{name: select_tokens(value, tails, count) for name, value in kwargs.items()},
        )
        some: Tensor = output[0] if isinstance(output, tuple) else output
        every = some.new_zeros(hidden.shape)  # the layer may hand it on from another device
        every[:, tails.to(some.device)] = some
        return (every, *output[1:]) if isinstance(output, tuple) else every

    with forward_as(layer, forward):
        yield


def select_tokens(value: Any, chosen: Int[Tensor, " tails"], count: int) -> Any:
    """Narrow what a layer is handed for each of `count` tokens to the chosen ones."""
    if isinstance(value, tuple):
        return tuple(select_tokens(one, chosen, count) for one in value)
    if not isinstance(value, Tensor):
        return value
    if value.shape[:2] == (1, count):
        return value[:, chosen.to(value.device)]  # wherever the layer before has left it
    return value[chosen.to(value.device)] if value.shape == (count,) else value


def _hidden(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    hidden: Tensor = args[0] if args else kwargs["hidden_states"]
    return hidden
