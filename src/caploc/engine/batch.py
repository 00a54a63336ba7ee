"""The engine of this process: texts and log-probabilities, each by the first backend that can."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from operator import itemgetter
from typing import Generic, Protocol, TypeVar

from caploc.engine.api import Answer, Ask, Engine, Way
from caploc.engine.encoding import RequestEncoder
from caploc.engine.packed import PackedBackend
from caploc.engine.passes import PackedModel
from caploc.engine.plain import PlainBackend
from caploc.engine.planning import BatchSizer
from caploc.engine.reading import SourceReader
from caploc.engine.vllm import VllmBackend
from caploc.errors import pick
from caploc.models.loading import CutModel
from caploc.registries import ENGINES, PACKED, PLAIN, VLLM
from caploc.tasks.task import Request


class Backend(Engine, Protocol):
    """An engine among several; what it refuses goes to the next."""

    @property
    def name(self) -> str: ...

    def refusal(self, ask: Ask) -> str | None:
        """Say why it cannot answer this, as the end of a sentence; None if it can."""


BACKENDS: dict[str, Callable[..., Backend]] = {
    PACKED: PackedBackend,
    VLLM: VllmBackend,
    PLAIN: PlainBackend,
}
Model = TypeVar("Model", bound=CutModel)


class BatchEngine(Generic[Model]):
    """Answers asks on one model, each by the first of its backends that can."""

    def __init__(
        self,
        loaded: Model,
        batch_size: int | None = None,
        memory: int | None = None,
        backend: str = PACKED,
    ) -> None:
        """Answer with this model.

        `batch_size` caps the rows that run at a time, `memory` the bytes used beside the weights;
        `backend` is one of `ENGINES`.
        """
        self.loaded, self.grid = loaded, loaded.grid
        self.encoder = RequestEncoder(loaded.model, loaded.tokenizer)
        sizer = BatchSizer(loaded.model, batch_size, memory)
        self.sources = SourceReader(loaded, self.encoder, sizer)
        shared = loaded, self.encoder, sizer, self.sources
        self.backends: list[Backend] = [
            BACKENDS[name](*shared) for name in pick(ENGINES, backend, "engine")
        ]

    @property
    def packed(self) -> PackedModel | None:
        """The model as packed rows are run through it; None if all goes another way."""
        return next((b.model for b in self.backends if isinstance(b, PackedBackend)), None)

    def misfit(self, request: Request) -> str | None:
        """Say why the model cannot read a request whole; None if it can."""
        return self.encoder.misfit(request)

    def answer(self, asks: Iterable[Ask]) -> Iterator[list[Answer]]:
        last = time.perf_counter()
        for part in self.sources.portions(list(asks)):
            for backend, why, members in self._routed(part):
                way = Way(backend.name, why)
                for batch in filter(None, backend.answer(members)):
                    seconds = (time.perf_counter() - last) / len(batch)
                    read = self.sources.pay() / len(batch)
                    filled = partial(replace, seconds=seconds, way=way)
                    yield [filled(a, forward_tokens=a.forward_tokens + read) for a in batch]
                    last = time.perf_counter()

    def _routed(self, asks: Sequence[Ask]) -> Iterator[tuple[Backend, str, list[Ask]]]:
        """Yield asks by who answers them and why, those of the first backend first."""
        routes: dict[tuple[int, str], list[Ask]] = defaultdict(list)
        for ask in asks:
            # the last one refuses nothing
            refusals = takewhile(itemgetter(1), ((b.name, b.refusal(ask)) for b in self.backends))
            told = [f"{name} {refusal}" for name, refusal in refusals]
            routes[len(told), "; ".join(told)].append(ask)
        for number, why in sorted(routes):
            yield self.backends[number], why, routes[number, why]
