"""Which worker answers which rows, and what happens when one is lost, late or wrong. Pure.

A row is a row of measurement: the asks with the same first part of the key. It is handed out until
it has been answered once; what comes twice is dropped. Several batches of asks may be open at once:
their rows stand in one queue, and what two of them ask is answered once. `now` is a time in seconds
that only grows.
"""

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, groupby
from math import ceil, isfinite
from typing import Any, Protocol

from caploc.engine import Answer, Ask
from caploc.errors import CaplocError, RunFailed
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


def asks_by_row(asks: Iterable[Ask]) -> dict[int, list[Ask]]:
    """Sort asks by row."""
    rows: dict[int, list[Ask]] = defaultdict(list)
    for ask in asks:
        rows[ask.key[0]].append(ask)
    return dict(rows)


def row_blocks(rows: dict[int, list[Ask]]) -> dict[Hashable, list[int]]:
    """Find rows that gain from being answered together, in the order in which to answer them.

    Blocks of two batches with the same key gain from being answered together as well.

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

    def block(number: int) -> tuple[str, bytes]:
        text = texts[number]
        shared = starters[text[:LEAD]] > 1
        return (text[:LEAD], masks[number]) if shared else (text, b"")

    return {key: list(members) for key, members in groupby(sorted(rows, key=place), key=block)}


class RowQueue:
    """Blocks of rows that nobody has yet, first come first; `left` counts the rows."""

    def __init__(self) -> None:
        self.waiting: OrderedDict[Hashable, list[int]] = OrderedDict()
        self.left = 0

    def add(self, blocks: Mapping[Hashable, list[int]]) -> None:
        """Take in blocks; one that waits already grows."""
        for key, rows in blocks.items():
            self.waiting.setdefault(key, []).extend(rows)
            self.left += len(rows)

    def drop(self, rows: Collection[int]) -> None:
        """Forget these rows."""
        kept = {key: [r for r in block if r not in rows] for key, block in self.waiting.items()}
        self.waiting = OrderedDict((key, block) for key, block in kept.items() if block)
        self.left = sum(map(len, self.waiting.values()))

    def take(self, size: int, whole: int = 0) -> tuple[int, ...]:
        """Take about so many rows, whole blocks where they are not much too long.

        A block is cut where it is longer than one and a half times what is still wanted; one of up
        to `whole` rows never.
        """
        taken: list[int] = []
        while self.waiting and len(taken) < size:
            key, block = next(iter(self.waiting.items()))
            wanted = size - len(taken)
            if len(block) > 1.5 * wanted:
                if taken and (2 * len(taken) >= size or len(block) <= whole):
                    break  # enough; the block stays whole for the next
                wanted = len(block) if len(block) <= whole else wanted
            if len(block) > 1.5 * wanted:
                self.waiting[key], block = block[wanted:], block[:wanted]
            else:
                del self.waiting[key]
            taken += block
        self.left -= len(taken)
        return tuple(taken)


@dataclass
class WorkerRates:
    """How fast each worker is, in rows a second; it outlives a batch of asks.

    `past` are rows and seconds of ended groups, `under_way` those of the group in hand.
    """

    past: dict[int, tuple[float, float]] = field(default_factory=dict)
    under_way: dict[int, tuple[float, float]] = field(default_factory=dict)

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
        self, worker: int, left: int, present: Sequence[int], held: Mapping[int, float]
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


class Work(Protocol):
    """What the workers of a pool do, in numbered groups, of which each holds one at most.

    A worker is given a group that failed with it only if there is nobody else. One that is lost
    without `blame` says nothing against its group. What a worker says of a group that it no longer
    holds is dropped.
    """

    patience: Patience
    gap: float | None = None  # the longest silence before an answer so far, in seconds
    held: Any  # by worker: what has a `number`, and when the worker was last `heard` of

    @property
    def waiting(self) -> bool: ...  # is there something that no worker has?
    def give(
        self, worker: int, present: Sequence[int], now: float
    ) -> tuple[int, Sequence[Any]] | None: ...
    def take(self, worker: int, number: int, answers: Sequence[Any], now: float) -> None: ...
    def end(self, worker: int, number: int, now: float) -> None: ...
    def refuse(self, worker: int, refusal: CaplocError) -> None: ...
    def lose(self, worker: int, why: str, *, blame: bool = True) -> None: ...

    def excuse(self, seconds: float) -> None:
        """Count no worker as silent for so long: nobody has listened."""
        for held in self.held.values():
            held.heard += seconds

    def late(self, now: float) -> list[tuple[int, float]]:
        """Return workers that have been silent for too long, and for how long."""
        limit = self.patience.limit(self.gap)
        silent = [(worker, now - held.heard) for worker, held in self.held.items()]
        return [(worker, seconds) for worker, seconds in silent if seconds > limit]


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


@dataclass(eq=False)
class OpenBatch:
    """Asks that belong together on their way: answers that came, how many rows lack theirs.

    Answered rows are `kept` until they are collected, and `handed` on until they are stored. A
    `guess` is of rows that will probably be asked: its answers wait for whoever asks in earnest.
    """

    guess: bool = False
    open: int = 0
    arrived: list[Answer] = field(default_factory=list)
    failure: CaplocError | None = None
    kept: list["QueuedRow"] = field(default_factory=list)
    handed: list["QueuedRow"] = field(default_factory=list)


@dataclass(eq=False)
class QueuedRow:
    """A row that is asked once: `takers` are the batches that want it, and its number in each."""

    asks: list[Ask]
    question: Hashable
    takers: list[tuple[OpenBatch, int]] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)


class Dispatcher(Work):
    """All asks on their way through the workers."""

    def __init__(self, rates: WorkerRates, patience: Patience) -> None:
        self.rates, self.patience = rates, patience
        self.groups, self.numbers = count(1), count()
        self.rows: dict[int, QueuedRow] = {}  # without an answer, by number
        self.known: dict[Hashable, tuple[int, QueuedRow]] = {}  # and answered ones, by question
        self.queue, self.later = RowQueue(), RowQueue()  # what is asked, and what is guessed
        self.again: list[RowGroup] = []
        self.held: dict[int, Assignment] = {}  # by worker
        self.suspects: set[int] = set()  # workers whose answer was no number, wrongly

    def add(self, asks: Iterable[Ask]) -> OpenBatch:
        """Take in asks; a row that another open batch asks, too, is not asked again."""
        batch = OpenBatch()
        self.queue.add(row_blocks(self._enter(asks, batch)))
        return batch

    def expect(self, asks: Iterable[Ask], guess: OpenBatch) -> None:
        """Have these asks, which will probably be made, answered where a worker has room for them.

        What was guessed before and no worker has yet is forgotten. Nothing is taken in while rows
        wait that are asked in earnest.
        """
        waiting = (row for block in self.later.waiting.values() for row in block)
        self._drop({row for row in waiting if self.rows[row].takers[0][0] is guess})
        guess.arrived.clear()
        if not self.queue.left:
            self.later.add(row_blocks(self._enter(asks, guess)))

    def _enter(self, asks: Iterable[Ask], batch: OpenBatch) -> dict[int, list[Ask]]:
        """Note what a batch asks; return, by number, the rows that must be put into a queue."""
        new = dict[int, list[Ask]]()
        guessed = {row for block in self.later.waiting.values() for row in block}
        for own, asked in asks_by_row(asks).items():
            question = (
                asked[0].knocked_out.tobytes(),
                tuple((ask.request, ask.source) for ask in asked),
            )
            if question not in self.known:
                number = next(self.numbers)
                new[number] = [replace(ask, key=(number, ask.key[1])) for ask in asked]
                self.rows[number] = QueuedRow(new[number], question)
                self.known[question] = number, self.rows[number]
            number, row = self.known[question]
            if row.answers:
                batch.arrived += renumbered(row.answers, own)
                continue
            if number in guessed and not batch.guess:
                new[number] = row.asks
            row.takers.append((batch, own))
            batch.open += 1
        self.later.drop(guessed & new.keys())
        return new

    def collect(self, batch: OpenBatch) -> list[Answer] | None:
        """Return what has arrived for a batch: None if nothing new has, [] when that was all.

        Whoever collects has stored what was collected before. Raises what a row of it came to.
        """
        self._forget(batch.handed)
        if batch.failure is not None:
            raise batch.failure
        if not batch.arrived:
            return None if batch.open else []
        arrived, batch.arrived = batch.arrived, []
        batch.handed, batch.kept = batch.kept, []
        return arrived

    def cancel(self, batch: OpenBatch) -> None:
        """Forget a batch; rows that nobody else wants are not asked any more."""
        self._forget([*batch.handed, *batch.kept])
        if not batch.open:
            return
        for row in self.rows.values():
            row.takers = [(other, own) for other, own in row.takers if other is not batch]
        self._drop({number for number, row in self.rows.items() if not row.takers})

    def _drop(self, unwanted: set[int]) -> None:
        for number in unwanted:
            self.known.pop(self.rows.pop(number).question)
        self.queue.drop(unwanted)
        self.later.drop(unwanted)

    def _forget(self, answered: list[QueuedRow]) -> None:
        for row in answered:
            self.known.pop(row.question, None)
        answered.clear()

    @property
    def waiting(self) -> bool:
        return bool(self.queue.left or self.again or self.later.left)

    def give(self, worker: int, present: Sequence[int], now: float) -> tuple[int, list[Ask]] | None:
        wanted = [
            replace(group, rows=tuple(row for row in group.rows if row in self.rows))
            for group in self.again
        ]
        self.again = [group for group in wanted if group.rows]
        # a group that failed elsewhere; one that failed here only if there is nobody else
        ready = (
            place
            for place, group in enumerate(self.again)
            if worker not in group.failed or not set(present) - set(group.failed)
        )
        if (place := next(ready, None)) is not None:
            group = self.again.pop(place)
        else:
            group = RowGroup(self._next_rows(worker, present, self._unanswered(now)))
        if not group.rows:
            return None
        number = next(self.groups)
        lacking = {row: len(self.rows[row].asks) for row in group.rows}
        self.held[worker] = Assignment(number, group, now, now, lacking)
        return number, [ask for row in group.rows for ask in self.rows[row].asks]

    def _next_rows(
        self, worker: int, present: Sequence[int], unanswered: Mapping[int, float]
    ) -> tuple[int, ...]:
        """Take a worker's part of what is asked and, at most as much again, of what is guessed.

        Without anything asked, of what is guessed no more than is soon done.
        """
        rows: tuple[int, ...] = ()
        if self.queue.left:
            size = self.rates.size(worker, self.queue.left, present, unanswered)
            whole = self.rates.whole(worker, len(self.queue.waiting), present)
            rows = self.queue.take(size, whole)
        if self.later.left:
            size = self.rates.size(worker, self.later.left, present, unanswered)
            soon = ceil(LEAST_SECONDS * (self.rates.rate(worker) or 1.0))
            rows += self.later.take(min(size, max(len(rows), soon)))
        return rows

    def _unanswered(self, now: float) -> dict[int, float]:
        """Estimate how many rows each busy worker still has to do.

        Answers come some seconds late, in lists, so that its rate may say that there are fewer.
        """
        unanswered = {}
        for worker, held in self.held.items():
            due = (self.rates.rate(worker) or 0.0) * (now - held.since)
            unanswered[worker] = min(len(held.left), max(0.0, len(held.group.rows) - due))
        return unanswered

    def take(self, worker: int, number: int, answers: Sequence[Answer], now: float) -> None:
        """Take in answers to a group; batches get those of rows now whole.

        A row with an answer that is no number is asked once more, elsewhere if possible.
        """
        held = self.held.get(worker)
        if held is None or held.number != number:
            return
        self.gap = max(now - held.heard, self.gap or 0.0)
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
        for row, said in whole.items():
            self._deliver(row, said)

    def _deliver(self, number: int, answers: list[Answer]) -> None:
        """Hand a row's answers to the batches that want it, unless none does any more."""
        row = self.rows.pop(number, None)
        if row is None:
            return
        row.answers = answers
        for batch, own in row.takers:
            batch.arrived += renumbered(answers, own)
            batch.open -= 1
        row.takers[0][0].kept.append(row)  # who asked first is the first to store it
        row.takers = []

    def end(self, worker: int, number: int, now: float) -> None:
        held = self.held.get(worker)
        if held is None or held.number != number:
            return
        if not held.left:
            self.rates.learn(worker, len(held.group.rows), now - held.since)
        self._give_up(worker, "answers were missing")

    def refuse(self, worker: int, refusal: CaplocError) -> None:
        """Take in that a worker refuses a row of its group: the batch that asks it has failed.

        Where several batches' rows stood together, those of each are asked again by themselves.
        """
        held = self.held.pop(worker, None)
        self.rates.under_way.pop(worker, None)
        if held is None:
            return
        parts = self._by_batch([row for row in held.group.rows if row in held.left])
        if len(parts) == 1:
            self._fail(parts[0], refusal)
        else:
            self.again += [replace(held.group, rows=tuple(part)) for part in parts]

    def _by_batch(self, rows: Iterable[int]) -> list[list[int]]:
        """Part rows by the batch that asked them first."""
        parts = defaultdict[OpenBatch, list[int]](list)
        for number in rows:
            if number in self.rows:
                parts[self.rows[number].takers[0][0]].append(number)
        return list(parts.values())

    def _fail(self, rows: Iterable[int], failure: CaplocError) -> None:
        for batch in {taker for row in rows for taker, _ in self.rows[row].takers}:
            if batch.guess:
                self.cancel(batch)  # whoever asks in earnest is told
            else:
                batch.failure = failure

    def lose(self, worker: int, why: str, *, blame: bool = True) -> None:
        self.rates.forget(worker)
        self._give_up(worker, why, blame=blame)

    def _give_up(self, worker: int, why: str, *, blame: bool = True) -> None:
        """Take a worker's group from it, and have what is left of it asked again, in parts."""
        held = self.held.pop(worker, None)
        self.rates.under_way.pop(worker, None)
        if held is None:
            return
        failed, doubted = held.group.failed, held.group.doubted
        failed = (*failed, worker) if blame else failed
        for rows in self._by_batch(row for row in held.group.rows if row in held.left):
            if len(failed) >= ATTEMPTS + (doubted is not None):
                sentence = (
                    f"{len(failed)} workers in turn failed on the same {len(rows)} rows, the last "
                    f"one because {why}; what was measured is kept. Run the same command without "
                    "--workers to see whether this process can answer them."
                )
                self._fail(rows, RunFailed(sentence))
                continue
            size = ceil(len(rows) / max(2, len(self.held) + 1))
            parts = [rows[first : first + size] for first in range(0, len(rows), size)]
            self.again += [RowGroup(tuple(part), failed, doubted) for part in parts]


def renumbered(answers: Iterable[Answer], row: int) -> list[Answer]:
    """Return a row's answers under another number of the row."""
    return [replace(answer, key=(row, answer.key[1])) for answer in answers]


def _is_number(answer: Answer) -> bool:
    response = answer.response
    return not isinstance(response, Scored) or isfinite(response.logprob)
