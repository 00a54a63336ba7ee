"""Workers on real Ray clusters of this machine: two raylets, every one bound to 127.0.0.1."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from caploc.declaration import ModelOptions, Study
from caploc.engine.api import Ask
from caploc.errors import BadOption, RunFailed
from caploc.options import Settings
from caploc.progress import Silent
from caploc.store import Store
from caploc.studies import run_studies
from caploc.study import run_study
from caploc.tasks.catalog import load_task
from caploc.tasks.task import LogLikelihood
from caploc.workers import DistributedEngine, Workers
from caploc.workers.distributed import Replica, WorkerRecipe
from caploc.workers.ray_backend import WorkerPool
from doubles import count_rows
from worlds import DEMO

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.cluster,
    # Ray leaves sockets, files and child processes to the garbage collector when it shuts down.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
NODE = {"node_ip_address": "127.0.0.1", "num_cpus": 1, "object_store_memory": 2**27}
MODEL = ModelOptions(DEMO, device="cpu")
MARK = "CAPLOC_TEST_MARK"


def start_cluster():
    import faulty
    from ray import cloudpickle
    from ray.cluster_utils import Cluster

    # nodes cannot import this folder
    cloudpickle.register_pickle_by_value(faulty)
    made = Cluster(initialize_head=True, head_node_args=NODE | {"include_dashboard": False})
    made.add_node(**NODE)
    return made


@pytest.fixture(scope="module")
def mark(tmp_path_factory):
    """A file that a replica makes when it fails; nodes inherit the variable that says where."""
    path = tmp_path_factory.mktemp("mark") / "failed"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, str(path))
        yield path


@pytest.fixture
def cluster(running, mark):
    """Two nodes of one core each, of which none has failed yet."""
    mark.unlink(missing_ok=True)
    return running


@pytest.fixture(scope="module")
def running(mark):
    made = start_cluster()
    yield made
    import ray

    ray.shutdown()
    made.shutdown()


def engine_on(cluster, replica=Replica, options=MODEL):
    workers = Workers(None, cluster.address, cpus=1)
    pool = WorkerPool(workers, WorkerRecipe(options.loading()), "cpu", replica)
    return DistributedEngine(pool, lambda request: None)


def asks(masks=48, examples=12):
    """Masks of two heads on additions, which the demo answers in text."""
    task, draw = load_task("demo/addition"), np.random.default_rng(0)
    found = []
    for number in range(masks):
        mask = np.zeros(96, dtype=bool)
        mask[draw.choice(96, 2, replace=False)] = True
        found += [
            Ask((number * examples + n, 0), task.requests(n)[0], mask) for n in range(examples)
        ]
    return found


def collected(answers, seen=None):
    """Responses by key; none comes twice."""
    found = {} if seen is None else seen
    for batch in answers:
        for answer in batch:
            assert answer.key not in found
            found[answer.key] = answer.response
    return found


@pytest.fixture(scope="module")
def alone():
    """The answers of one engine in one process."""
    return collected(MODEL.engine().answer(asks()))


def test_two_nodes_give_the_result_of_one_process(cluster, tmp_path):
    settings = Settings(masks=20, rate=0.05, top=3)
    study = Study(
        MODEL, "demo/addition", "css", settings=settings, examples=20, controls=3, limit=60,
        other_tasks=("demo/sentences",),
    )  # fmt: skip
    workers = Workers(None, cluster.address, cpus=1)
    single = run_study(study, tmp_path / "single").result.as_dict()
    spread = Study(**study.__dict__ | {"model": ModelOptions(DEMO, device="cpu", workers=workers)})
    double = run_study(spread, tmp_path / "double").result.as_dict()
    for result in (single, double):
        for field in ("seconds", "forward_tokens"):
            assert result["cost"].pop(field) > 0
    # ordinary text, and what a head does on it, are read by the model itself, which workers have
    for field in ("text", "action"):
        assert single["validation"].pop(field) and double["validation"].pop(field) is None
    assert double == single
    assert outcomes(tmp_path / "double") == outcomes(tmp_path / "single")
    # the rows of a run on a cluster are those that a run without workers goes on from
    assert run_study(study, tmp_path / "double").result.cost.rows == single["cost"]["rows"]


def outcomes(folder):
    with Store(folder / "rows.sqlite") as store:
        rows = store.database.execute(
            "SELECT digest, hex(mask), example, outcome, item, responses FROM rows JOIN questions "
            "ON rows.question = questions.id ORDER BY 1, 2, 3"
        )
        return list(rows)


@pytest.mark.parametrize("kind", ["Killed", "Raising"])
def test_a_worker_that_fails_loses_and_doubles_nothing(cluster, mark, alone, kind, caplog):
    import faulty

    with engine_on(cluster, getattr(faulty, kind)) as engine:
        assert collected(engine.answer(asks())) == alone
        assert mark.exists()
        assert "it is started again" in caplog.text
        assert collected(engine.answer(asks())) == alone


def test_rows_that_kill_every_worker_end_the_run_in_a_sentence(cluster):
    import faulty

    in_turn = pytest.raises(RunFailed, match="workers in turn failed on the same rows")
    with engine_on(cluster, faulty.Hopeless) as engine, in_turn:
        list(engine.answer(asks(masks=1)))


def test_workers_without_room_are_refused(cluster):
    workers = Workers(None, cluster.address, cpus=2)
    with pytest.raises(BadOption, match="No node of the Ray cluster has the 2 CPU cores"):
        WorkerPool(workers, WorkerRecipe(MODEL.loading()), "cpu")


def test_what_the_model_cannot_read_is_known_before_a_worker_is_asked(cluster):
    long = LogLikelihood("1+" * 5000, "2")
    with replace(MODEL, workers=Workers(None, cluster.address, cpus=1)).answering() as engine:
        assert "the model's window of" in engine.misfit(long)
        assert engine.misfit(LogLikelihood("1+1=", "2")) is None


START = (
    "import os, subprocess, sys\n"
    "from caploc.workers import Workers\n"
    "from caploc.workers.ray_backend import connect_ray\n"
    "ray, _ = connect_ray(Workers(1))\n"
    "address = ray.get_runtime_context().gcs_address\n"
)
JOIN = (
    "other = os.environ | {'RAY_AUTH_TOKEN': '0' * 64}\n"
    "join = f'import ray; ray.init({address!r})'\n"
    "done = subprocess.run([sys.executable, '-c', join], env=other, capture_output=True)\n"
    "assert done.returncode and b'oken' in done.stderr, done.stderr\n"
)


@pytest.mark.parametrize("code", [START + JOIN, "import ray\n" + START], ids=["token", "notebook"])
def test_a_machine_of_its_own_is_on_loopback_and_asks_for_a_token(code):
    """The token only where Ray was not imported before, as it may be in a notebook."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", code + "print(address.split(':')[0])"],
        env=kept, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["127.0.0.1"], done.stderr


def test_ctrl_c_ends_a_run_and_its_workers_and_keeps_the_rows(tmp_path):
    command = [
        str(Path(sys.executable).with_name("caploc")), "locate", DEMO, "--task", "demo/addition",
        "--method", "one-shot", "--examples", "200", "--controls", "0", "--out", str(tmp_path),
        "--workers", "1", "--device", "cpu", "--quiet",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, start_new_session=True, env=os.environ
    )
    limit = time.monotonic() + 300
    while count_rows(tmp_path) < 500 and time.monotonic() < limit:
        time.sleep(0.2)
    children = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "What was measured is kept" in errors
    assert "Traceback" not in errors
    assert count_rows(tmp_path) >= 500
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive
    assert (
        json.loads((tmp_path / "run.json").read_text())["study"]["model"]["workers"]["count"] == 1
    )


class Killing(Silent):
    """Progress that kills a node of the cluster once some rows have come."""

    def __init__(self, cluster, node, after):
        self.cluster, self.node, self.left = cluster, node, after

    def advance(self, rows, tokens):
        self.left -= rows if tokens else 0
        if self.left <= 0 and self.node is not None:
            node, self.node = self.node, None
            self.cluster.remove_node(node, allow_graceful=False)


@pytest.fixture
def losing():
    """A cluster that may lose a node."""
    import ray

    ray.shutdown()
    made = start_cluster()
    yield made
    ray.shutdown()
    made.shutdown()


def test_studies_survive_a_node_and_find_what_each_finds_in_one_process(losing, tmp_path):
    settings = Settings(masks=20, rate=0.05, top=3)
    css = Study(MODEL, "demo/addition", "css", settings=settings, examples=20, controls=0, limit=20)
    studies = {
        "a": css,
        "b": replace(css, method="one-shot"),
        "c": replace(
            css, task="demo/subtraction"
        ),  # answered in text, where batches change nothing
    }
    alone = run_studies(studies, tmp_path / "alone").outcomes
    options = replace(MODEL, workers=Workers(None, losing.address, cpus=1))
    spread = {name: replace(study, model=options) for name, study in studies.items()}
    progress = Killing(losing, *losing.worker_nodes, after=100)
    many = run_studies(spread, tmp_path / "many", progress).outcomes
    assert progress.node is None
    for one, other in zip(alone, many, strict=True):
        assert one.failure is None and other.failure is None
        found, same = one.result.as_dict(), other.result.as_dict()
        for result in (found, same):
            for field in ("seconds", "forward_tokens"):
                assert result["cost"].pop(field) > 0
            for field in ("text", "action"):  # which only the model's own process reads
                result["validation"].pop(field)
        assert found == same
    assert outcomes(tmp_path / "many") == outcomes(tmp_path / "alone")


# Last: a process that had a Ray of its own does not go well with the cluster above.
def test_a_machine_of_its_own_listens_on_loopback_only():
    import ray

    pool = WorkerPool(Workers(1), WorkerRecipe(MODEL.loading()), "cpu")
    with DistributedEngine(pool, lambda request: None) as engine:
        assert engine.loaded.grid.size == 96
        servers = [
            process
            for process in psutil.Process().children(recursive=True)
            if process.name() in ("raylet", "gcs_server") or "ray::" in process.name()
        ]
        assert servers
        places = {
            connection.laddr.ip
            for process in servers
            for connection in process.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        }
        assert places
        assert places <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert not ray.is_initialized()
