"""Asks, answers that can be told from afar, and a pool without processes."""

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from caploc.engine import Answer, Ask
from caploc.heads import HeadGrid
from caploc.tasks.task import Generate, LogLikelihood, Request, Scored
from caploc.workers.distributed import (
    AnswersCame,
    GroupEnded,
    ModelIdentity,
    WorkerEvent,
    WorkerJoined,
    WorkerLost,
)

GRID = HeadGrid((4, 4), (1, 1))
IDENTITY = ModelIdentity("made up", "f", "float32", "cpu", GRID, "0")


def mask(number: int) -> np.ndarray:
    return np.array([bool(number >> bit & 1) for bit in range(GRID.size)])


def crossed(masks: int, prompts: Sequence[str], parts: int = 1) -> list[Ask]:
    """Every mask on every prompt: text if there is one part, else so many choices."""
    rows = [(number, text) for number in range(masks) for text in prompts]
    return [
        Ask((row, part), request(text, part, parts), mask(number))
        for row, (number, text) in enumerate(rows)
        for part in range(parts)
    ]


def request(text: str, part: int, parts: int) -> Request:
    return Generate(text, "{}") if parts == 1 else LogLikelihood(text, f" {part}")


def truth(ask: Ask) -> float:
    """A number that hardly any other question has."""
    request = ask.request
    text = request.prompt if isinstance(request, Generate) else repr(request)
    return -1.0 - zlib.crc32(text.encode() + ask.knocked_out.tobytes())


def answered(ask: Ask, logprob: float | None = None) -> Answer:
    value = truth(ask) if logprob is None else logprob
    return Answer(ask.key, Scored(value, True, 1), 0.001, 1.0, 1)


@dataclass
class HerePool:
    """Workers that answer when they are looked at; `fate` says what becomes of each group."""

    size: int
    fate: Callable[[int, Sequence[Ask]], str] = lambda worker, asks: "answers"
    numbers: "count[int]" = field(default_factory=lambda: count(1))
    present: dict[int, tuple[int, list[Ask]] | None] = field(default_factory=dict)
    news: list[WorkerEvent] = field(default_factory=list)
    dismissed: list[int] = field(default_factory=list)
    closed: bool = False
    barred: int = 0
    now: float = 0.0
    row_seconds: float = 0.0

    def clock(self) -> float:
        """Time goes by while nothing happens, and while rows are answered if they take any."""
        return self.now

    @property
    def expected(self) -> int:
        return self.size - self.barred

    def refresh(self) -> None:
        while len(self.present) < self.expected:
            worker = next(self.numbers)
            self.present[worker] = None
            self.news.append(WorkerJoined(worker, f"node {worker}", IDENTITY))

    def give(self, worker: int, group: int, asks: Sequence[Ask]) -> None:
        assert self.present[worker] is None, "a worker has one group at a time"
        self.present[worker] = (group, list(asks))

    def events(self, seconds: float) -> list[WorkerEvent]:
        found, self.news = self.news, []
        for worker, held in list(self.present.items()):
            if held is not None:
                found += self.outcome(worker, *held)
        self.now += 0.0 if found else seconds
        return found

    def outcome(self, worker: int, group: int, asks: list[Ask]) -> list[WorkerEvent]:
        fate = self.fate(worker, asks)
        if fate == "hangs":
            return []
        self.present[worker] = None
        self.now += self.row_seconds * len(asks)
        if fate == "dies":
            del self.present[worker]
            return [WorkerLost(worker, "it was told to")]
        wrong = math.nan if fate == "nan" else None
        short = 1 if fate == "short" else 0
        answers = [answered(ask, wrong) for ask in asks[short:]]
        cut = len(answers) // 2  # in the midst of a row, where rows have parts
        if fate == "dies later":
            del self.present[worker]
            return [AnswersCame(worker, group, answers[:cut]), WorkerLost(worker, "it was told to")]
        return [
            AnswersCame(worker, group, answers[:cut]),
            AnswersCame(worker, group, answers[cut:]),
            GroupEnded(worker, group),
        ]

    def shared_tokens(self, worker: int, requests: Sequence[Request]) -> float:
        return float(len(requests))

    def dismiss(self, worker: int) -> None:
        self.present.pop(worker, None)
        self.dismissed.append(worker)

    def close(self) -> None:
        self.closed = True
