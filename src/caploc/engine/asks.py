"""Masks by number, and rows of asks run to their end."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate.utils.memory import clear_device_cache
from jaxtyping import Bool
from torch import Tensor

from caploc.components import Grid, Mask
from caploc.engine.planning import BatchSizer, PlannedRow
from caploc.models.substitutes import Substitute

INTACT = 0  # the number of the mask that knocks out nothing


@dataclass(frozen=True)
class NumberedMask:
    """A mask with its number, its first knocked-out layer and, as bits, all knocked-out layers.

    The first layer of a mask that knocks out nothing is the number of layers. One set of heads with
    two substitutes is two masks: what is kept of one is nothing to the other.
    """

    number: int
    heads: Bool[Tensor, " heads"]
    first_layer: int
    layers: int  # bit n stands for layer n
    substitute: Substitute | None = None


class MaskNumbers:
    """Numbers the different masks of some asks; number 0 (`INTACT`) knocks out nothing."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.numbers: dict[tuple[bytes, Substitute | None], int] = {}
        self.all: list[NumberedMask] = []
        self.number(np.zeros(grid.size, dtype=bool))

    def number(self, mask: Mask, substitute: Substitute | None = None) -> int:
        key = mask.tobytes(), substitute if mask.any() else None
        if key not in self.numbers:
            cut = [n for n, columns in enumerate(self.grid.layer_slices) if mask[columns].any()]
            self.numbers[key] = len(self.all)
            heads, first = torch.from_numpy(mask.copy()), min(cut, default=self.grid.layers)
            layers = sum(1 << layer for layer in cut)
            self.all.append(NumberedMask(len(self.all), heads, first, layers, key[1]))
        return self.numbers[key]


def run_to_end(
    rows: Sequence[PlannedRow],
    make_runner: Callable[[Sequence[PlannedRow]], Any],
    sizer: BatchSizer,
) -> Iterator[list[Any]]:
    """Run rows; when memory runs out, plan those still open anew with half of it.

    A runner has a `plan`, and `run` yields lists of results, each with its `row`. Raises
    OutOfMemory if a single row does not fit.
    """
    still_open = {row.number: row for row in rows}
    while still_open:
        runner = None
        try:
            runner = make_runner(list(still_open.values()))
            for batch in runner.run():
                for result in batch:
                    del still_open[result.row.number]
                yield batch
        except Exception as error:
            sizer.shrink(error, smallest=runner is not None and runner.plan.smallest)
        # Outside the handler: until here the exception holds what did not fit.
        if still_open:
            del runner
            clear_device_cache(garbage_collection=True)
