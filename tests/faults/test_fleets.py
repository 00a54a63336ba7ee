"""Workers that are killed, hang, lie or run out of memory while real studies run on two nodes."""

import math
import random
import threading
import time

import psutil
import pytest
import unreliable
from disturbance import LIMIT, Outcome, compare, count, stored, wait_until

from caploc.errors import RunFailed
from caploc.progress import Silent
from caploc.search import Settings
from caploc.study import Study, run_study
from caploc.tasks.catalog import TaskOptions
from caploc.workbench import ModelOptions
from caploc.workers import DistributedEngine, Workers
from caploc.workers.distributed import WorkerRecipe
from caploc.workers.ray_backend import WorkerPool
from caploc.workers.scheduling import Patience

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.faults,
    # Ray leaves sockets, files and child processes to the garbage collector when it shuts down.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
NODE = {"node_ip_address": "127.0.0.1", "num_cpus": 1, "object_store_memory": 2**27}
HASTY = Patience(first=60.0, least=8.0, factor=3.0)
PAUSES = (0.2, 4.0)  # seconds between two kills
ROUNDING = 1e-4  # nats: rows summed beside others
GRACE = 60.0  # seconds within which the processes of a run must be gone


@pytest.fixture(scope="module")
def cluster():
    """Two nodes of one core each."""
    import ray
    from ray import cloudpickle
    from ray.cluster_utils import Cluster

    cloudpickle.register_pickle_by_value(unreliable)
    made = Cluster(initialize_head=True, head_node_args=NODE | {"include_dashboard": False})
    made.add_node(**NODE)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def study(planted):
    """The study of `job`, as Python says it."""
    return Study(
        ModelOptions(str(planted), device="cpu"), str(planted / "planted.yaml"), "css",
        Settings(masks=30, rate=0.1), examples=60, controls=2, limit=100,
    )  # fmt: skip


def engine_on(cluster, study, replica, patience=None):
    workers = Workers(None, cluster.address, cpus=1)
    return DistributedEngine(
        WorkerPool(workers, WorkerRecipe(study.model.loading()), "cpu", replica), patience
    )


def worker_processes():
    """The workers that run or load, as processes."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.name().startswith(tuple(f"ray::{name}" for name in KINDS)):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


KINDS = ("Slow", "Nan", "Raising", "Cramped")


class Answered(Silent):
    """Counts the rows of all runs."""

    rows = 0

    def advance(self, rows, tokens):
        self.rows += rows if tokens else 0


def finished(study, folder, answered, command, engine):
    """Run or resume a study; not finished if three workers in turn were killed with some rows."""
    try:
        run_study(study, folder, answered, command=command, engine=engine)
    except RunFailed as error:
        assert "workers in turn failed on the same" in str(error)
        return False
    return True


class Killer(threading.Thread):
    """Kills one worker after another, any of them, as long as one at least has its model.

    Between two kills an answer must have come: a engine that is killed faster than it answers ends
    the run, as it should.
    """

    def __init__(self, engine, answered, times):
        super().__init__(daemon=True)
        self.engine, self.answered, self.times, self.done = engine, answered, times, 0
        self.over, self.draw = threading.Event(), random.Random(1)

    def run(self):
        before = 0
        while self.done < self.times and not self.over.is_set():
            time.sleep(self.draw.uniform(*PAUSES))
            present = worker_processes()
            if present and self.engine.idle | self.engine.busy and self.answered.rows > before:
                self.draw.choice(present).kill()
                self.done, before = self.done + 1, self.answered.rows


def test_workers_are_killed(cluster, study, truth, tmp_path, times):
    """kill -9 of workers"""
    with engine_on(cluster, study, unreliable.Slow) as engine:
        answered = Answered()
        killer = Killer(engine, answered, times)
        killer.start()
        try:
            while killer.done < times:
                folder = tmp_path / f"run{killer.done}"
                while not finished(study, folder, answered, truth.result["command"], engine):
                    pass
                compare(folder, truth)
        finally:
            killer.over.set()


@pytest.mark.parametrize("kind", ["Raising", "Cramped"])
def test_workers_fail(cluster, study, truth, tmp_path, kind):
    """a worker fails"""
    replica = unreliable.going_wrong(getattr(unreliable, kind), tmp_path, 2)
    with engine_on(cluster, study, replica) as engine:
        run_study(study, tmp_path / "run", command=truth.result["command"], engine=engine)
        workers = len(engine.pool.workers)
        hired = max(engine.pool.workers)
    assert len(list(tmp_path.glob("failed*"))) == 2
    compare(tmp_path / "run", truth)
    if kind == "Cramped":  # it goes on, more carefully; nobody else does
        assert workers == hired == 2
        cautions = sorted(int(path.read_text()) for path in tmp_path.glob("caution*"))
        assert cautions[0] == 1 or sum(cautions) == 4, cautions
    else:
        assert hired > 2


def test_a_worker_is_stopped(cluster, study, truth, tmp_path):
    """a worker hangs (SIGSTOP)"""
    with engine_on(cluster, study, unreliable.Slow, HASTY) as engine:
        stopped = []

        def stop():
            wait_until(lambda: count(tmp_path / "run") > 500)
            # one that answers: a worker that waits for rows hangs only when it gets some
            (victim, *_) = worker_processes()
            victim.suspend()
            stopped.append(victim)

        stopper = threading.Thread(target=stop, daemon=True)
        stopper.start()
        run_study(study, tmp_path / "run", command=truth.result["command"], engine=engine)
        stopper.join(LIMIT)
        compare(tmp_path / "run", truth)
        _, alive = psutil.wait_procs(stopped, timeout=GRACE)
        assert not alive
        end = time.monotonic() + LIMIT
        while len(engine.idle) < 2 and time.monotonic() < end:  # another has taken its place
            engine.refresh()
            for event in engine.pool.events(1):
                engine.take(event)
        assert len(engine.idle) == 2


def test_a_worker_says_nan(cluster, study, tmp_path):
    """a worker answers NaN"""
    study = Study(**study.__dict__ | {"options": TaskOptions(outcome="logprob")})
    run_study(study, tmp_path / "truth")
    truth = stored(tmp_path / "truth")
    replica = unreliable.going_wrong(unreliable.Nan, tmp_path, 1)
    with engine_on(cluster, study, replica) as engine:
        run_study(study, tmp_path / "run", engine=engine)
    found = stored(tmp_path / "run")
    assert len(list(tmp_path.glob("failed*"))) == 1
    keys, wanted = [row[:4] for row in found], [row[:4] for row in truth]
    assert keys == wanted
    assert all(
        math.isclose(row[4], other[4], abs_tol=ROUNDING)
        for row, other in zip(found, truth, strict=True)
    )
    results = [Outcome.of(tmp_path / name).result for name in ("run", "truth")]
    assert results[0]["top"] == results[1]["top"]
