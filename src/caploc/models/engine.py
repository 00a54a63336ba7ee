"""The engine: answers requests under masks. It knows no task and no statistics."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from caploc.heads import HeadGrid, Mask
from caploc.models.batching import BatchSizer
from caploc.models.generation import Decoding, decode
from caploc.models.likelihood import Pass, Reading, score
from caploc.models.loading import LoadedModel
from caploc.models.wording import Wording
from caploc.tasks.requests import Generate, Request, Response, Scored


@dataclass(frozen=True, slots=True)
class Ask:
    """A request under a mask; `key` is the asker's own and comes back with the answer."""

    key: tuple[int, int]
    request: Request
    knocked_out: Mask


@dataclass(frozen=True, slots=True)
class Answer:
    """The response to an ask, its share of the batch's seconds, and the tokens run through."""

    key: tuple[int, int]
    response: Response
    seconds: float
    forward_tokens: int


@runtime_checkable
class Engine(Protocol):
    """Whatever answers asks, in any order."""

    grid: HeadGrid

    def answer(self, asks: Iterable[Ask]) -> Iterator[list[Answer]]:
        """Answer every ask once, a list for each batch the moment it ends."""
        ...


class BatchEngine:
    """Rows of many masks and many examples share a batch, each row under its own mask."""

    def __init__(self, loaded: LoadedModel, batch_size: int | None = None) -> None:
        """Answer with this model; `batch_size` caps the rows of a batch."""
        self.loaded, self.grid = loaded, loaded.grid
        self.wording = Wording(loaded.model, loaded.tokenizer)
        self.sizer = BatchSizer(loaded.model, batch_size)

    def answer(self, asks: Iterable[Ask]) -> Iterator[list[Answer]]:
        """Answer every ask once; generations first, longest first, so that memory fails early."""
        asks = list(asks)
        generations = [n for n, ask in enumerate(asks) if isinstance(ask.request, Generate)]
        others = [n for n, ask in enumerate(asks) if not isinstance(ask.request, Generate)]
        yield from self.generate(asks, generations)
        yield from self.score(asks, others)

    def generate(self, asks: list[Ask], numbers: list[int]) -> Iterator[list[Answer]]:
        """Answer the asks that want text."""
        groups: dict[tuple[tuple[str, ...], int, str], list[Decoding]] = {}
        for number in numbers:
            request = asks[number].request
            assert isinstance(request, Generate)
            row = Decoding(number, self.wording.prompt(request), asks[number].knocked_out)
            groups.setdefault(row.settings, []).append(row)
        for rows in groups.values():
            rows.sort(key=lambda row: -len(row.prompt.tokens))
            for batch in self.sizer.batches(rows, lambda row: (whole_length(row), 1)):
                started = time.perf_counter()
                answers = self.sizer.run(
                    lambda part: decode(self.loaded, self.wording, part), batch
                )
                seconds = (time.perf_counter() - started) / len(batch)
                yield [
                    Answer(asks[row.ask].key, said, seconds, len(row.prompt.tokens) + said.tokens)
                    for row, said in zip(batch, answers, strict=True)
                ]

    def score(self, asks: list[Ask], numbers: list[int]) -> Iterator[list[Answer]]:
        """Answer the asks that want log-probabilities."""
        passes, open_spans = self.passes(asks, numbers)
        # The choices of one example stay together, so that a row is done when its batch is.
        longest: dict[int, int] = {}
        for row in passes:
            number, _ = asks[row.wanted[0][0]].key
            longest[number] = max(longest.get(number, 0), len(row.inputs))
        rows = sorted(passes, key=lambda row: order(row, asks, longest))
        readings: dict[int, list[Reading]] = {}
        for batch in self.sizer.batches(rows, lambda row: (len(row.inputs), row.scored)):
            started = time.perf_counter()
            scored = self.sizer.run(lambda part: score(self.loaded, part), batch)
            seconds = (time.perf_counter() - started) / len(scored)
            answers = []
            for reading in scored:
                parts = readings.setdefault(reading.ask, [])
                parts.append(reading)
                if len(parts) == open_spans[reading.ask]:
                    ask = asks[reading.ask]
                    answers.append(self.joined(ask, readings.pop(reading.ask), seconds))
            yield answers

    def passes(self, asks: list[Ask], numbers: list[int]) -> tuple[list[Pass], dict[int, int]]:
        """What must be read, each (tokens, mask) once, and the number of spans of each ask."""
        passes: dict[tuple[tuple[int, ...], bytes], Pass] = {}
        open_spans: dict[int, int] = {}
        for number in numbers:
            request, mask = asks[number].request, asks[number].knocked_out
            assert not isinstance(request, Generate)
            spans = self.wording.spans(request)
            open_spans[number] = len(spans)
            for span in spans:
                # The mask is part of the key: equal tokens under two masks share nothing.
                key = (span.inputs, mask.tobytes())
                passes.setdefault(key, Pass(span.inputs, mask)).wanted.append((number, span))
        return list(passes.values()), open_spans

    def joined(self, ask: Ask, parts: list[Reading], seconds: float) -> Answer:
        """One answer from the spans of a text."""
        assert not isinstance(ask.request, Generate)
        spans = self.wording.spans(ask.request)
        response = Scored(
            sum(part.logprob for part in parts),
            all(part.greedy for part in parts),
            sum(len(span.continuation) for span in spans),
        )
        return Answer(ask.key, response, seconds, sum(part.tokens for part in parts))


def order(row: Pass, asks: list[Ask], longest: dict[int, int]) -> tuple[int, int]:
    """Longest examples first, and the passes of one row of measurement side by side."""
    number = asks[row.wanted[0][0]].key[0]
    return -longest[number], number


def whole_length(row: Decoding) -> int:
    """Tokens that a row may come to hold."""
    return len(row.prompt.tokens) + row.prompt.new_tokens
