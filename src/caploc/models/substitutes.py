"""What takes the place of a knocked-out head's output where that is not zero.

Axes: `entries` are what all heads of a layer hand on at one position of one text, or in the mean; a
source is a run of entries.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from jaxtyping import Float, Int
from torch import Tensor

LayerValues = Float[Tensor, "entries _ _"]  # (entries, heads of the layer, width)


@dataclass(frozen=True, eq=False)
class Substitute:
    """The outputs of one source.

    `values` are each layer's entries, None for a layer without heads. Entry i is for position i;
    positions after the last take the last.
    """

    values: Sequence[LayerValues | None]

    @property
    def entries(self) -> int:
        return max(len(each) for each in self.values if each is not None)

    @property
    def bytes(self) -> int:
        return sum(each.nbytes for each in self.values if each is not None)


class Substitutes:
    """Several sources' outputs end to end, on the devices that ask for them.

    Source 0 is zero everywhere, which is the plain knockout; those given are numbered from 1.
    """

    def __init__(self, sources: Sequence[Substitute]) -> None:
        self.sources = sources
        ends = list(accumulate([1, *(each.entries for each in sources)]))
        self.runs = torch.tensor(list(zip([0, *ends[:-1]], ends, strict=True)))
        self.placed: dict[tuple[int, torch.device, torch.dtype], Tensor] = {}

    def entries(self, sources: Int[Tensor, "..."], positions: Int[Tensor, "..."]) -> Tensor:
        """Find each token's entry from its row's source and its position, all on one device."""
        self.runs = self.runs.to(positions.device)  # at the first call
        first, end = self.runs.unbind(1)
        return torch.minimum(first[sources] + positions, end[sources] - 1)

    def values(self, layer: int, like: Tensor) -> LayerValues:
        """Return a layer's entries with the dtype and on the device of `like`."""
        key = layer, like.device, like.dtype
        if key not in self.placed:
            kept = [value for each in self.sources if (value := each.values[layer]) is not None]
            zero = torch.zeros_like(kept[0][:1])
            self.placed[key] = torch.cat([zero.to(like), *(value.to(like) for value in kept)])
        return self.placed[key]


def number_substitutes(
    wanted: Sequence[Substitute | None],
) -> tuple[Int[Tensor, " wanted"], Substitutes]:
    """Lay out those wanted, each once, and return the number of each; None is 0."""
    every = list(dict.fromkeys(each for each in wanted if each is not None))
    numbers = {None: 0} | {each: number for number, each in enumerate(every, 1)}
    return torch.tensor([numbers[each] for each in wanted]), Substitutes(every)
