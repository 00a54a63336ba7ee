"""Many masks, many requests: each kind of ask to those who know it."""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from caploc.engine.asks import Answer, Ask
from caploc.engine.generation import Generation
from caploc.engine.likelihood import Likelihood
from caploc.engine.memory import BatchSizer
from caploc.engine.planning import shared_prefixes
from caploc.engine.suitability import packed_model
from caploc.engine.wording import Wording
from caploc.models.loading import CutModel
from caploc.tasks.requests import Generate, Request

Model = TypeVar("Model", bound=CutModel)


class BatchEngine(Generic[Model]):
    """Answers asks on one model: packed rows where the model allows it, the plain way elsewhere."""

    def __init__(
        self, loaded: Model, batch_size: int | None = None, memory: int | None = None
    ) -> None:
        """Answer with this model.

        `batch_size` caps the rows that run at a time, `memory` the bytes used beside the weights.
        """
        self.loaded, self.grid = loaded, loaded.grid
        self.wording = wording = Wording(loaded.model, loaded.tokenizer)
        sizer = BatchSizer(loaded.model, batch_size, memory, loaded.team)
        self.packed = packed_model(loaded)
        self.generation = Generation(loaded, wording, sizer, self.packed)
        self.likelihood = Likelihood(loaded, wording, sizer, self.packed)

    def shared_tokens(self, requests: Sequence[Request]) -> float:
        """Tokens that a mask reads once for all of these requests, a mean over requests.

        0 where rows are answered the plain way, which shares nothing.
        """
        if self.packed is None or not requests:
            return 0.0
        stems = [self.wording.stem(request) for request in requests]
        groups = shared_prefixes(stems)
        return sum(length * len(members) for length, members in groups) / len(stems)

    def answer(self, asks: Iterable[Ask]) -> Iterator[list[Answer]]:
        """Answer every ask once; those that want text first, since they need most memory."""
        asks = list(asks)
        generate = [ask for ask in asks if isinstance(ask.request, Generate)]
        others = [ask for ask in asks if not isinstance(ask.request, Generate)]
        last = time.perf_counter()
        for kind, chosen in ((self.generation, generate), (self.likelihood, others)):
            for batch in kind.answer(chosen):
                if batch:
                    seconds = (time.perf_counter() - last) / len(batch)
                    yield [done.answer(seconds) for done in batch]
                    last = time.perf_counter()
