"""What takes the place of a knocked-out head while rows of a task are measured."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from caploc import designs
from caploc.components import Mask
from caploc.engine.api import Ask, Source
from caploc.errors import BadOption
from caploc.files import digest
from caploc.options import MEAN, PATCH, RESAMPLE, ZERO, Mode
from caploc.tasks.task import Request, Task, prompt_of

AVERAGED = 64  # examples, at most, whose prompts a mean is over
POOL = 16  # examples, at most, that another one is drawn from


@dataclass(frozen=True)
class Sources:
    """Where the outputs come from that take the place of knocked-out heads, for one task.

    `question` says all that can change an outcome: rows of one are never taken for another's. `of`
    gives the source of each of an example's requests.
    """

    question: str
    of: Callable[[int, Sequence[Request]], Sequence[Source | None]]


def asks_of(task: Task, sources: Sources | None, rows: Sequence[tuple[Mask, int]]) -> Iterator[Ask]:
    """Yield what an engine is asked for rows, each a mask and an example, numbered in order."""
    for number, (mask, example) in enumerate(rows):
        requests = task.requests(example)
        taken: Sequence[Source | None] = [None] * len(requests)
        if sources is not None and mask.any():
            taken = sources.of(example, requests)
        for part, (request, source) in enumerate(zip(requests, taken, strict=True)):
            yield Ask((number, part), request, mask, source)


@dataclass(frozen=True)
class Intervention:
    """A mode, the seed that draws examples for it, and the corrupted task if it takes one."""

    mode: Mode = field(default_factory=Mode)
    seed: int = 0
    corrupted: Task | None = None

    def sources(self, task: Task) -> Sources | None:
        """Find where outputs come from in rows of a task; None if zero.

        Raises BadOption if the task has too few examples, or others than the corrupted one.
        """
        make = {MEAN: self._mean, RESAMPLE: self._resample, PATCH: self._patch}
        return None if self.mode.name == ZERO else make[self.mode.name](task.in_metric())

    def check_pairs(self, task: Task, tokenizer: Callable[[], Any]) -> None:
        """Refuse, by a BadOption, corrupted prompts that are not as long as the task's own.

        `tokenizer` loads the model's.
        """
        if self.corrupted is None:
            return
        self.sources(task)
        first: dict[str, int] = {}
        keys = (task.key(example) for example in range(task.size))
        if copies := [n for n, key in enumerate(keys) if first.setdefault(key, n) != n]:
            raise BadOption(
                f"--corrupted {self.corrupted.name}: example {copies[0]} of {task.name} repeats an "
                "earlier one, and rows are known by what they ask; leave it out of both files."
            )
        read, unlike = tokenizer(), []
        for example in range(task.size):
            pair = task.in_metric().requests(example)[0], self.corrupted.requests(example)[0]
            counts = [len(read(prompt_of(request))["input_ids"]) for request in pair]
            unlike += [(example, *counts)] if counts[0] != counts[1] else []
        if unlike:
            number, own, other = unlike[0]
            raise BadOption(
                f"--corrupted {self.corrupted.name}: of {len(unlike):,} of {task.size:,} examples "
                f"the corrupted prompt has not as many tokens as the prompt of {task.name} "
                f"(example {number}: {other}, not {own}); word them so that it has."
            )

    def _mean(self, task: Task) -> Sources:
        drawn = designs.draw_examples(task.size, min(AVERAGED, task.size), seed=self.seed)
        source = Source(tuple(task.requests(example)[0] for example in drawn), mean=True)
        question = f"{MEAN} of {_digest(task, drawn)}"
        return Sources(question, lambda example, requests: [source] * len(requests))

    def _resample(self, task: Task) -> Sources:
        drawn = designs.draw_examples(task.size, min(POOL, task.size), seed=self.seed)
        pool = {task.key(example): Source((task.requests(example)[0],)) for example in drawn}
        if len(pool) < 2:
            raise BadOption(f"--mode {RESAMPLE} needs two examples, and {task.name} has one.")

        def other(example: int, requests: Sequence[Request]) -> list[Source]:
            own = task.key(example)
            others = [source for key, source in pool.items() if key != own]
            return [others[crc32(f"{self.seed} {own}".encode()) % len(others)]] * len(requests)

        return Sources(f"{RESAMPLE} seed {self.seed} of {_digest(task, drawn)}", other)

    def _patch(self, task: Task) -> Sources:
        corrupted = self.corrupted
        assert corrupted is not None
        if corrupted.size != task.size:
            raise BadOption(
                f"--corrupted {corrupted.name} has {corrupted.size:,} examples, and {task.name} "
                f"{task.size:,}; example n of one must be the counterpart of example n of the "
                "other (copies of a question, and what --leave-out leaves out, do not count)."
            )
        made: dict[Request, Source] = {}

        def counterpart(example: int, requests: Sequence[Request]) -> list[Source]:
            theirs = corrupted.requests(example)
            if len(theirs) != len(requests):  # the gold answer alone is asked
                theirs = [theirs[0]] * len(requests)
            return [made.setdefault(other, Source((other,))) for other in theirs]

        every = _digest(corrupted, range(corrupted.size))
        return Sources(f"{PATCH} of {every}", counterpart)


def _digest(task: Task, examples: Iterable[int]) -> str:
    keys = [task.key(example) for example in examples]
    return digest({"task": task.version, "examples": keys})
