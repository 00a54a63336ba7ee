import pytest

from caploc.cli.options import WorkerGroup
from caploc.declaration import ModelOptions
from caploc.errors import BadOption
from caploc.folder import question
from caploc.workers import Workers
from caploc.workers.ray_backend import Reservation, check_workers
from worlds import DEMO


@pytest.mark.parametrize(
    ("workers", "said"),
    [
        (Workers(0), "--workers must be 1 or more, or ray; got 0"),
        (Workers(100_000), "--workers 100000 with 1 cores each: this machine has"),
        (Workers(1, cpus=0), "--cpus-per-worker must be 1 or more; got 0"),
        (Workers(1, gpus=1.5), "--gpus-per-worker is a whole number, or a share"),
        (Workers(1, gpus=float("inf")), "a share between 0 and 1; got inf"),
        (Workers(1, gpus=float("nan")), "a share between 0 and 1; got nan"),
        (Workers(None, "ray://head:10001"), "give the address of its head"),
        (Workers(None, "nowhere"), "--ray-address takes HOST:PORT"),
        (Workers(None, "head:\u00b2"), "--ray-address takes HOST:PORT"),
        (Workers(None, "127.0.0.1:65536"), "--ray-address takes HOST:PORT"),
        (Workers(None, "a..b:6379"), "There is no Ray cluster at a..b:6379"),
        (Workers(None, "127.0.0.1:1"), "There is no Ray cluster at 127.0.0.1:1"),
    ],
)
def test_mistakes_are_told_before_anything_is_started(workers, said):
    pytest.importorskip("ray")
    with pytest.raises(BadOption, match=said):
        ModelOptions(DEMO, device="cpu", workers=workers).check()


def test_a_device_by_number_is_refused_where_ray_hands_them_out():
    pytest.importorskip("ray")
    with pytest.raises(BadOption, match="Ray gives every worker its own"):
        check_workers(Workers(1), "cuda:1")


def test_ray_that_is_not_there_is_told_with_what_to_install(monkeypatch):
    monkeypatch.setattr("caploc.workers.ray_backend.find_spec", lambda name: None)
    with pytest.raises(BadOption, match=r"pip install 'caploc\[ray\]'"):
        check_workers(Workers(2))


def test_the_command_line_says_how_many_and_where(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert WorkerGroup(None, None, None, None).parse() is None
    assert WorkerGroup("3", None, 1.0, 2).parse() == Workers(3, cpus=2)
    assert WorkerGroup("ray", None, 1.0, None).parse().place is None
    assert WorkerGroup("ray", "head:6379", 1.0, None).parse().place == "head:6379"
    with pytest.raises(BadOption, match="got 'many'"):
        WorkerGroup("many", None, 1.0, None).parse()
    assert WorkerGroup("ray", None, None, None).parse() == Workers(None, gpus=1.0)
    assert WorkerGroup("ray", None, 0.5, None).parse().gpus == 0.5
    with pytest.raises(BadOption, match="--gpus-per-worker 0.5 says how workers run; add --worke"):
        WorkerGroup(None, None, 0.5, None).parse()
    with pytest.raises(BadOption, match="add --workers"):
        WorkerGroup(None, "head:6379", None, None).parse()


def test_rays_own_variable_names_the_cluster_but_not_for_processes_of_this_machine(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert Workers().place == "head:6379"
    assert Workers(2).place is None
    assert Workers(2, "other:6379").place == "other:6379"


def test_a_run_may_go_on_with_other_workers():
    alone = {"model": {"name": "demo", "workers": None}, "task": "t"}
    earlier = {"model": {"name": "demo"}, "task": "t"}
    four = {"model": {"name": "demo", "workers": {"count": 4, "address": None}}, "task": "t"}
    assert question(alone) == question(four) == question(earlier)
    assert question(four) != question({"model": {"name": "other"}, "task": "t"})


@pytest.mark.parametrize(
    ("need", "node", "workers"),
    [
        (Reservation(2, 0.0), {"CPU": 7.0}, 3),
        (Reservation(1, 1.0), {"CPU": 64.0, "GPU": 8.0}, 8),
        (Reservation(1, 2.0), {"CPU": 64.0, "GPU": 7.0}, 3),
        (Reservation(1, 0.4), {"CPU": 64.0, "GPU": 2.0}, 4),  # two to a card: none on two halves
        (Reservation(1, 0.1), {"CPU": 64.0, "GPU": 1.0}, 10),
        (Reservation(16, 1.0), {"CPU": 32.0, "GPU": 8.0}, 2),
        (Reservation(1, 1.0), {"CPU": 8.0}, 0),
        (Reservation(1, 0.0), {}, 0),
    ],
)
def test_a_node_has_room_for_whole_workers(need, node, workers):
    assert need.fits(node) == workers
