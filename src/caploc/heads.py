"""Heads, and the grid that gives each head of a model its column in a mask."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from caploc.grid import Grid, Mask, Masks, Part

__all__ = ["ALONE", "AMONG", "WITHIN", "Head", "HeadGrid", "Mask", "Masks"]

# Which effect of a head a number is: the change of the score
ALONE = "alone"  # with this head, and no other, knocked out
AMONG = "among others"  # in the mean over masks that knock out others as well
WITHIN = "within the set"  # beyond that of all other heads named


class Head(Part):
    """One attention head, written `L16H21`: layer and index within the layer, both from 0."""

    LETTER, KIND, PLURAL, EXAMPLE = "H", "head", "attention heads", "L16H21"


@dataclass(frozen=True)
class HeadGrid(Grid[Head]):
    """All heads of a model, layer by layer; `column(head)` is a head's place in a mask.

    `heads_per_layer` may differ from layer to layer; a layer without attention heads has 0.
    `group_sizes` says for each layer how many query heads share one key-value head (1: none do).
    """

    PART = Head

    heads_per_layer: tuple[int, ...]
    group_sizes: tuple[int, ...] = ()

    @property
    def per_layer(self) -> tuple[int, ...]:
        """Number of heads of each layer."""
        return self.heads_per_layer

    @cached_property
    def heads(self) -> tuple[Head, ...]:
        """Every head, in the order of its column."""
        counts = enumerate(self.per_layer)
        return tuple(Head(layer, n) for layer, count in counts for n in range(count))

    def group(self, head: Head) -> int | None:
        """The key-value head that the head reads, counted within its layer; None if its own."""
        size = self.group_sizes[head.layer] if self.group_sizes else 1
        return head.index // size if size > 1 else None

    @property
    def groups(self) -> list[list[int]]:
        """The columns of the query heads that read each key-value head; single ones included."""
        found: list[list[int]] = []
        for columns, size in zip(
            self.layer_slices, self.group_sizes or (1,) * self.layers, strict=True
        ):
            inside = range(columns.start, columns.stop)
            found += [list(inside[first : first + size]) for first in range(0, len(inside), size)]
        return found

    def named_in(self, names: Iterable[str]) -> list[Head]:
        """The heads of these names, each checked to exist."""
        found = [Head.parse(name) for name in names]
        for head in found:
            self.column(head)
        return found
