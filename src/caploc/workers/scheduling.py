"""Which worker answers which rows, and what happens when one is lost, late or wrong. Pure.

A row is a row of measurement: the asks with the same first part of the key. It is handed out until
it has been answered once; what comes twice is dropped. `now` is a time in seconds that only grows.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, groupby
from math import ceil, isfinite
from types import MappingProxyType

from caploc.engine import Answer, Ask
from caploc.errors import RunFailed
from caploc.tasks.task import Generate, LogLikelihood, Rolling, Scored

ATTEMPTS = 3  # workers that may fail on the same rows before the run ends
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


def asks_by_row(asks: Iterable[Ask]) -> dict[int, list[Ask]]:
    """Sort asks by row."""
    rows: dict[int, list[Ask]] = defaultdict(list)
    for ask in asks:
        rows[ask.key[0]].append(ask)
    return dict(rows)


def row_blocks(rows: dict[int, list[Ask]]) -> list[tuple[int, ...]]:
    """Find rows that gain from being answered together, in the order in which to answer them.

    Prompts that begin alike are read once a mask: there the rows of one mask stay together. Of
    other prompts the part below a mask's first knocked-out layer is shared by all masks, and
    answers serve as drafts: there the rows of one prompt stay together. Long prompts come first, so
    that what is left at the end is short.
    """
    texts = {}
    for number, asks in rows.items():
        match asks[0].request:
            case Generate(prompt=text) | LogLikelihood(context=text) | Rolling(text=text):
                texts[number] = text
    masks = {number: asks[0].knocked_out.tobytes() for number, asks in rows.items()}
    places = {mask: place for place, mask in enumerate(dict.fromkeys(masks.values()))}
    starters = Counter(text[:LEAD] for text in set(texts.values()) if len(text) > LEAD)
    longest: dict[str, int] = {}
    for text in texts.values():
        longest[text[:LEAD]] = max(len(text), longest.get(text[:LEAD], 0))

    def place(number: int) -> tuple[int, str, int, str, int]:
        text, mask = texts[number], places[masks[number]]
        if starters[text[:LEAD]] > 1:
            return -longest[text[:LEAD]], text[:LEAD], mask, text, 0
        return -len(text), text[:LEAD], 0, text, mask

    def block(number: int) -> tuple[str, int]:
        text = texts[number]
        shared = starters[text[:LEAD]] > 1
        return (text[:LEAD], places[masks[number]]) if shared else (text, -1)

    return [tuple(members) for _, members in groupby(sorted(rows, key=place), key=block)]


class RowQueue:
    """Blocks of rows that nobody has yet; `left` counts the rows."""

    def __init__(self, blocks: Iterable[tuple[int, ...]]) -> None:
        self.waiting = deque(blocks)
        self.left = sum(map(len, self.waiting))

    def take(self, size: int, whole: int = 0) -> tuple[int, ...]:
        """Take about so many rows, whole blocks where they are not much too long.

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
class WorkerRates:
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

    def forget(self, worker: int) -> None:
        self.past.pop(worker, None)
        self.under_way.pop(worker, None)

    def rate(self, worker: int) -> float | None:
        """Return a worker's rows a second; None if it has ended no group."""
        if worker not in self.past:
            return None
        (rows, seconds), now = self.past[worker], self.under_way.get(worker, (0.0, 0.0))
        return (rows + now[0]) / (seconds + now[1])

    def size(
        self, worker: int, left: int, present: Sequence[int], held: Mapping[int, float] = NOTHING
    ) -> int:
        """Choose how many of the rows left an idle worker gets, at least one.

        `held` are the rows that each busy worker still has to answer.
        """
        fair = min(left, self._fair(worker, left + sum(held.values()), present))
        rate = self.rate(worker)
        if rate is None:
            size = max(FIRST_SHARE * fair, min(FIRST, fair))
        else:
            idle = max(1, len(present) - len(held))
            least = max(min(LEAST_SECONDS * rate, fair), min(LAST_SECONDS * rate, left / idle))
            size = min(SECONDS * rate, max(SHARE * fair, least))
        return max(1, ceil(min(size, MOST)))

    def whole(self, worker: int, blocks: int, present: Sequence[int]) -> int:
        """Choose how many rows of a block stay together even if that makes a group too long.

        A block in two groups has its shared part computed twice, which is worth it only at the end,
        when there is no block for every worker, or where a block is very long.
        """
        if blocks <= len(present):
            return 0
        return int(LONGEST_SECONDS * (self.rate(worker) or 0.0))

    def _fair(self, worker: int, rows: float, present: Sequence[int]) -> float:
        """Return a worker's part of so many rows; one of unknown rate counts as the mean."""
        rates = {each: self.rate(each) for each in present}
        known = [rate for rate in rates.values() if rate is not None]
        usual = sum(known) / len(known) if known else 1.0
        filled = {each: usual if rate is None else rate for each, rate in rates.items()}
        return rows * filled[worker] / (sum(filled.values()) or usual)


@dataclass(frozen=True)
class Patience:
    """How long a worker may be silent, in seconds, before it is taken to hang.

    `first` where none has answered anything; afterwards `factor` times the longest silence before
    an answer so far, at least `least`.
    """

    first: float = 1800.0
    least: float = 300.0
    factor: float = 20.0

    def limit(self, gap: float | None) -> float:
        return self.first if gap is None else max(self.least, self.factor * gap)


@dataclass(frozen=True)
class RowGroup:
    """Rows to be answered together; `failed` are the workers that did not manage.

    Where one answered something that is no number, `doubted` is that worker, and the rows are asked
    again to make sure.
    """

    rows: tuple[int, ...]
    failed: tuple[int, ...] = ()
    doubted: int | None = None


@dataclass
class Assignment:
    """A group that a worker answers: since when, when it was last heard of, and what is missing.

    `parts` are answers to rows that lack others.
    """

    number: int
    group: RowGroup
    since: float
    heard: float
    left: dict[int, int]  # answers that each row still lacks
    parts: dict[int, list[Answer]] = field(default_factory=dict)

    def take(self, answers: Sequence[Answer]) -> dict[int, list[Answer]]:
        """Take in answers; return those of the rows that now have all of theirs, by row."""
        whole = {}
        for answer in answers:
            row = answer.key[0]
            if row in self.left:
                self.parts.setdefault(row, []).append(answer)
                self.left[row] -= 1
                if not self.left[row]:
                    del self.left[row]
                    whole[row] = self.parts.pop(row)
        return whole


class Dispatcher:
    """The asks of one batch on their way through the workers."""

    def __init__(
        self, asks: Iterable[Ask], rates: WorkerRates, patience: Patience, numbers: "count[int]"
    ) -> None:
        """Dispatch these asks; `numbers` are those of groups, over all batches."""
        self.rows = asks_by_row(asks)
        self.rates, self.patience, self.numbers = rates, patience, numbers
        self.queue = RowQueue(row_blocks(self.rows))
        self.again: list[RowGroup] = []
        self.held: dict[int, Assignment] = {}  # by worker
        self.answered: set[int] = set()
        self.suspects: set[int] = set()  # workers whose answer was no number, wrongly

    @property
    def open(self) -> int:
        """Rows without an answer."""
        return len(self.rows) - len(self.answered)

    def give(self, worker: int, present: Sequence[int], now: float) -> tuple[int, list[Ask]] | None:
        """Give an idle worker a group, with its number; None if there is none for it."""
        # a group that failed elsewhere; one that failed here only if there is nobody else
        ready = (
            place
            for place, group in enumerate(self.again)
            if worker not in group.failed or not set(present) - set(group.failed)
        )
        if (place := next(ready, None)) is not None:
            group = self.again.pop(place)
        else:
            rows = self.queue.take(
                self.rates.size(worker, self.queue.left, present, self._unanswered(now)),
                self.rates.whole(worker, len(self.queue.waiting), present),
            )
            group = RowGroup(rows)
        if not group.rows:
            return None
        number = next(self.numbers)
        lacking = {row: len(self.rows[row]) for row in group.rows}
        self.held[worker] = Assignment(number, group, now, now, lacking)
        return number, [ask for row in group.rows for ask in self.rows[row]]

    def _unanswered(self, now: float) -> dict[int, float]:
        """Estimate how many rows each busy worker still has to do.

        Answers come some seconds late, in lists, so that its rate may say that there are fewer.
        """
        unanswered = {}
        for worker, held in self.held.items():
            due = (self.rates.rate(worker) or 0.0) * (now - held.since)
            unanswered[worker] = min(len(held.left), max(0.0, len(held.group.rows) - due))
        return unanswered

    def take(self, worker: int, number: int, answers: Sequence[Answer], now: float) -> list[Answer]:
        """Take in some of a worker's answers to a group; return those of rows that are now whole.

        Answers to a group that the worker no longer holds are dropped. A row with an answer that is
        no number is asked once more, elsewhere if possible.
        """
        held = self.held.get(worker)
        if held is None or held.number != number:
            return []
        self.rates.gap = max(now - held.heard, self.rates.gap or 0.0)
        held.heard, group = now, held.group
        whole = held.take(answers)
        self.rates.under_way[worker] = len(group.rows) - len(held.left), now - held.since
        broken = {row for row, said in whole.items() if not all(map(_is_number, said))}
        if group.doubted is not None:
            if whole.keys() - broken:
                self.suspects.add(group.doubted)
        elif broken:
            doubted = tuple(row for row in group.rows if row in broken)
            self.again.append(RowGroup(doubted, (*group.failed, worker), doubted=worker))
            whole = {row: said for row, said in whole.items() if row not in broken}
        self.answered |= whole.keys()
        return [answer for said in whole.values() for answer in said]

    def end(self, worker: int, number: int, now: float) -> None:
        """Take in that a worker has ended a group; rows that lack answers are asked again."""
        held = self.held.get(worker)
        if held is None or held.number != number:
            return
        if not held.left:
            self.rates.learn(worker, len(held.group.rows), now - held.since)
        self._give_up(worker, "answers were missing")

    def lose(self, worker: int, why: str, *, blame: bool = True) -> None:
        """Take in that a worker has failed or gone: the rows it has not answered are asked again.

        Without `blame` that says nothing against the rows.
        Raises RunFailed if as many workers as may have failed on the same rows.
        """
        self.rates.forget(worker)
        self._give_up(worker, why, blame=blame)

    def _give_up(self, worker: int, why: str, *, blame: bool = True) -> None:
        """Take a worker's group from it, and have what is left of it asked again, in parts."""
        held = self.held.pop(worker, None)
        self.rates.under_way.pop(worker, None)
        if held is None or not held.left:
            return
        rows = tuple(row for row in held.group.rows if row in held.left)
        failed, doubted = held.group.failed, held.group.doubted
        failed = (*failed, worker) if blame else failed
        if len(failed) >= ATTEMPTS + (doubted is not None):
            raise RunFailed(
                f"{len(failed)} workers in turn failed on the same {len(rows)} rows, the last one "
                f"because {why}; what was measured is kept. Run the same command without --workers "
                "to see whether this process can answer them."
            )
        size = ceil(len(rows) / max(2, len(self.held) + 1))
        parts = [rows[first : first + size] for first in range(0, len(rows), size)]
        self.again += [RowGroup(part, failed, doubted) for part in parts]

    def excuse(self, seconds: float) -> None:
        """Count no worker as silent for so long: nobody has listened."""
        for held in self.held.values():
            held.heard += seconds

    def late(self, now: float) -> list[tuple[int, float]]:
        """Return workers that have been silent for too long, and for how long."""
        limit = self.patience.limit(self.rates.gap)
        silent = [(worker, now - held.heard) for worker, held in self.held.items()]
        return [(worker, seconds) for worker, seconds in silent if seconds > limit]


def _is_number(answer: Answer) -> bool:
    response = answer.response
    return not isinstance(response, Scored) or isfinite(response.logprob)
