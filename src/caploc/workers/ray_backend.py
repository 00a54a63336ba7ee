"""Workers on Ray: how many and where, a cluster that runs or is started here, and its actors."""

import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import torch

from caploc.errors import BadOption, CaplocError, RunFailed
from caploc.models.devices import SPREAD
from caploc.options import Workers
from caploc.workers.distributed import ModelIdentity, Replica, WorkerRecipe

LOG = logging.getLogger(__name__)
LOG.setLevel(
    logging.WARNING
)  # the command line hushes everything else; a lost worker is worth a line
FOUND = "auto"  # the address of the cluster that this machine is a node of
DEVICES = ("auto", "cpu", "cuda", SPREAD)
LAST_PORT = 65_535
SECONDS = 5.0  # within which a cluster must take a connection


def check_workers(workers: Workers, device: str = "auto") -> None:
    """Refuse what cannot be, before anything is started; raises BadOption."""
    _check_numbers(workers)
    if not find_spec("ray"):
        raise BadOption("--workers needs Ray, which is not installed: pip install 'caploc[ray]'.")
    if device not in DEVICES:
        raise BadOption(
            f"--device {device} with --workers: Ray gives every worker its own; choose "
            f"{', '.join(DEVICES)}."
        )
    if workers.address and workers.address.startswith("ray://"):
        raise BadOption(
            f"--ray-address {workers.address}: run caploc on a node of the cluster and give the "
            "address of its head, HOST:6379, or auto."
        )
    if workers.place is None:
        _check_machine(workers, device)
    elif workers.place != FOUND:
        _check_reachable(workers.place)


def _check_numbers(workers: Workers) -> None:
    if workers.count is not None and workers.count < 1:
        raise BadOption(f"--workers must be 1 or more, or ray; got {workers.count}.")
    if workers.cpus is not None and workers.cpus < 1:
        raise BadOption(f"--cpus-per-worker must be 1 or more; got {workers.cpus}.")
    # what Ray itself can reserve
    if not (0 < workers.gpus < 1 or workers.gpus >= 1 and workers.gpus.is_integer()):
        raise BadOption(
            f"--gpus-per-worker is a whole number, or a share between 0 and 1; got {workers.gpus}."
        )


def _check_machine(workers: Workers, device: str) -> None:
    """Refuse more workers than this machine has GPUs or cores for."""
    cards, cores, count = torch.cuda.device_count(), os.cpu_count() or 1, workers.count or 1
    if device == "cuda" and not cards:
        raise BadOption("--device cuda: there is no GPU here; choose --device cpu.")
    if cards and device != "cpu":
        if count * workers.gpus > cards:
            raise BadOption(
                f"--workers {count} with {workers.gpus:g} GPUs each: this machine has {cards}; "
                "ask for fewer workers, a smaller --gpus-per-worker, or --device cpu."
            )
    elif count * (workers.cpus or 1) > cores:
        raise BadOption(
            f"--workers {count} with {workers.cpus or 1} cores each: this machine has {cores}; "
            "ask for fewer."
        )


def _check_reachable(address: str) -> None:
    """Refuse an address where nothing listens; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and int(port) <= LAST_PORT):
        raise BadOption(
            f"--ray-address takes HOST:PORT of a cluster's head, or auto; got {address!r}."
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), SECONDS).close()
    except (OSError, ValueError) as error:  # a host's name may be none
        why = getattr(error, "strerror", None) or error
        raise BadOption(
            f"There is no Ray cluster at {address} ({why}); start one with "
            "`ray start --head`, or leave the address out to use this machine."
        ) from None


STORE = 2**28  # bytes of shared memory of a cluster of our own: only rows pass through it
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # 0: a cluster of our own listens on 127.0.0.1
TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
NICENESS = "RAY_worker_niceness"  # Ray makes workers give way to every other process
# What the command line sets for itself before its libraries are imported.
ENVIRONMENT = {
    "GOMP_SPINCOUNT": "1000",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}
RESTARTS = 20  # of a worker; each loads the model anew
ATTEMPTS = 5  # workers that may die one after another with the same chunk
QUEUED = 2  # chunks that a worker has: what it computes, and what comes next
LOADING = 3600.0  # seconds that there may be no worker with its model


def connect_ray(workers: Workers) -> tuple[Any, bool]:
    """Connect to the cluster, or start one on this machine; a connection that exists is used.

    Returns Ray's module and whether this made the connection. Raises BadOption if there is no
    cluster at the address.
    """
    place = workers.place
    if place is None:
        os.environ[LOOPBACK] = "0"
        os.environ.setdefault(NICENESS, "0")
        # Only before Ray is imported: afterwards this process would not show the token itself.
        if "ray" not in sys.modules and not any(map(os.environ.get, TOKENS)):
            os.environ |= {"RAY_AUTH_MODE": "token", TOKENS[0]: secrets.token_hex(32)}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    if ray.is_initialized():
        return ray, False
    own: dict[str, Any] = {}
    if place is None:
        cores = max(os.cpu_count() or 1, (workers.count or 1) * (workers.cpus or 1))
        own = {"num_cpus": cores, "include_dashboard": False, "object_store_memory": STORE}
    # Off standard output, where results are printed.
    ray._private.worker._worker_logs_enabled = False
    constants = ray._private.ray_constants
    before = constants.ENABLE_RAY_CLUSTER
    try:
        constants.ENABLE_RAY_CLUSTER = before and place is not None  # if Ray was imported already
        with own_signals():
            ray.init(
                address=place or "local",
                namespace="caploc",
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env={"env_vars": ENVIRONMENT},
                **own,
            )
    except Exception as error:  # what Ray raises here has no class in common
        where = f"to the Ray cluster at {place}" if place else "to a Ray cluster on this machine"
        raise BadOption(
            f"No connection {where} ({first_line(error)}); check that it runs with the same "
            "versions of Ray and Python as here."
        ) from error
    finally:
        constants.ENABLE_RAY_CLUSTER = before
    return ray, True


@contextmanager
def own_signals() -> Iterator[None]:
    """Let signals that ask to end reach whoever listened: Ray takes some over when it starts.

    Its own handler of SIGTERM aborts the process with a dump of its stack.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            if callable(handler):
                signal.signal(each, handler)


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].strip().rstrip(".")


@dataclass(frozen=True)
class Reservation:
    """What Ray reserves for one worker."""

    cpus: int
    gpus: float

    def fits(self, has: dict[str, float]) -> int:
        """Count the workers for which a node with these resources has room."""
        rooms = [has.get("CPU", 0) // self.cpus]
        if self.gpus:
            cards = has.get("GPU", 0)
            # several workers may share a card, but none may lie on two halves
            sharing = int(1 / self.gpus + 1e-9)  # ten of a tenth: 1 // 0.1 is 9
            rooms.append(cards * sharing if self.gpus < 1 else cards // self.gpus)
        return int(min(rooms))


def choose_reservation(
    workers: Workers, device: str, nodes: Sequence[dict[str, float]]
) -> Reservation:
    """Choose what a worker gets: GPUs where the cluster has some, else cores for its threads.

    A worker without GPUs has all cores of the smallest node, or its part of this machine's.
    """
    cards = any(node.get("GPU") for node in nodes) and device != "cpu"
    if device == "cuda" and not cards:
        raise BadOption("--device cuda: no node of the Ray cluster has a GPU; choose auto or cpu.")
    least = min((int(node["CPU"]) for node in nodes if node.get("CPU")), default=1)
    if workers.place is None and workers.count:
        least = max(1, least // workers.count)
    return Reservation(workers.cpus or (1 if cards else least), workers.gpus if cards else 0.0)


class WorkerPool:
    """Ray actors with a replica of the model each, which take chunks of work as they get free.

    Ray restarts an actor that has died. Its chunk goes to another, since its node may be gone for
    good; a restarted one gets work once it has its model again.
    """

    def __init__(
        self,
        options: Workers,
        recipe: WorkerRecipe,
        device: str = "auto",
        replica: type[Replica] = Replica,
    ) -> None:
        """Start the workers; refuse a cluster without room for a single one."""
        self.ray, self.owned = connect_ray(options)
        self.actors: dict[int, Any] = {}
        self.ready: list[int] = []  # those that have their model
        self.loading: dict[Any, int] = {}  # those that do not, by the reference to its coming
        self.identity: ModelIdentity | None = None
        try:
            nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
            reserved = choose_reservation(options, device, nodes)
            count = options.count or sum(map(reserved.fits, nodes))
            if not count:
                gpus = f" and {reserved.gpus:g} GPUs" if reserved.gpus else ""
                raise BadOption(
                    f"No node of the Ray cluster has the {reserved.cpus} CPU cores{gpus} that a "
                    "worker takes; choose a smaller --cpus-per-worker or --gpus-per-worker, or "
                    "give --workers a number if the cluster grows by itself."
                )
            actor = self.ray.remote(replica).options(
                num_cpus=reserved.cpus,
                num_gpus=reserved.gpus,
                max_restarts=RESTARTS,
                scheduling_strategy="SPREAD",
            )
            recipe = replace(recipe, cpus=reserved.cpus)
            for number in range(count):
                self.actors[number] = actor.remote(recipe)
                self.load(number)
        except BaseException:
            self.close()
            raise

    @property
    def size(self) -> int:
        return len(self.actors)

    def load(self, number: int) -> None:
        """Have a worker load its model, however often it has to start for that."""
        call = self.actors[number].load.options(max_task_retries=-1).remote()
        self.loading[call] = number

    def identify(self) -> ModelIdentity:
        """Wait for the first worker to have its model; return which it is."""
        try:
            while self.identity is None:
                self.wait({})
        except BaseException:
            self.close()
            raise
        return self.identity

    def wait(self, calls: dict[Any, Any]) -> list[Any]:
        """Wait for some of these calls to end, or for a worker to have its model.

        Raises UserError for a model that is refused; RunFailed if no worker is left.
        """
        ended, _ = self.ray.wait([*calls, *self.loading], timeout=LOADING)
        if not ended and not calls:
            raise RunFailed(
                f"For {LOADING / 60:.0f} minutes no worker has had its model; does the cluster "
                "have free CPUs or GPUs (`ray status`)? What was measured is kept."
            )
        for call in ended:
            if call in self.loading:
                self.welcome(call)
        return [call for call in ended if call in calls]

    def welcome(self, call: Any) -> None:
        """Take in that a worker has its model, or has died too often."""
        number = self.loading.pop(call)
        try:
            identity = self.result(call)
        except WorkerLost as lost:
            del self.actors[number]
            if not self.actors:
                raise RunFailed(
                    f"Every worker died {RESTARTS} times, the last one because {lost}; is there "
                    "enough memory for so many of it? What was measured is kept."
                ) from lost
            return
        self.identity = self.identity or identity
        identity.check_same(self.identity)
        self.ready.append(number)

    def result(self, call: Any) -> Any:
        """Return what a call gave; raises the CaplocError that it raised, else WorkerLost."""
        errors = self.ray.exceptions
        try:
            return self.ray.get(call)
        except errors.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, CaplocError):
                raise cause from None
            why = f"it raised {type(cause).__name__} ({first_line(cause)})"
            raise WorkerLost(why, runs=True) from error
        except errors.OutOfMemoryError as error:
            raise WorkerLost("its node ran out of memory") from error
        except errors.RayError as error:
            raise WorkerLost("its process or its node died") from error

    def map(self, method: str, chunks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Have every chunk worked on once; yield its number and what came of it, as they come.

        Raises what a worker refuses; RunFailed if workers in turn fail on a chunk, or none is left.
        """
        waiting, failures = deque(range(len(chunks))), Counter[int]()
        calls: dict[Any, tuple[int, int]] = {}  # reference → worker, chunk
        while waiting or calls:
            busy = Counter(worker for worker, _ in calls.values())
            for worker in sorted(self.ready * QUEUED, key=lambda each: busy[each]):
                if waiting and busy[worker] < QUEUED:
                    busy[worker] += 1
                    chunk = waiting.popleft()
                    call = getattr(self.actors[worker], method).remote(chunks[chunk])
                    calls[call] = worker, chunk
            for call in self.wait(calls):
                worker, chunk = calls.pop(call)
                try:
                    found = self.result(call)
                except WorkerLost as lost:
                    failures[chunk] += 1
                    if failures[chunk] >= ATTEMPTS:
                        raise RunFailed(
                            f"{ATTEMPTS} workers in turn failed on the same rows, the last one "
                            f"because {lost}; what was measured is kept. Run the same command "
                            "without --workers to see whether this process can answer them."
                        ) from lost
                    waiting.appendleft(chunk)
                    self.restart(worker, lost)
                else:
                    yield chunk, found

    def restart(self, worker: int, lost: "WorkerLost") -> None:
        """Give a worker nothing more until it has its model again, in a new process."""
        if worker not in self.ready:  # said already, of its other chunk
            return
        LOG.warning("Worker %d is lost because %s; it is started again.", worker, lost)
        self.ready.remove(worker)
        if lost.runs:
            self.ray.kill(self.actors[worker], no_restart=False)
        self.load(worker)

    def close(self) -> None:
        """Kill all workers and leave the cluster; one of our own ends."""
        if self.ray.is_initialized():
            for actor in self.actors.values():
                self.ray.kill(actor)
            if self.owned:
                self.ray.shutdown()


class WorkerLost(Exception):
    """A worker is gone, or `runs` but may not be sound; the text says why, after "because"."""

    def __init__(self, why: str, *, runs: bool = False) -> None:
        super().__init__(why)
        self.runs = runs
