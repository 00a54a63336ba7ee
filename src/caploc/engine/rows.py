"""Asks as numbered rows, and rows run to their end even if memory runs out on the way."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import torch
from accelerate.utils.memory import clear_device_cache

from caploc.engine.asks import Answer, Ask
from caploc.engine.intact import KnockedOut
from caploc.engine.memory import BatchSizer
from caploc.engine.planning import Plan, Wanted
from caploc.grid import Grid, Mask
from caploc.tasks.requests import Response


@dataclass(frozen=True, slots=True)
class Done:
    """An ask's response, and what it took: see `Answer`."""

    ask: Ask
    response: Response
    forward_tokens: float
    plain_tokens: int

    def answer(self, seconds: float) -> Answer:
        """The answer, with its share of the time."""
        return Answer(self.ask.key, self.response, seconds, self.forward_tokens, self.plain_tokens)


class Masks:
    """The different masks of some asks, numbered."""

    def __init__(self, grid: Grid) -> None:
        """Number none."""
        self.grid = grid
        self.layers = [layer for layer, parts in enumerate(grid.per_layer) for _ in range(parts)]
        self.numbers: dict[bytes, int] = {}
        self.all: list[KnockedOut] = []

    def number(self, mask: Mask) -> int:
        """A mask's number; a new one gets the next."""
        key = mask.tobytes()
        if key not in self.numbers:
            cut = self.layers[int(mask.argmax())] if mask.any() else self.grid.layers
            self.numbers[key] = len(self.all)
            self.all.append(KnockedOut(len(self.all), torch.from_numpy(mask.copy()), cut))
        return self.numbers[key]


@runtime_checkable
class Finished(Protocol):
    """A row's result."""

    @property
    def wanted(self) -> Wanted:
        """Which row it is."""
        ...


T = TypeVar("T", bound=Finished)


@runtime_checkable
class Runner(Protocol[T]):
    """Runs a plan's rows."""

    plan: Plan

    def run(self) -> Iterator[list[T]]:
        """Each row's result, once."""
        ...


def to_the_end(
    rows: Sequence[Wanted],
    runner: Callable[[Sequence[Wanted]], Runner[T]],
    sizer: BatchSizer,
) -> Iterator[list[T]]:
    """Run rows; when memory runs out, plan what is still open anew with half of it.

    Raises:
        OutOfMemory: if a single row did not fit.
    """
    still_open = {row.number: row for row in rows}
    while still_open:
        running = None
        try:
            running = runner(list(still_open.values()))
            for batch in running.run():
                for result in batch:
                    del still_open[result.wanted.number]
                yield batch
        except Exception as error:
            sizer.shrink(error, smallest=running is not None and running.plan.smallest)
        # Outside the handler: until here the exception holds what did not fit.
        if still_open:
            del running
            clear_device_cache(garbage_collection=True)
