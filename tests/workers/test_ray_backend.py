"""The pool on Ray, with a Ray that only notes what it is told; test_cluster.py has real ones."""

import sys
import time
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from caploc.errors import BadOption
from caploc.workers import Workers, ray_backend
from caploc.workers.distributed import WorkerLost, WorkerRecipe
from caploc.workers.ray_backend import Connection, WorkerPool


@dataclass
class Noting:
    """Nodes of one core each, those in `living`; actors that never say anything."""

    living: list[str]
    killed: list[object] = field(default_factory=list)

    def nodes(self):
        return [
            {
                "NodeID": node, "NodeManagerHostname": f"{node}.local", "Alive": True,
                "Resources": {"CPU": 1.0},
            }
            for node in self.living
        ]  # fmt: skip

    def put(self, recipe):
        return recipe

    def remote(self, replica):
        return self

    def options(self, **reserved):
        load = SimpleNamespace(remote=object)
        return SimpleNamespace(remote=lambda recipe: SimpleNamespace(load=load))

    def kill(self, actor):
        self.killed.append(actor)


@pytest.fixture
def ray():
    return Noting(["a", "b"])


@pytest.fixture
def pool(ray, monkeypatch):
    """A pool that has started a worker on each node; they load."""
    monkeypatch.setattr(ray_backend, "connect_ray", lambda workers: Connection(ray, owned=False))
    made = WorkerPool(Workers(None, "somewhere", cpus=1), WorkerRecipe({}))
    made.refresh()
    assert list(made.workers) == [1, 2]
    return made


def loaded(pool, **nodes):
    """Have workers load, by the names of their nodes."""
    for node, worker in nodes.items():
        pool.workers[worker].node = node
        pool.calls = {call: number for call, number in pool.calls.items() if number != worker}


def test_where_nothing_is_asked_time_is_waited_out(pool):
    loaded(pool, a=1, b=2)
    began = time.monotonic()
    assert pool.events(0.05) == []
    assert time.monotonic() - began >= 0.05


def test_a_worker_that_was_asked_nothing_is_missed_when_its_node_dies(pool, ray):
    loaded(pool, a=1, b=2)
    actor = pool.workers[2].actor
    ray.living = ["a"]
    pool.refresh()
    assert pool.events(0) == [WorkerLost(2, "its node died")]
    assert list(pool.workers) == [1]
    assert ray.killed == [actor]
    pool.refresh()
    assert pool.events(0) == []
    assert list(pool.workers) == [1]


def test_a_worker_that_ray_reported_first_is_lost_once(pool, ray):
    loaded(pool, a=1, b=2)
    ray.living = ["a"]
    pool.refresh()
    pool.dismiss(2)
    assert pool.events(0) == []


def test_the_dead_do_not_take_the_place_of_those_who_load(pool, ray):
    loaded(pool, a=1, b=2)
    ray.living = ["a", "c"]
    pool.refresh()  # the node died and another one joined between two looks
    assert list(pool.workers) == [1, 2, 3]
    pool.refresh()
    assert pool.events(0) == [WorkerLost(2, "its node died")]
    assert list(pool.workers) == [1, 3]
    assert pool.workers[3].node is None


def test_waiting_workers_without_a_place_are_let_go(pool, ray):
    loaded(pool, a=1)
    ray.living = ["a"]
    pool.refresh()
    assert list(pool.workers) == [1]
    assert pool.events(0) == []


def test_a_machine_is_named_by_its_node(ray):
    connection = Connection(ray, owned=False)
    assert connection.name("b") == "b.local"
    ray.living = ["a"]
    assert connection.name("b") == "b"


def test_a_cluster_that_does_not_start_is_one_sentence(monkeypatch, tmp_path):
    def init(**told):
        raise Exception("The current node timed out during startup. This could happen because ...")

    constants = SimpleNamespace(ENABLE_RAY_CLUSTER=True)
    private = SimpleNamespace(worker=SimpleNamespace(), ray_constants=constants)
    never = SimpleNamespace(init=init, is_initialized=lambda: False, _private=private)
    monkeypatch.setitem(sys.modules, "ray", never)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_worker_niceness"):
        monkeypatch.setenv(name, "0")
    with pytest.raises(BadOption, match=r"timed out during startup.*may need another try"):
        ray_backend.connect_ray(Workers(1))
