"""One forward pass over packed rows, each token under its own row's mask."""

import inspect
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from caploc.engine.attention import Attention, Switch
from caploc.engine.keys import Keys, Segment, Slots
from caploc.engine.memory import devices
from caploc.engine.reading import Block, Keeper, Reading
from caploc.engine.stack import Residual, Stack
from caploc.engine.tails import narrowed
from caploc.models.cutting import knocked_out
from caploc.models.loading import CutModel
from caploc.models.projections import decoder_layers


@dataclass(eq=False)
class Chunk:
    """A row's tokens in a pass that reads it from its beginning, after its segment.

    `tree` and `depths` are for rows that branch: which of the row's tokens each token reads, and
    how many tokens of the row stand before it on its branch. `start` residuals replace the layers
    below; all chunks of a pass start at the same depth.
    """

    tokens: Sequence[int]
    mask: Bool[Tensor, " heads"]
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
class Pass:
    """One forward pass over packed tokens.

    `owners` are the tokens' rows in `masks`; the logits after the tokens at the places `read` are
    wanted. With `start`, `residual` goes into that layer and those below are skipped. `tails` are
    the places that the last layer answers for (None: all); it is asked for them as `narrowed` does.
    """

    tokens: Int[Tensor, " tokens"]
    positions: Int[Tensor, " tokens"]
    masks: Bool[Tensor, "rows heads"]
    owners: Int[Tensor, " tokens"]
    attention: Attention
    read: Int[Tensor, " read"]
    start: int = 0
    residual: Residual | None = None
    tails: Int[Tensor, " tails"] | None = None


class PackedModel:
    """A model that reads packed rows."""

    def __init__(self, loaded: CutModel, longest: int, *, narrows: bool = True) -> None:
        """Find the decoder's layers; rows of at most `longest` tokens are given to it.

        `narrows` says whether the last layer may be asked for some of the tokens alone.
        """
        self.loaded, self.model, self.longest = loaded, loaded.model, longest
        self.narrows = narrows
        self.device = loaded.device
        self.spread = len(devices(loaded.model)) > 1
        self.depth = len(loaded.projections)
        self.stack = Stack(decoder_layers(loaded.model, loaded.projections))
        self.switch = Switch(loaded.model)
        self.picks = "logits_to_keep" in inspect.signature(loaded.model.forward).parameters

    def forward(self, one: Pass) -> Float[Tensor, "read vocabulary"]:
        """The logits a pass wants."""
        # the last layer may be on another device than the first, and a place on the host fits any
        read = one.read.cpu() if self.spread else one.read
        where = {"logits_to_keep": read} if self.picks else {}
        with (
            self.switch.attending(one.attention),
            self.cut(one),
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

    @contextmanager
    def cut(self, one: Pass) -> Iterator[None]:
        """Inside the block, each token loses its row's heads; the last layer has tails alone."""
        projections, grid = self.loaded.projections, self.loaded.grid
        if one.tails is None:
            with knocked_out(projections, grid, one.masks, packed=one.owners):
                yield
            return
        last = torch.zeros(grid.size, dtype=torch.bool, device=one.masks.device)
        last[grid.layer_slices[-1]] = True
        with (
            knocked_out(projections, grid, one.masks & ~last, packed=one.owners),
            knocked_out(projections, grid, one.masks & last, packed=one.owners[one.tails]),
        ):
            yield

    def read(
        self, chunks: Sequence[Chunk], start: int = 0, keeper: Keeper | None = None
    ) -> Float[Tensor, "read vocabulary"]:
        """Read rows from their beginning, and return the logits each wants, chunk by chunk."""
        tokens: list[int] = []
        positions: list[int] = []
        owners: list[int] = []
        read: list[int] = []
        for number, chunk in enumerate(chunks):
            before = chunk.segment.length if chunk.segment else 0
            depths = chunk.depths or range(len(chunk.tokens))
            positions += [before + depth for depth in depths]
            owners += [number] * len(chunk.tokens)
            read += [len(tokens) + place for place in chunk.read]
            tokens += chunk.tokens
        residual, found = None, blocks(chunks)
        if start:
            residual = torch.cat([c.residual for c in chunks if c.residual is not None])
        tails = self.tails(found)
        return self.forward(
            Pass(
                self.here(tokens),
                self.here(positions),
                torch.stack([chunk.mask for chunk in chunks]),
                torch.tensor(owners),
                Reading(found, keeper, None if tails is None else self.depth - 1),
                self.here(read),
                start,
                residual,
                tails,
            )
        )

    def tails(self, found: Sequence[Block]) -> Int[Tensor, " tails"] | None:
        """The places in a pass after which predictions are wanted, or None for all of them."""
        if not self.narrows or all(block.tail == block.length for block in found):
            return None
        return torch.cat([block.tails for block in found])

    def decided(
        self, logits: Float[Tensor, "read vocabulary"], began: float
    ) -> tuple[list[int], float]:
        """The likeliest tokens, and the seconds since then: the leader's, of a team's processes."""
        best: list[int] = logits.argmax(-1).tolist()
        seconds = time.perf_counter() - began
        if self.loaded.team is None:
            return best, seconds
        told, *tokens = self.loaded.team.agree([seconds, *map(float, best)])
        return [int(token) for token in tokens], told

    def here(self, numbers: Sequence[int]) -> Int[Tensor, " numbers"]:
        """Numbers on the model's device."""
        pinned = self.device.type == "cuda"  # copied while the host goes on
        host = torch.tensor(list(numbers), dtype=torch.long, pin_memory=pinned)
        return host.to(self.device, non_blocking=True)


def blocks(chunks: Sequence[Chunk]) -> list[Block]:
    """Neighbours of equal shape, as blocks."""
    found: list[Block] = []
    first, last = 0, None
    for chunk in chunks:
        tail = len(chunk.tokens) - min(chunk.read)
        if chunk.shape == last:
            found[-1].rows += 1
            found[-1].tail = max(found[-1].tail, tail)
        else:
            found.append(Block(first, 1, len(chunk.tokens), tail, chunk.segment, chunk.tree))
        first, last = first + len(chunk.tokens), chunk.shape
    return found


@dataclass(eq=False)
class IntoSlots:
    """Keeps a pass in the slots of its rows."""

    room: Slots
    slots: Int[Tensor, " tokens"]
    places: Int[Tensor, " tokens"]

    def keep(self, layer: int, keys: Keys, values: Keys) -> None:
        """Write one layer's keys and values."""
        if self.slots.device != keys.device:  # the layers of another device begin
            self.slots, self.places = (x.to(keys.device) for x in (self.slots, self.places))
        self.room.write(layer, self.slots, self.places, keys, values)


@dataclass(eq=False)
class IntoSegment:
    """Keeps a whole pass as one segment."""

    layers: int
    segment: Segment = field(init=False)

    def __post_init__(self) -> None:
        self.segment = Segment.empty(self.layers)

    def keep(self, layer: int, keys: Keys, values: Keys) -> None:
        """Keep one layer's keys and values.

        Made contiguous: queries read them many times, and what they are views of is let go.
        """
        self.segment.length = keys.shape[1]
        self.segment.keys[layer] = keys.contiguous()
        self.segment.values[layer] = values.contiguous()
