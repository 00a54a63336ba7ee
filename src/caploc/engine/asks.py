"""What an engine is asked and what it answers; rows of asks under numbered masks."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from accelerate.utils.memory import clear_device_cache
from jaxtyping import Bool
from torch import Tensor

from caploc.components import Grid, Mask
from caploc.engine.planning import BatchSizer, PlannedRow
from caploc.models.substitutes import Substitute
from caploc.tasks.task import Request, Response

INTACT = 0  # the number of the mask that knocks out nothing


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Source:
    """Texts on which the intact heads' outputs take the place of those knocked out.

    With `mean` it is each head's mean over all tokens of the texts; else there is one text, and it
    is the output at the same position, counted from the text's beginning: past its end that on its
    last token. With `positions` ("all", "last", "changed" or numbers such as "-2,-1") the text is a
    corrupted prompt, as long as that of `clean`, and only these of its positions are patched.
    """

    texts: tuple[Request, ...]
    mean: bool = False
    positions: str | None = None
    clean: Request | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """A request under a mask; `key` is the asker's own and comes back with the answer.

    Asks with the same first part of the key belong to one row of measurement, such as the choices
    of one question. Without a `source` what heads hand on is zero.
    """

    key: tuple[int, int]
    request: Request
    knocked_out: Mask
    source: Source | None = None


@dataclass(frozen=True, slots=True)
class Way:
    """Which engine answered, by its name, and why those asked first did not; empty if it was."""

    engine: str
    why: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The response to an ask, its share of the seconds that went by, and the tokens it took.

    `forward_tokens` are the tokens run for it, in units of a pass through all layers, with its part
    of what was computed for several; `plain_tokens` are those of answering it alone. `way` says
    who answered, where there is a choice.
    """

    key: tuple[int, int]
    response: Response
    seconds: float
    forward_tokens: float
    plain_tokens: int
    way: Way | None = None


@runtime_checkable
class Engine(Protocol):
    """Whatever answers asks, in any order; masks are over the parts of its grid."""

    @property
    def grid(self) -> Grid: ...

    def answer(self, asks: Iterable[Ask]) -> Iterator[list[Answer]]:
        """Answer every ask once, in lists as they are done."""


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
