"""An engine whose rows are answered by a pool of workers, each with a replica of the model."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from caploc.engine import Answer, Ask
from caploc.errors import CaplocError, OutOfMemory, RunFailed
from caploc.tasks.task import Request
from caploc.workers.replica import ModelIdentity, Refusal
from caploc.workers.scheduling import Dispatcher, Patience, WorkerRates

LOG = logging.getLogger(__name__)
# the command line hushes everything else; a worker lost is worth a line
LOG.setLevel(logging.WARNING)
TICK = 1.0  # seconds; events are looked for at least so often
REFRESH = 5.0  # seconds between two looks at what the cluster has
LOADING = 3600.0  # seconds that there may be no worker with its model
UNBORN = 5  # workers that may die one after another while they load, with none at work


@dataclass(frozen=True)
class WorkerJoined:
    """A worker on a node has its model and waits for rows, or has refused it."""

    worker: int
    node: str
    identity: ModelIdentity | Refusal


@dataclass(frozen=True)
class AnswersCame:
    """A worker has answered some of a group."""

    worker: int
    group: int
    answers: list[Answer]


@dataclass(frozen=True)
class GroupEnded:
    """A worker has ended a group, or has refused to go on."""

    worker: int
    group: int
    refusal: Refusal | None = None


@dataclass(frozen=True)
class WorkerLost:
    """A worker is gone, with whatever it held."""

    worker: int
    why: str  # ends a sentence that begins with "because"


WorkerEvent = WorkerJoined | AnswersCame | GroupEnded | WorkerLost


class Pool(Protocol):
    """Runs workers. Workers have numbers, and a new one never gets an old one's."""

    def refresh(self) -> None:
        """Start the workers that are missing, and let go of those that there is no place for."""
        ...

    def give(self, worker: int, group: int, asks: Sequence[Ask]) -> None:
        """Have a worker answer a group."""
        ...

    def shared_tokens(self, worker: int, requests: Sequence[Request]) -> float:
        """Ask a worker for `BatchEngine.shared_tokens`."""
        ...

    def events(self, seconds: float) -> list[WorkerEvent]:
        """Return what happened; wait so long for something to happen."""
        ...

    def dismiss(self, worker: int) -> None:
        """Kill a worker, whatever it does; nothing more is heard of it."""
        ...

    def bar(self) -> None:
        """Have one worker less from now on: there is a place where none can work."""
        ...

    @property
    def expected(self) -> int:
        """How many workers there should be."""
        ...

    def close(self) -> None:
        """Kill all workers, and end what was started for them."""
        ...


class DistributedEngine:
    """Answers asks with the workers of a pool; it has no weights itself.

    `loaded` says which model it is. `grid` and `shared_tokens` are those of `BatchEngine`.
    """

    def __init__(
        self,
        pool: Pool,
        patience: Patience | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the workers, and wait for the first to have its model.

        Raises:
            UserError: if a worker refuses the model.
            RunFailed: if no worker comes up.
        """
        self.pool, self.patience, self.clock = pool, patience or Patience(), clock
        self.rates, self.groups = WorkerRates(), count(1)
        self.idle: set[int] = set()
        self.busy: set[int] = set()
        self.news: deque[WorkerEvent] = deque()
        self.first: ModelIdentity | None = None
        self.unborn = 0
        self.refreshed = -REFRESH  # when the cluster was looked at
        self.manned = self.clock()  # when there was a worker
        try:
            self.refresh()
            self.initial = pool.expected
            while self.first is None:
                self._wait()
            self.loaded = self.first
        except BaseException:
            self.close()
            raise
        self.grid = self.loaded.grid

    def shared_tokens(self, requests: Sequence[Request]) -> float:
        """Count tokens that a mask reads once for all of these requests; see `BatchEngine`."""
        while True:
            for worker in sorted(self.idle):
                try:
                    return self.pool.shared_tokens(worker, requests)
                except RunFailed as error:
                    self._lose(worker, str(error), None)
            self._wait()

    def answer(self, asks: Iterable[Ask]) -> Iterator[list[Answer]]:
        """Answer every ask once, in lists as workers send them.

        Raises:
            UserError: if a worker refuses an ask.
            RunFailed: if several workers fail on the same rows, or none is left.
        """
        work = Dispatcher(asks, self.rates, self.patience, self.groups)
        while work.open:
            self.refresh()
            self._feed(work)
            for event in self.events():
                answers = self.take(event, work)
                self._feed(work)  # before the answers are stored: the worker need not wait for it
                if answers:
                    left = self.clock()
                    yield answers
                    work.excuse(self.clock() - left)
            self._drop_late_and_wrong(work)

    def events(self) -> Iterator[WorkerEvent]:
        """Yield what happened, each once, even if whoever asked stops in between."""
        if not self.news:
            self.news.extend(self.pool.events(TICK))
        while self.news:
            yield self.news.popleft()

    def take(self, event: WorkerEvent, work: Dispatcher | None) -> list[Answer]:
        """Act on what happened; return the answers that are new."""
        if isinstance(event, AnswersCame):
            if work is not None:
                return work.take(event.worker, event.group, event.answers, self.clock())
        elif isinstance(event, WorkerJoined):
            self._welcome(event)
        elif isinstance(event, WorkerLost):
            self._lose(event.worker, event.why, work)
        elif event.worker in self.busy:
            self._end_group(event, work)
        return []

    def _wait(self) -> None:
        """Look after workers while there is nothing to be answered."""
        self.refresh()
        for event in self.events():
            self.take(event, None)

    def _feed(self, work: Dispatcher) -> None:
        """Give every idle worker a group."""
        for worker in sorted(self.idle):
            given = work.give(worker, sorted(self.idle | self.busy), self.clock())
            if given is not None:
                self.idle.discard(worker)
                self.busy.add(worker)
                self.pool.give(worker, *given)

    def _end_group(self, event: GroupEnded, work: Dispatcher | None) -> None:
        """Take in that a worker has ended a group, or refuses it.

        Raises:
            UserError: if it is refused on its own account.
        """
        self.busy.discard(event.worker)
        self.idle.add(event.worker)
        if event.refusal is not None:
            error = event.refusal.error()
            if not isinstance(error, OutOfMemory):
                raise error
            # a larger worker may have room for what this one has not
            if work is not None:
                text = str(error)
                work.lose(event.worker, text[:1].lower() + text[1:].rstrip("."))
        elif work is not None:
            work.end(event.worker, event.group, self.clock())

    def _welcome(self, event: WorkerJoined) -> None:
        """Take in a worker that has its model.

        Raises:
            UserError: if it refused the model, or has another, and is one of the first or alone.
        """
        self.unborn = 0
        try:
            if isinstance(event.identity, Refusal):
                raise event.identity.error()
            if self.first is not None:
                event.identity.check_same(self.first, event.node)
            self.first = self.first or event.identity
            self.idle.add(event.worker)
        except CaplocError as error:
            if event.worker <= self.initial or not self.idle | self.busy:
                raise
            LOG.warning("A worker that joined on %s is left out: %s", event.node, error)
            self.pool.dismiss(event.worker)
            self.pool.bar()

    def _lose(self, worker: int, why: str, work: Dispatcher | None, *, blame: bool = True) -> None:
        """Forget a worker that is gone, and have its rows asked again; see `Dispatcher.lose`.

        Raises:
            RunFailed: if workers keep dying while they load, or on the same rows.
        """
        known = worker in self.idle or worker in self.busy
        self.idle.discard(worker)
        self.busy.discard(worker)
        self.unborn += not known
        if self.unborn >= UNBORN and not self.idle | self.busy:
            raise RunFailed(
                f"{self.unborn} workers died one after another while they loaded the model, the "
                f"last one because {why}; is there enough memory for so many of it?"
            )
        LOG.warning("Worker %d is lost because %s; another takes its place.", worker, why)
        if work is not None:
            work.lose(worker, why, blame=blame)
        else:
            self.rates.forget(worker)
        self.refreshed = -REFRESH

    def _drop_late_and_wrong(self, work: Dispatcher) -> None:
        """Kill workers that hang, and those that were caught with a wrong answer."""
        for worker, seconds in work.late(self.clock()):
            self.pool.dismiss(worker)
            self._lose(worker, f"it has answered nothing for {seconds:.0f} s", work)
        while work.suspects:
            worker = work.suspects.pop()
            if worker in self.idle | self.busy:
                self.pool.dismiss(worker)
                why = "its answers were no numbers where another worker's were"
                self._lose(worker, why, work, blame=False)

    def refresh(self) -> None:
        """Look every few seconds at which workers are missing.

        Raises:
            RunFailed: if there has been none for too long, or the cluster is gone.
        """
        now = self.clock()
        if self.idle or self.busy:
            self.manned = now
        if now - self.manned > LOADING:
            raise RunFailed(
                f"For {LOADING / 60:.0f} minutes no worker has had its model; does the cluster "
                "have free CPUs or GPUs (`ray status`)? What was measured is kept."
            )
        if now - self.refreshed >= REFRESH:
            self.pool.refresh()
            self.refreshed = now

    def close(self) -> None:
        """Let all workers go."""
        self.pool.close()

    def __enter__(self) -> "DistributedEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
