"""Many jobs at once on one pool of workers: each in a thread, and one of them computes at a time.

A job, such as a study, asks rows, thinks about the answers and asks again; alone it leaves most
workers of a large pool idle. Side by side the rows of all jobs stand in one queue. The thread that
started them looks after the workers all the time; the jobs take turns, so that nothing they use
need know of threads, and what a job is told does not depend on the others.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from caploc.engine import Answer, Ask
from caploc.heads import HeadGrid
from caploc.tasks.task import Request
from caploc.workers.distributed import TICK, DistributedEngine, ModelIdentity
from caploc.workers.scheduling import OpenBatch

T = TypeVar("T")
MOMENT = 0.02  # seconds to listen for jobs, while one computes, between two looks at the workers
Look = Callable[[], Any]  # returns None as long as there is nothing to tell


@dataclass(eq=False)
class SharedEngine:
    """The engine as one job sees it; see `DistributedEngine`. Used in the job's own thread."""

    engine: DistributedEngine
    turns: threading.Lock
    asking: "SimpleQueue[tuple[SharedEngine, Look | None]]"
    replies: "SimpleQueue[Any]" = field(default_factory=SimpleQueue)
    name: str = ""
    outcome: Any = None
    guess: OpenBatch = field(default_factory=lambda: OpenBatch(guess=True))
    ahead: Sequence[Ask] = ()

    @property
    def loaded(self) -> ModelIdentity[HeadGrid]:
        return self.engine.loaded

    @property
    def grid(self) -> HeadGrid:
        return self.engine.grid

    def call(self, look: Look) -> Any:
        """Let others compute until the thread that looks after the workers has something to tell.

        Raises what `look` raises.
        """
        # Before another job may compute: what that one stores now, this one has looked for already.
        self.asking.put((self, look))
        self.turns.release()
        try:
            found = self.replies.get()
        finally:
            self.turns.acquire()
        if isinstance(found, BaseException):
            raise found
        return found

    def expect(self, asks: Sequence[Ask]) -> None:
        self.ahead = list(asks)

    def answer(self, asks: Iterable[Ask]) -> Iterator[list[Answer]]:
        """Answer asks as `DistributedEngine` does, beside those of other jobs."""
        work, asks, ahead = self.engine.work, list(asks), self.ahead
        self.ahead = ()

        def enter() -> OpenBatch:
            work.expect(ahead, self.guess)
            return work.add(asks)

        batch: OpenBatch = self.call(enter)

        def cancel() -> bool:
            work.cancel(batch)
            return True

        try:
            while answers := self.call(lambda: work.collect(batch)):
                yield answers
        finally:
            self.call(cancel)

    def shared_tokens(self, requests: Sequence[Request]) -> float:
        found: float = self.call(lambda: self.engine.count_shared(tuple(requests)))
        return found

    def run(self, job: Callable[["SharedEngine"], Any]) -> None:
        """Do the job, and tell that it is done; what it raises is its outcome."""
        with self.turns:
            try:
                self.outcome = job(self)
            except BaseException as error:
                self.outcome = error
        self.asking.put((self, None))


class ConcurrentJobs(Generic[T]):
    """Jobs on the workers of one engine, at most so many at a time."""

    def __init__(
        self, engine: DistributedEngine, jobs: Mapping[str, Callable[[SharedEngine], T]], most: int
    ) -> None:
        self.engine, self.most = engine, most
        self.todo = deque(jobs.items())
        self.turns = threading.Lock()
        self.asking: SimpleQueue[tuple[SharedEngine, Look | None]] = SimpleQueue()
        self.live: dict[SharedEngine, threading.Thread] = {}
        self.looks: dict[SharedEngine, Look] = {}  # of the jobs that wait

    def run(self) -> Iterator[tuple[str, T | BaseException]]:
        """Yield what became of each job, by its name, in the order in which they end.

        Raises what the workers' pool raises; then, and if nobody listens any more, the jobs that
        are under way are interrupted.
        """
        try:
            while self.todo or self.live:
                while self.todo and len(self.live) < self.most:
                    self.start(*self.todo.popleft())
                for job in self.hear():
                    yield job.name, job.outcome
                computing = len(self.live) > len(self.looks)
                self.engine.turn(0.0 if computing else TICK)
                for job in list(self.looks):
                    self.look(job)  # before the idle are fed: a question takes one of them
                self.engine.feed()
        finally:
            self.interrupt()

    def start(self, name: str, job: Callable[[SharedEngine], T]) -> None:
        own = SharedEngine(self.engine, self.turns, self.asking, name=name)
        # whoever has locked a folder here has done so for the job as well
        thread = threading.Thread(target=copy_context().run, args=(own.run, job), daemon=True)
        self.live[own] = thread
        thread.start()

    def hear(self) -> Iterator[SharedEngine]:
        """Take in what jobs ask; yield those that are done."""
        patience = MOMENT
        while len(self.live) > len(self.looks):
            try:
                job, look = self.asking.get(timeout=patience)
            except Empty:
                return
            patience = 0.0
            if look is not None:
                self.looks[job] = look
                self.look(job)
            else:
                self.live.pop(job).join()
                self.engine.work.cancel(job.guess)
                yield job

    def look(self, job: SharedEngine) -> None:
        """Tell a job that waits what there is to tell."""
        try:
            found = self.looks[job]()
        except Exception as error:
            found = error
        if found is not None:
            del self.looks[job]
            job.replies.put(found)

    def interrupt(self) -> None:
        """Have all jobs end at once, as Ctrl-C would; wait until they have."""
        while self.live:
            for job in list(self.looks):
                del self.looks[job]
                job.replies.put(KeyboardInterrupt())
            job, look = self.asking.get()
            if look is not None:
                self.looks[job] = look
            else:
                self.live.pop(job).join()
