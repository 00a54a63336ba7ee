"""Many programs, a few workers."""

import hashlib
import os
import queue
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future

from caploc.errors import BadOption, RunFailed
from caploc.sandbox.protection import Isolation, choose_profile
from caploc.sandbox.protocol import MIB, Limits
from caploc.sandbox.worker import (
    NotIsolated,
    Program,
    Verdict,
    Worker,
    WorkerFailed,
    write_verdict,
)

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
        self._limits, self._isolation = limits, isolation
        self._most = workers or available_cores()
        self._lock = threading.Lock()
        self._closed = False
        self._queue: queue.SimpleQueue[tuple[bytes, Program, Future[Verdict]] | None]
        self._queue = queue.SimpleQueue()
        self._open: dict[bytes, Future[Verdict]] = {}
        self._judged: OrderedDict[bytes, Verdict] = OrderedDict()
        self._threads: list[threading.Thread] = []
        self._workers: set[Worker] = set()

    def judge(self, programs: Sequence[Program]) -> list[Verdict]:
        """Return the verdict on each program, in order.

        Raises:
            BadOption: if isolation is weaker here than what was asked for.
            RunFailed: if this machine cannot run programs, or the sandbox is or was closed.
        """
        asked: list[Future[Verdict]] = []
        verdicts = []
        try:
            asked += map(self._ask, programs)
            for program, future in zip(programs, asked, strict=True):
                while True:
                    try:
                        verdicts.append(future.result())
                        break
                    except CancelledError:  # by a thread that asked the same and left; or closed
                        future = self._ask(program)  # noqa: PLW2901
        except BaseException:
            for future in asked:
                future.cancel()
            raise
        return verdicts

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

    def __exit__(self, *error: object) -> None:
        self.close()

    def _ask(self, program: Program) -> "Future[Verdict]":
        future: Future[Verdict] = Future()
        if max(len(program.text), len(program.tests)) > LONGEST:
            future.set_result(write_verdict("refused", f"longer than {LONGEST} characters"))
            return future
        key = digest_program(program)
        with self._lock:
            if self._closed:
                raise RunFailed("The sandbox is closed; open another one.")
            if key in self._judged:
                self._judged.move_to_end(key)
                future.set_result(self._judged[key])
            elif key in self._open and not self._open[key].cancelled():
                return self._open[key]
            else:
                self._open[key] = future
                self._queue.put((key, program, future))
                if len(self._threads) < min(self._most, len(self._open)):
                    # A daemon: an interpreter that ends must not wait; the worker ends with it.
                    thread = threading.Thread(target=self._work, name="caploc sandbox", daemon=True)
                    self._threads.append(thread)
                    thread.start()
        return future

    def _work(self) -> None:
        worker: Worker | None = None
        while (task := self._queue.get()) is not None:
            key, program, future = task
            if future.set_running_or_notify_cancel():
                try:
                    worker, verdict = self._judge(worker, program)
                except Exception as error:
                    worker = None
                    future.set_exception(error)
                else:
                    with self._lock:
                        if worker is not None:  # else it says something about the worker
                            self._judged[key] = verdict
                        while len(self._judged) > REMEMBERED:
                            self._judged.popitem(last=False)
                    future.set_result(verdict)
            with self._lock:
                if self._open.get(key) is future:
                    del self._open[key]
        self._dismiss(worker)

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
                return None, write_verdict("killed", str(error))
        return None, write_verdict("killed", "it could not be isolated")

    def _hire(self) -> Worker:
        profile = choose_profile(self._isolation)
        failures: list[WorkerFailed] = []
        while len(failures) < ATTEMPTS:
            try:
                worker = Worker(self._limits, profile)
            except WorkerFailed as error:
                failures.append(error)
                continue
            with self._lock:
                self._workers.add(worker)
            if self._closed:
                worker.interrupt()
            return worker
        raise RunFailed(f"The sandbox's workers do not start: {failures[-1]}.") from failures[-1]

    def _dismiss(self, worker: Worker | None) -> None:
        if worker is not None:
            with self._lock:
                self._workers.discard(worker)
            worker.stop()


def digest_program(program: Program) -> bytes:
    """Tell one program and its tests from any other."""
    text, tests = (each.encode("utf-8", "surrogatepass") for each in (program.text, program.tests))
    lengths = f"{len(text)} {len(tests)} ".encode()
    return hashlib.blake2b(lengths + text + tests, digest_size=16).digest()


def available_cores() -> int:
    """Count the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
