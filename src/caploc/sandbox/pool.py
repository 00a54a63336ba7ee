"""Many programs, a few workers."""

import hashlib
import os
import queue
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from types import TracebackType

from caploc.errors import BadOption, RunFailed
from caploc.sandbox.isolation import Isolation
from caploc.sandbox.limits import MIB, Limits
from caploc.sandbox.protection import choose_profile
from caploc.sandbox.verdicts import Program, Verdict, verdict
from caploc.sandbox.worker import NotIsolated, Worker, WorkerFailed

# Verdicts kept, so that the same program is judged once: at most some 20 MiB.
REMEMBERED = 32_768
# The most characters that a program or its tests may have.
LONGEST = 2 * MIB
# How often a worker is started, or a program tried that could not be isolated.
ATTEMPTS = 3


class Sandbox:
    """Judges programs that nobody trusts, several at a time, each in processes of its own.

    Workers start with the first programs and then wait, idle, for more. Any thread may ask. The
    same program with the same tests is judged once; asking again gives the same verdict.
    """

    def __init__(
        self,
        limits: Limits = Limits(),  # noqa: B008
        workers: int | None = None,
        isolation: Isolation | None = None,
    ) -> None:
        """Open the sandbox; nothing runs yet.

        Args:
            limits: what each program may use.
            workers: how many programs at a time; None for one a core.
            isolation: "full", or "weak" to take the best that this machine gives; None for what
                `require_isolation` last said in this process, which is "full" unless it did.

        Raises:
            BadOption: if there are to be no workers.
        """
        if workers is not None and workers < 1:
            raise BadOption(f"workers must be 1 or more; got {workers}.")
        self._limits = limits
        self._isolation = isolation
        self._most = workers or available_cores()
        self._lock = threading.Lock()
        self._closed = False
        self._queue: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._open: dict[bytes, Future[Verdict]] = {}
        self._judged: OrderedDict[bytes, Verdict] = OrderedDict()
        self._threads: list[threading.Thread] = []
        self._workers: set[Worker] = set()

    def judge(self, programs: Sequence[Program]) -> list[Verdict]:
        """The verdict on each program, in order.

        Raises:
            BadOption: if isolation is weaker here than what was asked for.
            RunFailed: if this machine cannot run programs, or the sandbox is or was closed.
        """
        asked: list[Future[Verdict]] = []
        try:
            asked += map(self._ask, programs)
            pairs = zip(programs, asked, strict=True)
            return [self._answer(program, future) for program, future in pairs]
        except BaseException:
            for future in asked:
                future.cancel()
            raise

    def close(self) -> None:
        """End every worker and program now; whoever still waits for a verdict gets RunFailed."""
        with self._lock:
            self._closed = True
            for future in self._open.values():
                future.cancel()
            for worker in self._workers:
                worker.interrupt()
            threads = list(self._threads)
        for _ in threads:
            self._queue.put(None)
        for thread in threads:
            thread.join()

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _ask(self, program: Program) -> "Future[Verdict]":
        if max(len(program.text), len(program.tests)) > LONGEST:
            return settled(verdict("refused", f"longer than {LONGEST} characters"))
        key = digest(program)
        with self._lock:
            if self._closed:
                raise RunFailed("The sandbox is closed; open another one.")
            if key in self._judged:
                self._judged.move_to_end(key)
                return settled(self._judged[key])
            if key in self._open and not self._open[key].cancelled():
                return self._open[key]
            future = self._open[key] = Future()
            self._queue.put((key, program, future))
            if len(self._threads) < min(self._most, len(self._open)):
                # A daemon: an interpreter that ends must not wait; the worker ends with it.
                thread = threading.Thread(target=self._work, name="caploc sandbox", daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def _answer(self, program: Program, future: "Future[Verdict]") -> Verdict:
        while True:
            try:
                return future.result()
            except CancelledError:  # by another thread that asked the same and gave up; or closed
                future = self._ask(program)

    def _work(self) -> None:
        worker: Worker | None = None
        while (task := self._queue.get()) is not None:
            key, program, future = task
            if future.set_running_or_notify_cancel():
                worker = self._settle(worker, program, key, future)
            with self._lock:
                if self._open.get(key) is future:
                    del self._open[key]
        self._dismiss(worker)

    def _settle(
        self, worker: Worker | None, program: Program, key: bytes, future: "Future[Verdict]"
    ) -> Worker | None:
        """Judge one program; the worker to go on with, if there still is one."""
        try:
            worker, said = self._judge(worker, program)
        except Exception as error:
            future.set_exception(error)
            return None
        if worker is not None:  # else it says something about the worker, not the program
            with self._lock:
                self._judged[key] = said
                while len(self._judged) > REMEMBERED:
                    self._judged.popitem(last=False)
        future.set_result(said)
        return worker

    def _judge(self, worker: Worker | None, program: Program) -> tuple[Worker | None, Verdict]:
        for _ in range(ATTEMPTS):
            worker = worker or self._hire()
            try:
                return worker, worker.judge(program)
            except NotIsolated:
                self._dismiss(worker)
                worker = None
            except WorkerFailed as error:
                self._dismiss(worker)
                if self._closed:
                    raise RunFailed("The sandbox was closed before the verdict.") from error
                return None, verdict("killed", str(error))
        return None, verdict("killed", "it could not be isolated")

    def _hire(self) -> Worker:
        for attempt in range(ATTEMPTS):
            try:
                worker = Worker(self._limits, choose_profile(self._isolation))
            except WorkerFailed as error:
                if attempt == ATTEMPTS - 1:
                    raise RunFailed(f"The sandbox's workers do not start: {error}.") from error
                continue
            with self._lock:
                self._workers.add(worker)
            if self._closed:
                worker.interrupt()
            return worker
        raise AssertionError("unreachable")

    def _dismiss(self, worker: Worker | None) -> None:
        if worker is not None:
            with self._lock:
                self._workers.discard(worker)
            worker.stop()


Task = tuple[bytes, Program, "Future[Verdict]"]


def settled(said: Verdict) -> "Future[Verdict]":
    """A future that already has its verdict."""
    future: Future[Verdict] = Future()
    future.set_result(said)
    return future


def digest(program: Program) -> bytes:
    """What tells one program and its tests from any other."""
    text, tests = (each.encode("utf-8", "surrogatepass") for each in (program.text, program.tests))
    lengths = f"{len(text)} {len(tests)} ".encode()
    return hashlib.blake2b(lengths + text + tests, digest_size=16).digest()


def available_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
