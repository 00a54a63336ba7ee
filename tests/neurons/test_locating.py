"""Neurons located from end to end, on a planted model with its tasks in files; also resumed."""

import json
from html import unescape

import numpy as np
import pytest
from planted_models import TWO

from caploc.neurons import finding
from caploc.neurons.locating import locate
from caploc.neurons.options import NeuronStudy, Rule
from caploc.neurons.study import read_located
from doubles import Watcher

pytestmark = pytest.mark.slow  # whole studies

EXAMPLES = 60


def study(model, **changes):
    fields = {"examples": EXAMPLES, "subsets": 4, "least": 1.0, "judged": 0} | changes
    return NeuronStudy(model.options, model.tasks, **fields)


@pytest.fixture(scope="module")
def done(planted, tmp_path_factory):
    folder, counter = tmp_path_factory.mktemp("run"), Watcher()
    result, exhibits = locate(study(planted(TWO)), folder, counter, command="caploc neurons locate")
    return folder, counter, result.as_dict(), exhibits


def names(task):
    return {row["neuron"] for row in task["neurons"]}


def test_both_tasks_neurons_are_exactly_the_planted_ones(planted, done):
    truth, (folder, counter, result, _) = planted(TWO).truth, done
    tasks = [names(task) for task in result["tasks"]]
    assert tasks == [set(truth.needed["warm"]), set(truth.needed["large"])]
    assert counter.rows == 2 * EXAMPLES
    for task in result["tasks"]:
        assert task["within"]["rates"]["largest"]["mean"] == 1
        assert (task["across"]["mean"], task["separate"]) == (0, True)
    assert result["cohesion"]["cohesion"] == 1 and result["cohesion"]["separability"] == 0
    written = read_located(folder)
    grid, found = written.grid, written.sets()
    assert grid == planted(TWO).grid
    for name, (chosen, subsets) in zip(("warm", "large"), found.values(), strict=True):
        np.testing.assert_array_equal(chosen, grid.mask(truth.needed[name]))
        assert len(subsets) == 4 and (subsets == chosen).all()


def test_the_page_and_the_file_say_the_same(done):
    folder, _, result, exhibits = done
    assert json.loads((folder / "neurons.json").read_text()) == result
    page = unescape((folder / "report.html").read_text())
    for exhibit in exhibits:
        assert exhibit.title in page
    assert "mean of the diagonal 1.000" in page and "of the rest 0.000" in page
    for task in result["tasks"]:
        assert task["neurons"][0]["neuron"] in page


def without_cost(result):
    return {key: value for key, value in result.as_dict().items()
            if key not in ("command", "versions")}  # fmt: skip


def test_a_run_that_was_stopped_ends_like_one_that_was_not(
    planted, done, tmp_path, undrawn, monkeypatch
):
    """Killed twice after some stretches of examples: none of them is scored twice."""
    monkeypatch.setattr(finding, "STRETCH", 4)
    whole = Watcher()
    expected, _ = locate(study(planted(TWO)), tmp_path / "whole", whole)
    assert len(whole.stages) > 2 * 4 and whole.rows == 2 * EXAMPLES
    assert list(map(names, expected.as_dict()["tasks"])) == list(map(names, done[2]["tasks"]))
    killed = [Watcher(stages=1), Watcher(stages=5)]
    for each in killed:
        with pytest.raises(KeyboardInterrupt):
            locate(study(planted(TWO)), tmp_path / "run", each)
        assert not (tmp_path / "run" / "neurons.json").exists()
        assert each.rows > 0
    resumed, again = Watcher(), Watcher()
    result, _ = locate(study(planted(TWO)), tmp_path / "run", resumed)
    assert without_cost(result) == without_cost(expected)
    assert resumed.rows + sum(each.rows for each in killed) == 2 * EXAMPLES
    result, _ = locate(study(planted(TWO)), tmp_path / "run", again)
    assert without_cost(result) == without_cost(expected)
    assert again.rows == 0


def test_a_single_task_has_no_other_to_be_held_against(planted, tmp_path):
    model = planted(TWO)
    one = NeuronStudy(model.options, model.tasks[:1], examples=20, judged=0)
    result, exhibits = locate(one, tmp_path)
    assert result.overlaps is result.cohesion is None
    assert result.tasks[0].across is result.tasks[0].separate is None
    assert len(exhibits) == 3 and "overlap across" not in exhibits[0].columns
    assert exhibits[0].rows[0][2] == "6"


def test_no_neuron_at_all_is_said_and_written(planted, tmp_path):
    result, exhibits = locate(study(planted(TWO), rule=Rule(60.0)), tmp_path)
    assert [task.neurons for task in result.tasks] == [[], []]
    assert result.cohesion.cohesion is None
    assert [row[2] for row in exhibits[0].rows] == ["0", "0"]
    assert (tmp_path / "report.html").exists()
