"""The connection to Ray: a cluster that runs, or one started on this machine for this run."""

import logging
import os
import secrets
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caploc.errors import BadOption, RunFailed
from caploc.workers.options import Workers

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


@dataclass
class Connection:
    """Ray's module, connected; `owned` if this made the connection."""

    ray: Any
    owned: bool

    @property
    def nodes(self) -> list[dict[str, Any]]:
        """The nodes that are alive, as Ray describes them.

        Raises:
            RunFailed: if the cluster is gone.
        """
        try:
            return [node for node in self.ray.nodes() if node["Alive"]]
        except (self.ray.exceptions.RayError, RuntimeError, ConnectionError) as error:
            raise RunFailed(
                f"The Ray cluster is gone ({first_line(error)}); what was measured is kept, and "
                "the same command continues once it is back."
            ) from error

    def name(self, node: str) -> str:
        """The name of the machine that a node is, by the node's id; the id if it is gone."""
        names = {each["NodeID"]: each["NodeManagerHostname"] for each in self.nodes}
        return str(names.get(node, node))

    def close(self) -> None:
        """Leave the cluster; one of our own ends."""
        if self.owned and self.ray.is_initialized():
            self.ray.shutdown()


def connect(workers: Workers) -> Connection:
    """Connect to the cluster, or start one on this machine; a connection that exists is used.

    Raises:
        BadOption: if there is no cluster at the address.
    """
    place = workers.place
    if place is None:
        os.environ[LOOPBACK] = "0"
        os.environ.setdefault(NICENESS, "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    if ray.is_initialized():
        return Connection(ray, owned=False)
    quiet(ray)
    with one_sentence(place), own_signals(), nullcontext() if place else kept_here(ray):
        ray.init(
            address=place or "local",
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"env_vars": ENVIRONMENT},
            **({} if place else own_cluster(workers)),
        )
    return Connection(ray, owned=True)


def own_cluster(workers: Workers) -> dict[str, Any]:
    """How a cluster on this machine is started: without a dashboard."""
    cores = os.cpu_count() or 1
    return {
        "num_cpus": max(cores, (workers.count or 1) * (workers.cpus or 1)),
        "include_dashboard": False,
        "object_store_memory": STORE,
    }


@contextmanager
def kept_here(ray: Any) -> Iterator[None]:
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


def quiet(ray: Any) -> None:
    """Keep Ray's messages off standard output, where results are printed.

    What it would say there when a worker or a node dies is said by the fleet, in one line.
    """
    ray._private.worker._worker_logs_enabled = False


@contextmanager
def one_sentence(place: str | None) -> Iterator[None]:
    """Turn what Ray raises when it cannot connect or start into one sentence."""
    where = f"the Ray cluster at {place}" if place else "a Ray cluster on this machine"
    try:
        yield
    except (ConnectionError, RuntimeError, OSError, ValueError) as error:
        raise BadOption(
            f"No connection to {where} ({first_line(error)}); check that it runs, with the same "
            "versions of Ray and Python as here."
        ) from error


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
    """The first line of an error's text, without its full stop."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].strip().rstrip(".")
