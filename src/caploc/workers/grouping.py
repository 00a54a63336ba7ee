"""Which rows should be answered together, and how many at a time. Pure: no model, no Ray.

A row is a row of measurement: the asks with the same first part of the key.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import ceil
from types import MappingProxyType

from caploc.engine import Ask
from caploc.tasks.requests import Generate, LogLikelihood, Request

LEAD = 200  # characters by which prompts with a common beginning are known; some fifty tokens
# Every group has its intact rows and shared prefixes computed again, so groups are as long as they
# can be with all workers ending together, and with rows left for workers that join.
SECONDS = 120.0  # a group takes at most about so long
SHARE = 3 / 4  # of what would be a worker's fair part of the rest: the others may turn out faster
FIRST_SHARE, FIRST = 1 / 8, 16  # the same where its rate is not known, but at least so many rows
LEAST_SECONDS = 8.0  # less than so much work is not held back, but shared out at once
LAST_SECONDS = 3.0  # nor is so little, if nobody else is idle
LONGEST_SECONDS = 45.0  # a group may take so long, so that a block is not cut
MOST = 10_000  # rows of a group
NOTHING: Mapping[int, float] = MappingProxyType({})


def leading(request: Request) -> str:
    """The text that a request begins with."""
    if isinstance(request, Generate):
        return request.prompt
    return request.context if isinstance(request, LogLikelihood) else request.text


def as_rows(asks: Iterable[Ask]) -> dict[int, list[Ask]]:
    """Asks by row."""
    rows: dict[int, list[Ask]] = {}
    for ask in asks:
        rows.setdefault(ask.key[0], []).append(ask)
    return rows


def blocks(rows: dict[int, list[Ask]]) -> list[tuple[int, ...]]:
    """Rows that gain from being answered together, in the order in which to answer them.

    Prompts that begin alike are read once a mask: there the rows of one mask stay together. Of
    other prompts the part below a mask's first knocked-out layer is shared by all masks, and
    answers serve as drafts: there the rows of one prompt stay together. Long prompts come first, so
    that what is left at the end is short.
    """
    texts = {number: leading(asks[0].request) for number, asks in rows.items()}
    masks = {number: asks[0].knocked_out.tobytes() for number, asks in rows.items()}
    places: dict[bytes, int] = {}
    for mask in masks.values():
        places.setdefault(mask, len(places))
    starters = Counter(text[:LEAD] for text in set(texts.values()) if len(text) > LEAD)
    longest: dict[str, int] = {}
    for text in texts.values():
        longest[text[:LEAD]] = max(len(text), longest.get(text[:LEAD], 0))

    def place(number: int) -> tuple[int, str, int, str, int]:
        text, mask = texts[number], places[masks[number]]
        if starters[text[:LEAD]] > 1:
            return -longest[text[:LEAD]], text[:LEAD], mask, text, 0
        return -len(text), text[:LEAD], 0, text, mask

    def together(number: int) -> tuple[str, int]:
        text = texts[number]
        shared = starters[text[:LEAD]] > 1
        return (text[:LEAD], places[masks[number]]) if shared else (text, -1)

    return [tuple(block) for _, block in groupby(sorted(rows, key=place), key=together)]


@dataclass
class Queue:
    """Blocks of rows that nobody has yet."""

    waiting: deque[tuple[int, ...]]
    left: int = field(init=False)

    def __post_init__(self) -> None:
        self.left = sum(map(len, self.waiting))

    @classmethod
    def of(cls, found: Sequence[tuple[int, ...]]) -> "Queue":
        """All blocks, in their order."""
        return cls(deque(found))

    def take(self, size: int, whole: int = 0) -> tuple[int, ...]:
        """About so many rows, whole blocks where they are not much too long; none if none is left.

        A block is cut where it is longer than one and a half times what is still wanted; one of up
        to `whole` rows never.
        """
        taken: list[int] = []
        while self.waiting and len(taken) < size:
            block, wanted = self.waiting.popleft(), size - len(taken)
            if len(block) > 1.5 * wanted:
                if taken and (2 * len(taken) >= size or len(block) <= whole):
                    self.waiting.appendleft(block)  # enough; the block stays whole for the next
                    break
                wanted = len(block) if len(block) <= whole else wanted
            if len(block) > 1.5 * wanted:
                self.waiting.appendleft(block[wanted:])
                block = block[:wanted]
            taken += block
        self.left -= len(taken)
        return tuple(taken)


@dataclass
class Pace:
    """How fast each worker is, in rows a second; it outlives a batch of asks.

    `past` are rows and seconds of ended groups, `under_way` those of the group in hand. `gap` is
    the longest that any worker has been silent while it answered, in seconds.
    """

    past: dict[int, tuple[float, float]] = field(default_factory=dict)
    under_way: dict[int, tuple[float, float]] = field(default_factory=dict)
    gap: float | None = None

    def learn(self, worker: int, rows: int, seconds: float) -> None:
        """Take in how long a group took; each halves the weight of those before it."""
        self.under_way.pop(worker, None)
        before = self.past.get(worker, (0.0, 0.0))
        self.past[worker] = (before[0] / 2 + rows, before[1] / 2 + max(seconds, 1e-6))

    def watch(self, worker: int, rows: int, seconds: float) -> None:
        """Take in how far a worker is with the group in hand."""
        self.under_way[worker] = (rows, seconds)

    def heard(self, seconds: float) -> None:
        """Take in how long a worker was silent before it answered."""
        self.gap = max(seconds, self.gap or 0.0)

    def forget(self, worker: int) -> None:
        """A worker has gone."""
        self.past.pop(worker, None)
        self.under_way.pop(worker, None)

    def rate(self, worker: int) -> float | None:
        """A worker's rows a second; None if it has ended no group."""
        if worker not in self.past:
            return None
        (rows, seconds), now = self.past[worker], self.under_way.get(worker, (0.0, 0.0))
        return (rows + now[0]) / (seconds + now[1])

    def size(
        self, worker: int, left: int, present: Sequence[int], held: Mapping[int, float] = NOTHING
    ) -> int:
        """How many of the rows left an idle worker should get, at least one.

        `held` are the rows that each busy worker still has to answer.
        """
        fair = min(left, self.fair(worker, left + sum(held.values()), present))
        rate = self.rate(worker)
        if rate is None:
            size = max(FIRST_SHARE * fair, min(FIRST, fair))
        else:
            idle = max(1, len(present) - len(held))
            least = max(min(LEAST_SECONDS * rate, fair), min(LAST_SECONDS * rate, left / idle))
            size = min(SECONDS * rate, max(SHARE * fair, least))
        return max(1, ceil(min(size, MOST)))

    def whole(self, worker: int, blocks: int, present: Sequence[int]) -> int:
        """How many rows of a block stay together even if that makes a group too long.

        A block in two groups has its shared part computed twice, which is worth it only at the end,
        when there is no block for every worker, or where a block is very long.
        """
        if blocks <= len(present):
            return 0
        return int(LONGEST_SECONDS * (self.rate(worker) or 0.0))

    def fair(self, worker: int, rows: float, present: Sequence[int]) -> float:
        """A worker's part of so many rows, by its rate; one of unknown rate counts as the mean."""
        rates = {each: self.rate(each) for each in present}
        known = [rate for rate in rates.values() if rate is not None]
        usual = sum(known) / len(known) if known else 1.0
        told = {each: usual if rate is None else rate for each, rate in rates.items()}
        return rows * told[worker] / (sum(told.values()) or usual)
