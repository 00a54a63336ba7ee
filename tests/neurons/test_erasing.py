"""Neurons erased from end to end: the folder of a finished run in, losses out; also resumed."""

import json
import shutil
from dataclasses import replace

import pytest
from planted_models import TWO

from caploc.errors import UnknownName, UserError
from caploc.neurons.erasure import erase
from caploc.neurons.locating import locate
from caploc.neurons.options import Erasing, NeuronStudy, Rule
from caploc.neurons.study import NeuronSession
from doubles import Watcher

pytestmark = pytest.mark.slow  # whole studies

LIMIT = 20
ASKED = Erasing(limit=LIMIT, draws=5)


@pytest.fixture(scope="module")
def located(planted, tmp_path_factory):
    folder, model = tmp_path_factory.mktemp("located"), planted(TWO)
    locate(NeuronStudy(model.options, model.tasks, examples=40, judged=0), folder)
    return folder


@pytest.fixture
def run(located, tmp_path):
    """A finished run in a folder of its own."""
    return lambda name="run": shutil.copytree(located, tmp_path / name)


@pytest.fixture(scope="module")
def done(located, tmp_path_factory):
    folder = shutil.copytree(located, tmp_path_factory.mktemp("done") / "run")
    result, exhibits = erase(folder, ASKED, command="caploc neurons erase")
    return folder, result.as_dict(), exhibits


def test_each_set_takes_its_own_task_and_no_other(done):
    folder, result, _ = done
    assert [task["neurons"] for task in result["tasks"]] == [6, 6]
    for task in result["tasks"]:
        located = task["own"]["arms"][0]
        assert (task["own"]["intact"]["score"], located["score"]) == (1, 0)
        assert task["own"]["beats_every_layer_matched_draw"] is True
        assert task["own"]["beats_every_uniform_draw"] is True
        (other,) = task["others"]
        assert other["judged"] != task["task"]
        assert other["arms"][0]["score"] == other["intact"]["score"] == 1
        assert other["beats_every_layer_matched_draw"] is False
    assert json.loads((folder / "erasure.json").read_text()) == result
    # by both outcomes, of each task: intact, 11 arms of its own, and located beside random neurons
    # of the other task
    assert result["cost"]["rows"] == 2 * LIMIT * 2 * (1 + 11 + 6)


def test_erasing_scores_nothing_anew(located, done):
    """Copying a folder keeps the times of its files."""
    times = [
        {path.name: path.stat().st_mtime_ns for path in (folder / "scores").iterdir()}
        for folder in (located, done[0])
    ]
    assert times[0] != {} and times[0] == times[1]


def test_a_run_that_was_stopped_ends_like_one_that_was_not(done, run, undrawn):
    folder = run()
    killed = Watcher(most=300)
    with pytest.raises(KeyboardInterrupt):
        erase(folder, ASKED, progress=killed)
    assert not (folder / "erasure.json").exists()
    resumed = Watcher()
    result, _ = erase(folder, ASKED, progress=resumed)
    expected, told = done[1], result.as_dict()
    assert told["tasks"] == expected["tasks"]
    assert told["cost"]["rows"] == expected["cost"]["rows"]
    # the answers that were out when it was stopped were stored before the stop was called
    assert resumed.measured + killed.measured == told["cost"]["rows"]
    assert resumed.measured > 0


def test_other_tasks_are_judged_too(planted, run, tmp_path, undrawn):
    extra = str(relabelled(planted, tmp_path))
    asked = Erasing(limit=10, draws=5)
    result, _ = erase(run(), replace(asked, others=(planted(TWO).tasks[0], extra)))
    result = result.as_dict()
    judged = [[other["judged"] for other in task["others"]] for task in result["tasks"]]
    warm, large = planted(TWO).tasks
    assert judged == [[large, extra], [warm, extra]]
    by_warm, by_large = (task["others"][1]["arms"][0]["score"] for task in result["tasks"])
    assert (by_warm, by_large) == (0, 1)  # it asks what "warm" asks


def relabelled(planted, folder):
    """The task `warm` under another name."""
    text = (planted(TWO).folder / "warm.yaml").read_text()
    (folder / "other.yaml").write_text(text.replace("task: warm", "task: other"))
    return folder / "other.yaml"


def test_an_unknown_task_is_refused_before_anything_is_measured(run):
    counter = Watcher()
    with pytest.raises(UnknownName, match="Did you mean 'demo/addition'"):
        erase(run(), replace(ASKED, others=("demo/adition",)), counter)
    assert counter.stages == []


def test_no_located_neuron_is_one_sentence(planted, tmp_path, undrawn):
    model = planted(TWO)
    locate(NeuronStudy(model.options, model.tasks, rule=Rule(60.0), examples=8, judged=0), tmp_path)
    with pytest.raises(UserError) as refused:
        erase(tmp_path, ASKED)
    warm, large = model.tasks
    assert str(refused.value) == (
        f"No neuron is located for {warm}, {large}, so there is none to erase; locate again with a "
        "lower --sigma, a --share, or more examples."
    )


def test_neurons_of_ones_own_choice_are_erased_in_place_of_the_located(planted, run, undrawn):
    model, (warm, large) = planted(TWO), planted(TWO).tasks
    chosen = tuple(model.truth.needed["large"])
    asked = Erasing(limit=10, draws=5, tasks=(warm,), neurons=chosen)
    result = erase(run(), asked)[0].as_dict()
    (task,) = result["tasks"]  # the other task's own are not erased
    assert (task["task"], task["neurons"]) == (warm, 6) and result["neurons"] == list(chosen)
    assert task["own"]["arms"][0]["score"] == 1
    (other,) = task["others"]
    assert (other["judged"], other["arms"][0]["score"]) == (large, 0)


def test_a_neuron_that_the_model_lacks_is_refused_before_it_is_loaded(run, monkeypatch):
    monkeypatch.setattr(NeuronSession, "meters", property(lambda session: pytest.fail("loaded")))
    with pytest.raises(UnknownName, match="L9N0"):
        erase(run(), Erasing(neurons=("L9N0",)))
