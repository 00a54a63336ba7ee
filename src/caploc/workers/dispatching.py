"""Who answers which rows, and what to do when a worker is lost, late or wrong. Pure.

A row is handed out until it has been answered once; what comes twice is dropped. `now` is a time in
seconds that only grows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import ceil, isfinite

from caploc.engine import Answer, Ask
from caploc.errors import RunFailed
from caploc.tasks.requests import Scored
from caploc.workers.grouping import Pace, Queue, as_rows, blocks

ATTEMPTS = 3  # workers that may fail on the same rows before the run ends


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
        """The limit after such a longest silence."""
        return self.first if gap is None else max(self.least, self.factor * gap)


@dataclass(frozen=True)
class Group:
    """Rows to be answered together; `failed` are the workers that did not manage.

    Where one answered something that is no number, `doubted` is that worker, and the rows are asked
    again to make sure.
    """

    rows: tuple[int, ...]
    failed: tuple[int, ...] = ()
    doubted: int | None = None


@dataclass
class Held:
    """A group in a worker's hands, since when, and when it was last heard of.

    `parts` are answers to rows that lack others; `left` are the rows without all of theirs.
    """

    number: int
    group: Group
    since: float
    heard: float
    left: dict[int, int]  # answers that each row still lacks
    parts: dict[int, list[Answer]] = field(default_factory=dict)

    def take(self, answers: Sequence[Answer]) -> dict[int, list[Answer]]:
        """Take in answers; those of the rows that now have all of theirs, by row."""
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


@dataclass
class Dispatcher:
    """The asks of one batch on their way through the workers."""

    rows: dict[int, list[Ask]]
    pace: Pace
    patience: Patience
    numbers: "count[int]"  # of groups, over all batches
    queue: Queue = field(init=False)
    again: list[Group] = field(default_factory=list)
    held: dict[int, Held] = field(default_factory=dict)  # by worker
    answered: set[int] = field(default_factory=set)
    suspects: set[int] = field(default_factory=set)  # workers whose answer was no number, wrongly

    def __post_init__(self) -> None:
        self.queue = Queue.of(blocks(self.rows))

    @classmethod
    def of(
        cls, asks: Iterable[Ask], pace: Pace, patience: Patience, numbers: "count[int]"
    ) -> "Dispatcher":
        """Dispatch these asks."""
        return cls(as_rows(asks), pace, patience, numbers)

    @property
    def open(self) -> int:
        """Rows without an answer."""
        return len(self.rows) - len(self.answered)

    def give(self, worker: int, present: Sequence[int], now: float) -> tuple[int, list[Ask]] | None:
        """A group for an idle worker, with its number; None if there is none for it."""
        group = self.second_try(worker, present)
        if group is None:
            rows = self.queue.take(
                self.pace.size(worker, self.queue.left, present, self.unanswered(now)),
                self.pace.whole(worker, len(self.queue.waiting), present),
            )
            group = Group(rows)
        if not group.rows:
            return None
        number = next(self.numbers)
        lacking = {row: len(self.rows[row]) for row in group.rows}
        self.held[worker] = Held(number, group, now, now, lacking)
        return number, [ask for row in group.rows for ask in self.rows[row]]

    def unanswered(self, now: float) -> dict[int, float]:
        """About how many rows each busy worker still has to do.

        Answers come some seconds late, in lists, so that its rate may say that there are fewer.
        """
        unanswered = {}
        for worker, held in self.held.items():
            due = (self.pace.rate(worker) or 0.0) * (now - held.since)
            unanswered[worker] = min(len(held.left), max(0.0, len(held.group.rows) - due))
        return unanswered

    def second_try(self, worker: int, present: Sequence[int]) -> Group | None:
        """A group that failed elsewhere; one that failed here only if there is nobody else."""
        for place, group in enumerate(self.again):
            if worker not in group.failed or not set(present) - set(group.failed):
                return self.again.pop(place)
        return None

    def some(self, worker: int, number: int, answers: Sequence[Answer], now: float) -> list[Answer]:
        """Some of a worker's answers to a group: those of rows that are now whole, to be kept.

        Answers to a group that the worker no longer holds are dropped. A row with an answer that is
        no number is asked once more, elsewhere if possible.
        """
        held = self.held.get(worker)
        if held is None or held.number != number:
            return []
        self.pace.heard(now - held.heard)
        held.heard, group = now, held.group
        whole = held.take(answers)
        self.pace.watch(worker, len(group.rows) - len(held.left), now - held.since)
        broken = {row for row, said in whole.items() if not all(map(is_number, said))}
        if group.doubted is not None:
            if whole.keys() - broken:
                self.suspects.add(group.doubted)
        elif broken:
            doubted = tuple(row for row in group.rows if row in broken)
            self.again.append(Group(doubted, (*group.failed, worker), doubted=worker))
            whole = {row: said for row, said in whole.items() if row not in broken}
        self.answered |= whole.keys()
        return [answer for said in whole.values() for answer in said]

    def done(self, worker: int, number: int, now: float) -> None:
        """A worker has ended a group; rows of which answers are missing are asked again.

        Raises:
            RunFailed: if as many workers as may have failed on the same rows.
        """
        held = self.held.get(worker)
        if held is None or held.number != number:
            return
        if not held.left:
            self.pace.learn(worker, len(held.group.rows), now - held.since)
        self.give_up(worker, "answers were missing")

    def lost(self, worker: int, why: str, *, blame: bool = True) -> None:
        """A worker has failed or gone: the rows it has not answered are asked again.

        Without `blame` that says nothing against the rows.

        Raises:
            RunFailed: if as many workers as may have failed on the same rows.
        """
        self.pace.forget(worker)
        self.give_up(worker, why, blame=blame)

    def give_up(self, worker: int, why: str, *, blame: bool = True) -> None:
        """Take a worker's group from it, and have what is left of it asked again."""
        held = self.held.pop(worker, None)
        self.pace.under_way.pop(worker, None)
        if held is None or not held.left:
            return
        rows = tuple(row for row in held.group.rows if row in held.left)
        failed = (*held.group.failed, worker) if blame else held.group.failed
        self.ask_again(Group(rows, failed, held.group.doubted), why)

    def ask_again(self, group: Group, why: str) -> None:
        """Put a group back that the last of its `failed` did not manage, in parts for all.

        Raises:
            RunFailed: if as many workers as may have failed on it.
        """
        if len(group.failed) >= ATTEMPTS + (group.doubted is not None):
            raise RunFailed(
                f"{len(group.failed)} workers in turn failed on the same {len(group.rows)} rows, "
                f"the last one because {why}; what was measured is kept. Run the same command "
                "without --workers to see whether this process can answer them."
            )
        size = ceil(len(group.rows) / max(2, len(self.held) + 1))
        self.again += [
            Group(group.rows[first : first + size], group.failed, group.doubted)
            for first in range(0, len(group.rows), size)
        ]

    def excuse(self, seconds: float) -> None:
        """Nobody has listened for so long: no worker was silent meanwhile."""
        for held in self.held.values():
            held.heard += seconds

    def late(self, now: float) -> list[tuple[int, float]]:
        """Workers that have been silent for too long, and for how long."""
        limit = self.patience.limit(self.pace.gap)
        silent = [(worker, now - held.heard) for worker, held in self.held.items()]
        return [(worker, seconds) for worker, seconds in silent if seconds > limit]


def is_number(answer: Answer) -> bool:
    """Whether an answer's log-probability, if it has one, is a number."""
    response = answer.response
    return not isinstance(response, Scored) or isfinite(response.logprob)
