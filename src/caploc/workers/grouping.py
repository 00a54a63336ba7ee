"""Which rows should be answered together, and how many at a time. Pure: no model, no Ray.

A row is a row of measurement: the asks with the same first part of the key.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import ceil

from caploc.engine import Ask
from caploc.tasks.requests import Generate, LogLikelihood, Request

LEAD = 200  # characters by which prompts with a common beginning are known; some fifty tokens
# Every group has its intact rows and shared prefixes computed again, so groups are as long as they
# can be with all workers ending together, and with rows left for workers that join.
SECONDS = 120.0  # a group takes at most about so long
SHARE = 3 / 4  # of what would be a worker's fair part of the rest: the others may turn out faster
FIRST_SHARE, FIRST = 1 / 8, 16  # the same where its rate is not known, but at least so many rows
LEAST_SECONDS = 20.0  # less than so much work is not held back, but shared out at once
LONGEST_SECONDS = 45.0  # a group may take so long, so that a block is not cut
MOST = 10_000  # rows of a group


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

    `gap` is the longest that any worker has been silent while it answered, in seconds.
    """

    rates: dict[int, float] = field(default_factory=dict)
    gap: float | None = None

    def learn(self, worker: int, rows: int, seconds: float) -> None:
        """Take in how long a group took; the last ones weigh most."""
        rate = rows / max(seconds, 1e-6)
        self.rates[worker] = (rate + self.rates.get(worker, rate)) / 2

    def heard(self, seconds: float) -> None:
        """Take in how long a worker was silent before it answered."""
        self.gap = max(seconds, self.gap or 0.0)

    def forget(self, worker: int) -> None:
        """A worker has gone."""
        self.rates.pop(worker, None)

    def size(self, worker: int, left: int, present: Sequence[int]) -> int:
        """How many of the rows left a worker should get next, at least one."""
        fair, rate = self.fair(worker, left, present), self.rates.get(worker)
        if rate is None:
            size = max(FIRST_SHARE * fair, min(FIRST, fair))
        else:
            size = min(SECONDS * rate, max(SHARE * fair, min(LEAST_SECONDS * rate, fair)))
        return max(1, ceil(min(size, MOST)))

    def whole(self, worker: int, blocks: int, present: Sequence[int]) -> int:
        """How many rows of a block stay together even if that makes a group too long.

        A block in two groups has its shared part computed twice, which is worth it only at the end,
        when there is no block for every worker, or where a block is very long.
        """
        if blocks <= len(present):
            return 0
        return int(LONGEST_SECONDS * self.rates.get(worker, 0.0))

    def fair(self, worker: int, left: int, present: Sequence[int]) -> float:
        """A worker's part of the rest, by its rate; one of unknown rate counts as the mean."""
        known = [self.rates[each] for each in present if each in self.rates]
        usual = sum(known) / len(known) if known else 1.0
        total = sum(self.rates.get(each, usual) for each in present) or usual
        return left * self.rates.get(worker, usual) / total
