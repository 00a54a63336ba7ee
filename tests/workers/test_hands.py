"""The crew on Ray, with a Ray that only notes what it is told; test_cluster.py has real ones."""

import time
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from caploc.workers import Workers, hands
from caploc.workers.connection import Connection
from caploc.workers.crew import Lost
from caploc.workers.hands import RayCrew
from caploc.workers.replica import Recipe


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
def crew(ray, monkeypatch):
    """A crew that has started a worker on each node; they load."""
    monkeypatch.setattr(hands, "connect", lambda workers: Connection(ray, owned=False))
    made = RayCrew(Workers(None, "somewhere", cpus=1), Recipe({}))
    made.refresh()
    assert list(made.hands) == [1, 2]
    return made


def loaded(crew, **nodes):
    """Have workers load, by the names of their nodes."""
    for node, worker in nodes.items():
        crew.hands[worker].node = node
        crew.calls = {call: number for call, number in crew.calls.items() if number != worker}


def test_where_nothing_is_asked_time_is_waited_out(crew):
    loaded(crew, a=1, b=2)
    began = time.monotonic()
    assert crew.events(0.05) == []
    assert time.monotonic() - began >= 0.05


def test_a_worker_that_was_asked_nothing_is_missed_when_its_node_dies(crew, ray):
    loaded(crew, a=1, b=2)
    actor = crew.hands[2].actor
    ray.living = ["a"]
    crew.refresh()
    assert crew.events(0) == [Lost(2, "its node died")]
    assert list(crew.hands) == [1]
    assert ray.killed == [actor]
    crew.refresh()
    assert crew.events(0) == []
    assert list(crew.hands) == [1]


def test_a_worker_that_ray_reported_first_is_lost_once(crew, ray):
    loaded(crew, a=1, b=2)
    ray.living = ["a"]
    crew.refresh()
    crew.dismiss(2)
    assert crew.events(0) == []


def test_the_dead_do_not_take_the_place_of_those_who_load(crew, ray):
    loaded(crew, a=1, b=2)
    ray.living = ["a", "c"]
    crew.refresh()  # the node died and another one joined between two looks
    assert list(crew.hands) == [1, 2, 3]
    crew.refresh()
    assert crew.events(0) == [Lost(2, "its node died")]
    assert list(crew.hands) == [1, 3]
    assert crew.hands[3].loading


def test_waiting_workers_without_a_place_are_let_go(crew, ray):
    loaded(crew, a=1)
    ray.living = ["a"]
    crew.refresh()
    assert list(crew.hands) == [1]
    assert crew.events(0) == []


def test_a_machine_is_named_by_its_node(ray):
    connection = Connection(ray, owned=False)
    assert connection.name("b") == "b.local"
    ray.living = ["a"]
    assert connection.name("b") == "b"
