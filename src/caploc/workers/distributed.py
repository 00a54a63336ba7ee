"""An engine whose rows are answered by a pool of workers, each with a replica of the model.

A replica is loaded and proved in its own process. Errors that it raises on purpose come back as
values: one that Ray raises means that the worker is not sound any more.
"""

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import numpy as np
import torch
from filelock import FileLock, Timeout

from caploc.engine import Answer, Ask, BatchEngine, Source
from caploc.engine.planning import SHARE
from caploc.errors import CaplocError, ModelRefused, OutOfMemory, RunFailed
from caploc.grid import Grid
from caploc.heads import HeadGrid
from caploc.models.loading import LoadedModel, load_model
from caploc.models.placement import free_memory
from caploc.tasks.task import Request
from caploc.workers.scheduling import Dispatcher, OpenBatch, Patience, Work, WorkerRates

LOG = logging.getLogger(__name__)
# the command line hushes everything else; a worker lost is worth a line
LOG.setLevel(logging.WARNING)
TICK = 1.0  # seconds; events are looked for at least so often
REFRESH = 5.0  # seconds between two looks at what the cluster has
LOADING = 3600.0  # seconds that there may be no worker with its model
UNBORN = 5  # workers that may die one after another while they load, with none at work
Parts = TypeVar("Parts", bound=Grid[Any])


@dataclass(frozen=True, slots=True)
class AskBatch:
    """Asks as they travel: each text, each mask and each source once, masks as bits.

    `asked` holds each ask's key and its places in `requests`, `masks` and `sources`.
    """

    requests: tuple[Request, ...]
    masks: tuple[bytes, ...]  # packed bits, most significant first; 1 is knocked out
    parts: int  # of a mask
    asked: tuple[tuple[tuple[int, int], int, int, int], ...]
    sources: tuple[Source | None, ...] = (None,)

    @classmethod
    def of(cls, asks: Sequence[Ask]) -> "AskBatch":
        requests: dict[Request, int] = {}
        masks: dict[bytes, int] = {}
        sources: dict[Source | None, int] = {None: 0}
        asked = [
            (
                ask.key,
                requests.setdefault(ask.request, len(requests)),
                masks.setdefault(np.packbits(ask.knocked_out).tobytes(), len(masks)),
                sources.setdefault(ask.source, len(sources)),
            )
            for ask in asks
        ]
        parts = asks[0].knocked_out.size if asks else 0
        return cls(tuple(requests), tuple(masks), parts, tuple(asked), tuple(sources))

    def asks(self) -> list[Ask]:
        masks = [
            np.unpackbits(np.frombuffer(packed, np.uint8), count=self.parts).astype(bool)
            for packed in self.masks
        ]
        return [
            Ask(key, self.requests[text], masks[mask], self.sources[source])
            for key, text, mask, source in self.asked
        ]


@dataclass(frozen=True)
class ModelIdentity(Generic[Parts]):
    """What the driver, which holds no weights, knows of the model that a worker has loaded.

    `release` is the version of caploc that the worker runs.
    """

    name: str
    fingerprint: str
    dtype: str
    device: str
    grid: Parts
    release: str

    def check_same(self, first: "ModelIdentity[Parts]", node: str) -> None:
        """Refuse a worker whose answers would be another model's."""
        for what in ("fingerprint", "dtype", "grid", "release"):
            own, other = getattr(self, what), getattr(first, what)
            if own != other:
                said = "" if what == "grid" else f": {own}, not {other}"
                what = {"release": "version of caploc"}.get(what, what)
                raise ModelRefused(
                    f"The worker on {node} has another {what} of {self.name} than the first one"
                    f"{said}; every node needs the same files, the same versions and one --dtype."
                )


@dataclass(frozen=True)
class WorkerRecipe:
    """What a worker loads: `load_model`'s arguments, most rows of a batch, its CPU cores."""

    loading: dict[str, Any]
    batch_size: int | None = None
    cpus: int = 1


@contextmanager
def first_alone(what: str) -> Iterator[None]:
    """Let the first process of this user that comes do the block by itself.

    Those that come in the meantime wait for it, and then go on together: what it has read from a
    disk lies in memory. Where the home folder cannot be written nobody waits.
    """
    name = blake2b(what.encode(), digest_size=8).hexdigest()
    lock = FileLock(Path.home() / ".ray" / f"caploc-{name}.lock")
    try:
        Path(lock.lock_file).parent.mkdir(mode=0o700, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        with lock:
            pass
    except (OSError, NotImplementedError) as error:
        LOG.info("No lock in %s: %s", lock.lock_file, error)
    try:
        yield
    finally:
        lock.release()


@dataclass
class ModelReplica(Generic[Parts]):
    """A worker's model, which a subclass puts to some use."""

    recipe: WorkerRecipe

    def load(self) -> tuple[ModelIdentity[Parts] | CaplocError, str]:
        """Load and prove the model; return who it is, and the id of Ray's node that this is on."""
        import ray

        node = str(ray.get_runtime_context().get_node_id())
        torch.set_num_threads(self.recipe.cpus)
        try:
            with first_alone(f"{self.recipe.loading.get('name')} {node}"):
                loaded, memory = load_model(**self.recipe.loading), None
            if loaded.device.type == "cpu":  # this worker's part of what all of them may use
                part = min(1.0, self.recipe.cpus / (os.cpu_count() or 1))
                memory = int(SHARE * part * free_memory(loaded.device))
            grid = self.open(loaded, memory)
        except CaplocError as error:
            return error, node
        who = loaded.name, loaded.fingerprint, loaded.dtype, str(loaded.device)
        return ModelIdentity(*who, grid, version("caploc")), node

    def open(self, loaded: LoadedModel, memory: int | None) -> Parts:
        """Make ready for work beside which `memory` bytes are free (None: to be measured).

        Returns the parts that the work is about. Raises CaplocError if the model is refused.
        """
        raise NotImplementedError

    @staticmethod
    def pack(group: Sequence[Any], /) -> Any:
        """Make a group ready to travel."""
        return group


@dataclass
class Replica(ModelReplica[HeadGrid]):
    """A worker's model, which answers batches of asks."""

    engine: BatchEngine[LoadedModel] = field(init=False, repr=False)

    def open(self, loaded: LoadedModel, memory: int | None) -> HeadGrid:
        self.engine = BatchEngine(loaded, self.recipe.batch_size, memory)
        return loaded.grid

    pack = staticmethod(AskBatch.of)

    def answer(self, batch: AskBatch, seconds: float) -> Iterator[list[Answer] | CaplocError]:
        """Answer every ask, in lists about so many seconds apart."""
        kept, since = list[Answer](), time.monotonic()
        try:
            for part in self.engine.answer(batch.asks()):
                kept += part
                if time.monotonic() - since >= seconds:
                    yield kept
                    kept, since = [], time.monotonic()
        except CaplocError as error:
            yield error
            return
        yield kept

    def shared_tokens(self, requests: Sequence[Request]) -> float | CaplocError:
        """Count shared tokens as `BatchEngine.shared_tokens` does."""
        try:
            return self.engine.shared_tokens(requests)
        except CaplocError as error:
            return error


@dataclass(frozen=True)
class WorkerJoined:
    """A worker on a node has its model and waits for rows, or has refused it."""

    worker: int
    node: str
    identity: ModelIdentity[Any] | CaplocError


@dataclass(frozen=True)
class AnswersCame:
    """A worker has answered some of a group, or has made some of what else was asked of it."""

    worker: int
    group: int
    answers: list[Any]


@dataclass(frozen=True)
class GroupEnded:
    """A worker has ended a group, or has refused to go on."""

    worker: int
    group: int
    refusal: CaplocError | None = None


@dataclass(frozen=True)
class WorkerLost:
    """A worker is gone, with whatever it held."""

    worker: int
    why: str  # ends a sentence that begins with "because"


WorkerEvent = WorkerJoined | AnswersCame | GroupEnded | WorkerLost


class WorkerSupervisor(Generic[Parts]):
    """Looks after the workers of a pool: has them do its `work`, and takes in what happens.

    `loaded` says which model they have; this process has no weights itself.
    """

    def __init__(
        self,
        pool: Any,  # a `ray_backend.WorkerPool`, which imports this module
        work: Work,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the workers, and wait for the first to have its model.

        Raises UserError if a worker refuses the model; RunFailed if no worker comes up.
        """
        self.pool, self.work, self.clock = pool, work, clock
        self.idle: set[int] = set()
        self.busy: set[int] = set()
        self.news: deque[WorkerEvent] = deque()
        self.first: ModelIdentity[Parts] | None = None
        self.unborn = 0
        self.refreshed = -REFRESH  # when the cluster was looked at
        self.manned = self.clock()  # when there was a worker
        try:
            self.refresh()
            self.initial = pool.expected
            while self.first is None:
                self.turn()
            self.loaded: ModelIdentity[Parts] = self.first
        except BaseException:
            self.close()
            raise

    @property
    def grid(self) -> Parts:
        return self.loaded.grid

    def turn(self, seconds: float = TICK) -> None:
        """Look after the workers once: feed the idle, and take in what happens within seconds."""
        self.refresh()
        self.feed()
        if not self.news:
            self.news.extend(self.pool.events(seconds))
        while self.news:  # each is taken in once, even if that raises
            self.take(self.news.popleft())
        self.drop_unsound()

    def take(self, event: WorkerEvent) -> None:
        if isinstance(event, AnswersCame):
            self.work.take(event.worker, event.group, event.answers, self.clock())
        elif isinstance(event, WorkerJoined):
            self._welcome(event)
        elif isinstance(event, WorkerLost):
            self._lose(event.worker, event.why)
        elif event.worker in self.busy:
            self._end_group(event)

    def feed(self) -> None:
        """Give every idle worker a group, as long as there are rows."""
        present = sorted(self.idle | self.busy)
        for worker in sorted(self.idle) if self.work.waiting else ():
            given = self.work.give(worker, present, self.clock())
            if given is not None:
                self.idle.discard(worker)
                self.busy.add(worker)
                self.pool.give(worker, *given)

    def _end_group(self, event: GroupEnded) -> None:
        """Take in that a worker has ended a group, or refuses it."""
        self.busy.discard(event.worker)
        self.idle.add(event.worker)
        if event.refusal is None:
            self.work.end(event.worker, event.group, self.clock())
        elif isinstance(event.refusal, OutOfMemory):  # a larger worker may have room for it
            text = str(event.refusal)
            self.work.lose(event.worker, text[:1].lower() + text[1:].rstrip("."))
        else:
            self.work.refuse(event.worker, event.refusal)

    def _welcome(self, event: WorkerJoined) -> None:
        """Take in a worker that has its model; an early one that refuses it ends the run."""
        self.unborn = 0
        try:
            if isinstance(event.identity, CaplocError):
                raise event.identity
            if self.first is not None:
                event.identity.check_same(self.first, event.node)
            self.first = self.first or event.identity
            self.idle.add(event.worker)
        except CaplocError as error:
            if event.worker <= self.initial or not self.idle | self.busy:
                raise
            LOG.warning("A worker that joined on %s is left out: %s", event.node, error)
            self.pool.dismiss(event.worker)
            self.pool.barred += 1

    def _lose(self, worker: int, why: str, *, blame: bool = True) -> None:
        """Forget a worker that is gone, and have its rows asked again; see `Dispatcher.lose`."""
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
        self.work.lose(worker, why, blame=blame)
        self.refreshed = -REFRESH

    def drop_unsound(self) -> None:
        """Kill workers that hang."""
        for worker, seconds in self.work.late(self.clock()):
            self.pool.dismiss(worker)
            self._lose(worker, f"it has answered nothing for {seconds:.0f} s")

    def refresh(self) -> None:
        """Look every few seconds at which workers are missing."""
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
        self.pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class DistributedEngine(WorkerSupervisor[HeadGrid]):
    """Answers asks with the workers of a pool.

    `grid` and `shared_tokens` are those of `BatchEngine`.
    """

    work: Dispatcher

    def __init__(
        self,
        pool: Any,
        patience: Patience | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the workers as `WorkerSupervisor` does; `patience` is for those that hang."""
        self.rates = WorkerRates()
        self.shared: dict[tuple[Request, ...], float] = {}
        self.guess, self.ahead = OpenBatch(guess=True), list[Ask]()
        super().__init__(pool, Dispatcher(self.rates, patience or Patience()), clock)

    def misfit(self, request: Request) -> None:
        """Leave it to the workers, which have the tokenizer."""

    def shared_tokens(self, requests: Sequence[Request]) -> float:
        """Count tokens that a mask reads once for all of these requests; see `BatchEngine`."""
        while (counted := self.count_shared(tuple(requests))) is None:
            self.turn()
        return counted

    def count_shared(self, requests: tuple[Request, ...]) -> float | None:
        """Have an idle worker count the shared tokens of these requests; None if all are busy."""
        while requests not in self.shared and self.idle:
            worker = min(self.idle)
            try:
                self.shared[requests] = float(self.pool.shared_tokens(worker, requests))
            except RunFailed as error:
                self._lose(worker, str(error))
        return self.shared.get(requests)

    def expect(self, asks: Sequence[Ask]) -> None:
        """Have these asks, which will probably come later, answered beside those that come next.

        Only workers that have room for them do so, and what comes of them is kept until it is asked
        in earnest: neither an answer nor a failure shows before.
        """
        self.ahead = list(asks)

    def answer(self, asks: Iterable[Ask]) -> Iterator[list[Answer]]:
        """Answer every ask once, in lists as workers send them.

        Raises:
            UserError: if a worker refuses an ask.
            RunFailed: if several workers fail on the same rows, or none is left.
        """
        self.work.expect(self.ahead, self.guess)
        batch = self.work.add(asks)
        self.ahead = []
        try:
            while (answers := self.work.collect(batch)) != []:
                if answers is None:
                    self.turn()
                    self.feed()  # before answers are stored: the workers need not wait for it
                    continue
                left = self.clock()
                yield answers
                self.work.excuse(self.clock() - left)
        finally:
            self.work.cancel(batch)

    def drop_unsound(self) -> None:
        """Kill workers that hang, and those that were caught with a wrong answer."""
        super().drop_unsound()
        while self.work.suspects:
            worker = self.work.suspects.pop()
            if worker in self.idle | self.busy:
                self.pool.dismiss(worker)
                why = "its answers were no numbers where another worker's were"
                self._lose(worker, why, blame=False)
