"""Heads, and the grid that gives each head of a model its column in a mask."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool

from caploc.errors import BadOption, UnknownName
from caploc.grid import Grid

Mask = Bool[np.ndarray, " heads"]  # True is knocked out, here and everywhere
Masks = Bool[np.ndarray, "masks heads"]
NAME = re.compile(r"L(\d+)H(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, order=True)
class Head:
    """One attention head: layer and index within the layer, both from 0."""

    layer: int
    index: int

    def __str__(self) -> str:
        return f"L{self.layer}H{self.index}"

    @classmethod
    def parse(cls, text: str) -> "Head":
        """Read `L16H21`.

        Raises:
            BadOption: if the text is not of that form.
        """
        match = NAME.fullmatch(text.strip())
        if not match:
            raise BadOption(f"{text!r} is not a head; write layer and head from 0, such as L16H21.")
        return cls(int(match[1]), int(match[2]))


@dataclass(frozen=True)
class HeadGrid(Grid):
    """All heads of a model, layer by layer; `column(head)` is a head's place in a mask.

    `heads_per_layer` may differ from layer to layer; a layer without attention heads has 0.
    `group_sizes` says for each layer how many query heads share one key-value head (1: none do).
    """

    heads_per_layer: tuple[int, ...]
    group_sizes: tuple[int, ...] = ()

    @property
    def per_layer(self) -> tuple[int, ...]:
        """Number of heads of each layer."""
        return self.heads_per_layer

    @property
    def heads(self) -> list[Head]:
        """Every head, in the order of its column."""
        return [
            Head(layer, index)
            for layer, count in enumerate(self.heads_per_layer)
            for index in range(count)
        ]

    def column(self, head: Head) -> int:
        """The head's place in a mask.

        Raises:
            UnknownName: if the model has no such head.
        """
        if head.layer >= self.layers:
            raise UnknownName(
                f"There is no head {head}: the model has layers L0 to L{self.layers - 1}."
            )
        count = self.heads_per_layer[head.layer]
        if head.index >= count:
            has = f"heads H0 to H{count - 1}" if count else "no attention heads"
            raise UnknownName(f"There is no head {head}: layer {head.layer} has {has}.")
        return int(self.layer_slices[head.layer].start) + head.index

    def group(self, head: Head) -> int | None:
        """The key-value head that the head reads, counted within its layer; None if its own."""
        size = self.group_sizes[head.layer] if self.group_sizes else 1
        return head.index // size if size > 1 else None

    @property
    def groups(self) -> list[list[int]]:
        """The columns of the query heads that read each key-value head; single ones included."""
        found: list[list[int]] = []
        for layer, columns in enumerate(self.layer_slices):
            size = self.group_sizes[layer] if self.group_sizes else 1
            inside = range(columns.start, columns.stop)
            found += [list(inside[first : first + size]) for first in range(0, len(inside), size)]
        return found

    def mask(self, heads: Iterable[Head | str]) -> Mask:
        """The mask that knocks out the heads named.

        Raises:
            BadOption: if a name is malformed.
            UnknownName: if the model has no such head.
        """
        knocked_out = np.zeros(self.size, dtype=bool)
        for head in heads:
            knocked_out[self.column(Head.parse(head) if isinstance(head, str) else head)] = True
        return knocked_out

    def named_in(self, names: Iterable[str]) -> list[Head]:
        """The heads of these names, each checked to exist."""
        found = [Head.parse(name) for name in names]
        for head in found:
            self.column(head)
        return found

    def named(self, knocked_out: Mask) -> list[Head]:
        """The heads that a mask knocks out."""
        heads = self.heads
        return [heads[column] for column in np.flatnonzero(knocked_out)]


def parse_heads(texts: str | Sequence[str]) -> list[Head]:
    """Read `L16H21,L15H13`, or several such texts; duplicates are dropped, order is kept.

    Raises:
        BadOption: if a name is malformed.
    """
    joined = texts if isinstance(texts, str) else ",".join(texts)
    names = [name for name in joined.split(",") if name.strip()]
    return list(dict.fromkeys(Head.parse(name) for name in names))
