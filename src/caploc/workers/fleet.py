"""An engine whose rows are answered by workers."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count

from caploc.engine import Answer, Ask
from caploc.errors import CaplocError, OutOfMemory, RunFailed
from caploc.tasks.requests import Request
from caploc.workers.crew import Crew, Done, Event, Joined, Lost, Refusal, Some
from caploc.workers.dispatching import Dispatcher, Patience
from caploc.workers.grouping import Pace
from caploc.workers.identity import Identity

LOG = logging.getLogger(__name__)
# the command line hushes everything else; a worker lost is worth a line
LOG.setLevel(logging.WARNING)
TICK = 1.0  # seconds; events are looked for at least so often
REFRESH = 5.0  # seconds between two looks at what the cluster has
LOADING = 3600.0  # seconds that there may be no worker with its model
UNBORN = 5  # workers that may die one after another while they load, with none at work


class Fleet:
    """Answers asks with the workers of a crew; it has no weights itself.

    `loaded` says which model it is. `grid` and `shared_tokens` are those of `BatchEngine`.
    """

    def __init__(
        self,
        crew: Crew,
        patience: Patience | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the workers, and wait for the first to have its model.

        Raises:
            UserError: if a worker refuses the model.
            RunFailed: if no worker comes up.
        """
        self.crew, self.patience, self.clock = crew, patience or Patience(), clock
        self.pace, self.groups = Pace(), count(1)
        self.idle: set[int] = set()
        self.busy: set[int] = set()
        self.news: deque[Event] = deque()
        self.first: Identity | None = None
        self.unborn = 0
        self.refreshed = -REFRESH  # when the cluster was looked at
        self.manned = self.clock()  # when there was a worker
        try:
            self.refresh()
            self.initial = crew.expected
            self.loaded = self.wait_for_first()
        except BaseException:
            self.close()
            raise
        self.grid = self.loaded.grid

    def wait_for_first(self) -> Identity:
        """The identity of the first worker."""
        while self.first is None:
            self.refresh()
            for event in self.events():
                self.take(event, None)
        return self.first

    def shared_tokens(self, requests: Sequence[Request]) -> float:
        """Tokens that a mask reads once for all of these requests; see `BatchEngine`."""
        while True:
            for worker in sorted(self.idle):
                try:
                    return self.crew.shared_tokens(worker, requests)
                except RunFailed as error:
                    self.lose(worker, str(error), None)
            self.refresh()
            for event in self.events():
                self.take(event, None)

    def answer(self, asks: Iterable[Ask]) -> Iterator[list[Answer]]:
        """Answer every ask once, in lists as workers send them.

        Raises:
            UserError: if a worker refuses an ask.
            RunFailed: if several workers fail on the same rows, or none is left.
        """
        work = Dispatcher.of(asks, self.pace, self.patience, self.groups)
        while work.open:
            self.refresh()
            self.feed(work)
            for event in self.events():
                answers = self.take(event, work)
                self.feed(work)  # before the answers are stored: the worker need not wait for it
                if answers:
                    left = self.clock()
                    yield answers
                    work.excuse(self.clock() - left)
            self.drop_late_and_wrong(work)

    def events(self) -> Iterator[Event]:
        """What happened, each once, even if whoever asked stops in between."""
        if not self.news:
            self.news.extend(self.crew.events(TICK))
        while self.news:
            yield self.news.popleft()

    def feed(self, work: Dispatcher) -> None:
        """Give every idle worker a group."""
        for worker in sorted(self.idle):
            given = work.give(worker, sorted(self.idle | self.busy), self.clock())
            if given is not None:
                self.idle.discard(worker)
                self.busy.add(worker)
                self.crew.give(worker, *given)

    def take(self, event: Event, work: Dispatcher | None) -> list[Answer]:
        """Act on what happened; the answers that are new."""
        if isinstance(event, Some):
            if work is not None:
                return work.some(event.worker, event.group, event.answers, self.clock())
        elif isinstance(event, Joined):
            self.welcome(event)
        elif isinstance(event, Lost):
            self.lose(event.worker, event.why, work)
        elif event.worker in self.busy:
            self.finish(event, work)
        return []

    def finish(self, event: Done, work: Dispatcher | None) -> None:
        """A worker has ended a group, or refuses it.

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
                work.lost(event.worker, as_reason(str(error)))
        elif work is not None:
            work.done(event.worker, event.group, self.clock())

    def welcome(self, event: Joined) -> None:
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
            self.crew.dismiss(event.worker)
            self.crew.bar()

    def lose(self, worker: int, why: str, work: Dispatcher | None, *, blame: bool = True) -> None:
        """A worker is gone: forget it and have its rows asked again; see `Dispatcher.lost`.

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
            work.lost(worker, why, blame=blame)
        else:
            self.pace.forget(worker)
        self.refreshed = -REFRESH

    def drop_late_and_wrong(self, work: Dispatcher) -> None:
        """Kill workers that hang, and those that were caught with a wrong answer."""
        for worker, seconds in work.late(self.clock()):
            self.crew.dismiss(worker)
            self.lose(worker, f"it has answered nothing for {seconds:.0f} s", work)
        while work.suspects:
            worker = work.suspects.pop()
            if worker in self.idle | self.busy:
                self.crew.dismiss(worker)
                why = "its answers were no numbers where another worker's were"
                self.lose(worker, why, work, blame=False)

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
            self.crew.refresh()
            self.refreshed = now

    def close(self) -> None:
        """Let all workers go."""
        self.crew.close()

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def as_reason(text: str) -> str:
    """A sentence as the end of another one."""
    return text[:1].lower() + text[1:].rstrip(".")
