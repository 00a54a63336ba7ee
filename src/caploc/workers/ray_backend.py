"""Workers on Ray: what is asked of them, a cluster, and an actor for each.

The cluster runs already, or is started on this machine.
"""

import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import torch

from caploc.errors import BadOption, CaplocError, RunFailed
from caploc.models.placement import SPREAD
from caploc.tasks.task import Request
from caploc.workers.distributed import (
    AnswersCame,
    GroupEnded,
    Replica,
    WorkerEvent,
    WorkerJoined,
    WorkerLost,
    WorkerRecipe,
)

CLUSTER = "ray"
ADDRESS = "RAY_ADDRESS"  # Ray's own variable
FOUND = "auto"  # the address of the cluster that this machine is a node of
DEVICES = ("auto", "cpu", "cuda", SPREAD)
LAST_PORT = 65_535
SECONDS = 5.0  # within which a cluster must take a connection


@dataclass(frozen=True)
class Workers:
    """How many workers answer, and where.

    With a `count` and no `address` they are processes of this machine. Without a count there are as
    many as the cluster holds at any time, at `address`, else at RAY_ADDRESS, else on this machine.
    `gpus` is a worker's number of GPUs where there are some (a half: two workers share one), `cpus`
    its number of CPU cores, which are its threads.
    """

    count: int | None = None
    address: str | None = None
    gpus: float = 1.0
    cpus: int | None = None

    @classmethod
    def parse(
        cls, text: str | None, address: str | None, gpus: float | None, cpus: int | None
    ) -> "Workers | None":
        """Read the options of the command line; None where rows are answered in this process."""
        if text is None:
            given = {"--ray-address": address, "--gpus-per-worker": gpus, "--cpus-per-worker": cpus}
            for name, value in given.items():
                if value is not None:
                    raise BadOption(f"{name} {value} says how workers run; add --workers.")
            return None
        try:
            count = None if text == CLUSTER else int(text)
        except ValueError:
            raise BadOption(
                f"--workers takes a number of processes on this machine, or ray; got {text!r}."
            ) from None
        return cls(count, address, cls.gpus if gpus is None else gpus, cpus)

    @property
    def place(self) -> str | None:
        """The address of the cluster; None where one is started on this machine."""
        return self.address or (os.environ.get(ADDRESS) or None if self.count is None else None)

    def check(self, device: str = "auto") -> None:
        """Refuse what cannot be, before anything is started; raises BadOption."""
        self._check_numbers()
        if not find_spec("ray"):
            raise BadOption(
                "--workers needs Ray, which is not installed: pip install 'caploc[ray]'."
            )
        if device not in DEVICES:
            raise BadOption(
                f"--device {device} with --workers: Ray gives every worker its own; choose "
                f"{', '.join(DEVICES)}."
            )
        if self.address and self.address.startswith("ray://"):
            raise BadOption(
                f"--ray-address {self.address}: run caploc on a node of the cluster and give the "
                "address of its head, HOST:6379, or auto."
            )
        if self.place is None:
            self._check_machine(device)
        elif self.place != FOUND:
            _check_reachable(self.place)

    def _check_numbers(self) -> None:
        if self.count is not None and self.count < 1:
            raise BadOption(f"--workers must be 1 or more, or ray; got {self.count}.")
        if self.cpus is not None and self.cpus < 1:
            raise BadOption(f"--cpus-per-worker must be 1 or more; got {self.cpus}.")
        # what Ray itself can reserve
        if not (0 < self.gpus < 1 or self.gpus >= 1 and self.gpus.is_integer()):
            raise BadOption(
                f"--gpus-per-worker is a whole number, or a share between 0 and 1; got {self.gpus}."
            )

    def _check_machine(self, device: str) -> None:
        """Refuse more workers than this machine has GPUs or cores for."""
        cards, cores, count = torch.cuda.device_count(), os.cpu_count() or 1, self.count or 1
        if device == "cuda" and not cards:
            raise BadOption("--device cuda: there is no GPU here; choose --device cpu.")
        if cards and device != "cpu":
            if count * self.gpus > cards:
                raise BadOption(
                    f"--workers {count} with {self.gpus:g} GPUs each: this machine has {cards}; "
                    "ask for fewer workers, a smaller --gpus-per-worker, or --device cpu."
                )
        elif count * (self.cpus or 1) > cores:
            raise BadOption(
                f"--workers {count} with {self.cpus or 1} cores each: this machine has {cores}; "
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
NAMESPACE = "caploc"
# For processes of a cluster of our own. Without the first they would be reached from every network.
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
NICENESS = "RAY_worker_niceness"  # Ray makes workers give way to every other process
TOKEN = Path(".ray", "auth_token")  # in the user's home; where Ray looks for it
TOKEN_GIVEN = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
# What the command line sets for itself before its libraries are imported.
ENVIRONMENT = {
    "GOMP_SPINCOUNT": "1000",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}
A_SECOND = 32  # lists of answers that the driver takes in a second; each worker sends one at most
ASKED = 600.0  # seconds that a worker may take for a question that no row depends on


@dataclass
class Connection:
    """Ray's module, connected; `owned` if this made the connection."""

    ray: Any
    owned: bool

    @property
    def nodes(self) -> list[dict[str, Any]]:
        """The nodes that are alive, as Ray describes them."""
        try:
            return [node for node in self.ray.nodes() if node["Alive"]]
        except (self.ray.exceptions.RayError, RuntimeError, ConnectionError) as error:
            raise RunFailed(
                f"The Ray cluster is gone ({_first_line(error)}); what was measured is kept, and "
                "the same command continues once it is back."
            ) from error

    def name(self, node: str) -> str:
        """Return the name of a node's machine, by the node's id; the id if it is gone."""
        names = {each["NodeID"]: each["NodeManagerHostname"] for each in self.nodes}
        return str(names.get(node, node))

    def close(self) -> None:
        """Leave the cluster; one of our own ends."""
        if self.owned and self.ray.is_initialized():
            self.ray.shutdown()


def connect_ray(workers: Workers) -> Connection:
    """Connect to the cluster, or start one on this machine; a connection that exists is used.

    Raises BadOption if there is no cluster at the address.
    """
    place = workers.place
    if place is None:
        os.environ[LOOPBACK] = "0"
        os.environ.setdefault(NICENESS, "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    if ray.is_initialized():
        return Connection(ray, owned=False)
    # Off standard output, where results are printed. What Ray would say there when a worker or a
    # node dies is said by the engine, in one line.
    ray._private.worker._worker_logs_enabled = False
    own: dict[str, Any] = {}
    if place is None:
        cores = max(os.cpu_count() or 1, (workers.count or 1) * (workers.cpus or 1))
        own = {"num_cpus": cores, "include_dashboard": False, "object_store_memory": STORE}
    where = f"the Ray cluster at {place}" if place else "a Ray cluster on this machine"
    try:
        with _own_signals(), nullcontext() if place else _kept_here(ray):
            ray.init(
                address=place or "local",
                namespace=NAMESPACE,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env={"env_vars": ENVIRONMENT},
                **own,
            )
    except Exception as error:  # what Ray raises here has no class in common
        hint = (
            "check that it runs, with the same versions of Ray and Python as here"
            if place
            else "where a machine is very busy Ray may need another try, or fewer workers"
        )
        raise BadOption(f"No connection to {where} ({_first_line(error)}); {hint}.") from error
    return Connection(ray, owned=True)


@contextmanager
def _kept_here(ray: Any) -> Iterator[None]:
    """Have Ray start a cluster that other machines and other users of this one cannot reach.

    Ray looks at the environment when it is imported, which a notebook may have done long ago.
    """
    constants = ray._private.ray_constants
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        guard_token()
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


def guard_token() -> None:
    """Make the token that lets processes into a cluster, readable to this user only.

    Ray would make one that every user of the machine can read. One that is there is kept.
    """
    if any(map(os.environ.get, TOKEN_GIVEN)):
        return
    path = Path.home() / TOKEN
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        place = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(place, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32))
    path.chmod(0o600)


@contextmanager
def _own_signals() -> Iterator[None]:
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


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].strip().rstrip(".")


@dataclass(frozen=True)
class Reservation:
    """What Ray reserves for one worker."""

    cpus: int
    gpus: float

    def fits(self, node: dict[str, Any]) -> int:
        has = node["Resources"]
        rooms = [has.get("CPU", 0) // self.cpus]
        if self.gpus:
            cards = has.get("GPU", 0)
            # several workers may share a card, but none may lie on two halves
            sharing = int(1 / self.gpus + 1e-9)  # ten of a tenth: 1 // 0.1 is 9
            rooms.append(cards * sharing if self.gpus < 1 else cards // self.gpus)
        return int(min(rooms))


@dataclass
class PoolWorker:
    """A worker: its actor, the id of its node once it has loaded, and the group it was given."""

    actor: Any
    node: str | None = None
    group: int = 0


@dataclass
class WorkerPool:
    """Runs workers on Ray: as many as counted, else as many as the nodes have room for.

    A worker that dies is replaced by a new actor and its rows are asked again row by row. Ray's own
    restarts would replay the whole stream of answers, whose cuts depend on the clock.
    """

    options: Workers
    recipe: WorkerRecipe
    device: str = "auto"
    replica: type[Any] = Replica  # a `ModelReplica` that packs and answers groups
    connection: Connection = field(init=False)
    reserved: Reservation = field(init=False)
    workers: dict[int, PoolWorker] = field(default_factory=dict)
    calls: dict[Any, int] = field(default_factory=dict)  # what is out, by its reference
    numbers: "count[int]" = field(default_factory=lambda: count(1))
    away: list[int] = field(default_factory=list)  # whose nodes are dead, and it was not said yet
    barred: int = 0  # places where no worker can work

    def __post_init__(self) -> None:
        """Connect; refuse a cluster without room for a single worker."""
        self.connection = connect_ray(self.options)
        try:
            self.reserved = self._reservation()
            # with a count there may be nodes to come: a cluster that grows is told by its actors
            if self.options.count is None and not self.expected:
                gpus = f" and {self.reserved.gpus:g} GPUs" if self.reserved.gpus else ""
                raise BadOption(
                    f"No node of the Ray cluster has the {self.reserved.cpus} CPU cores{gpus} that "
                    "a worker takes; choose a smaller --cpus-per-worker or --gpus-per-worker, or "
                    "give --workers a number if the cluster grows by itself."
                )
            self.actors = self.connection.ray.remote(self.replica)
            recipe = replace(self.recipe, cpus=self.reserved.cpus)
            self.shared = self.connection.ray.put(recipe)
        except BaseException:
            self.connection.close()
            raise

    def _reservation(self) -> Reservation:
        """Choose what a worker gets: GPUs where the cluster has some, else cores for its threads.

        A worker without GPUs has all cores of the smallest node, or its part of this machine's.
        """
        nodes = self.connection.nodes
        cards = any(node["Resources"].get("GPU") for node in nodes) and self.device != "cpu"
        if self.device == "cuda" and not cards:
            raise BadOption(
                "--device cuda: no node of the Ray cluster has a GPU; choose auto or cpu."
            )
        cores = [int(node["Resources"].get("CPU", 0)) for node in nodes]
        least = min((c for c in cores if c), default=1)
        if self.options.place is None and self.options.count:
            least = max(1, least // self.options.count)
        usual = 1 if cards else least
        return Reservation(self.options.cpus or usual, self.options.gpus if cards else 0.0)

    @property
    def expected(self) -> int:
        if self.options.count is not None:
            return max(1, self.options.count - self.barred)
        return sum(map(self.reserved.fits, self.connection.nodes)) - self.barred

    def refresh(self) -> None:
        """Start the workers that are missing; let go of waiting ones that have lost their place.

        Ray says when a worker dies that was asked something. Those that were asked nothing are
        missed here.
        """
        alive = {node["NodeID"] for node in self.connection.nodes}
        self.away = [n for n, each in self.workers.items() if each.node and each.node not in alive]
        wanted, there = self.expected, len(self.workers) - len(self.away)
        for _ in range(wanted - there):
            self.start()
        waiting = [number for number, each in self.workers.items() if not each.node]
        for number in waiting[::-1][: max(0, there - max(1, wanted))]:
            self.dismiss(number)

    def start(self) -> None:
        """Start a worker, wherever Ray finds room, and have it load the model."""
        actor = self.actors.options(
            num_cpus=self.reserved.cpus, num_gpus=self.reserved.gpus, scheduling_strategy="SPREAD"
        ).remote(self.shared)
        number = next(self.numbers)
        self.workers[number] = PoolWorker(actor)
        self.calls[actor.load.remote()] = number

    def give(self, worker: int, group: int, asks: Sequence[Any]) -> None:
        self.workers[worker].group = group
        # a stream: what is answered is kept, whatever becomes of the worker
        answer = self.workers[worker].actor.answer.options(num_returns="streaming")
        seconds = max(1.0, len(self.workers) / A_SECOND)
        self.calls[answer.remote(self.replica.pack(asks), seconds)] = worker

    def shared_tokens(self, worker: int, requests: Sequence[Request]) -> float:
        """Ask a worker for `BatchEngine.shared_tokens`.

        Raises RunFailed if the worker dies or hangs; it is let go of.
        """
        ray = self.connection.ray
        try:
            call = self.workers[worker].actor.shared_tokens.remote(list(requests))
            found = ray.get(call, timeout=ASKED)
        except ray.exceptions.RayError as error:
            self.dismiss(worker)
            raise RunFailed(self._reason(error)) from None
        if isinstance(found, CaplocError):
            raise found
        return float(found)

    def events(self, seconds: float) -> list[WorkerEvent]:
        """Return what happened; wait so long for something to happen."""
        if away := [number for number in self.away if number in self.workers]:
            for worker in away:
                self.dismiss(worker)
            return [WorkerLost(worker, "its node died") for worker in away]
        calls = list(self.calls)
        if not calls:  # Ray would not wait for nothing
            time.sleep(seconds)
            return []
        # Everything that is there is taken, not the first alone: with many workers there are many.
        ray = self.connection.ray
        ready, _ = ray.wait(calls, num_returns=1, timeout=seconds)
        if ready:
            ready, _ = ray.wait(calls, num_returns=len(calls), timeout=0)
        return [self._event(call) for call in ready]

    def _event(self, call: Any) -> WorkerEvent:
        number, ray = self.calls[call], self.connection.ray
        worker = self.workers[number]
        try:
            if worker.node is None:
                identity, worker.node = ray.get(call)
                del self.calls[call]
                return WorkerJoined(number, self.connection.name(str(worker.node)), identity)
            found = ray.get(next(call))
        except StopIteration:
            del self.calls[call]
            return GroupEnded(number, worker.group)
        except ray.exceptions.RayError as error:
            # Whatever went wrong, the process may not be sound any more.
            self.dismiss(number)
            return WorkerLost(number, self._reason(error))
        if isinstance(found, CaplocError):
            del self.calls[call]
            return GroupEnded(number, worker.group, found)
        return AnswersCame(number, worker.group, found)

    def _reason(self, error: Exception) -> str:
        """Say why a worker is gone, as the end of a sentence."""
        cause = getattr(error, "cause", None)
        if isinstance(cause, BaseException):
            return f"it raised {type(cause).__name__} ({_first_line(cause)})"
        if isinstance(error, self.connection.ray.exceptions.OutOfMemoryError):
            return "its node ran out of memory"
        if isinstance(error, self.connection.ray.exceptions.GetTimeoutError):
            return f"it did not answer within {ASKED:.0f} s"
        return "its process or its node died"

    def dismiss(self, worker: int) -> None:
        """Kill a worker, whatever it does; nothing more is heard of it."""
        gone = self.workers.pop(worker, None)
        if gone is None:
            return
        self.calls = {call: number for call, number in self.calls.items() if number != worker}
        self.connection.ray.kill(gone.actor)

    def close(self) -> None:
        """Kill all workers and leave the cluster."""
        if self.connection.ray.is_initialized():
            for worker in list(self.workers):
                self.dismiss(worker)
        self.connection.close()
