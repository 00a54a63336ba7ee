"""Heads and neurons joined by the command: two finished runs of one model in, one page out."""

import json
from shutil import copytree

import pytest
from small_runs import DEMO, TASKS, Rows, lasting, located, quick

from caploc.errors import BadData, BadOption, UserError
from caploc.neurons import joining
from caploc.neurons.conditions import Joining
from caploc.neurons.joining import join_runs
from caploc.progress import Silent
from caploc.study import Study
from caploc.sweep import locate_all

pytestmark = pytest.mark.slow  # whole studies

ASKED = Joining(limit=4)


@pytest.fixture(scope="module")
def heads(tmp_path_factory):
    """A finished run that located heads of addition."""
    folder = tmp_path_factory.mktemp("heads")
    study = Study(DEMO, TASKS[0], method="one-shot", examples=4, limit=20, controls=0)
    locate_all([study], folder, Silent())
    assert json.loads((folder / "result.json").read_text())["top"]
    return folder


@pytest.fixture
def patch():
    with quick(joining) as patched:
        yield patched


@pytest.fixture(scope="module")
def done(tmp_path_factory, heads):
    folder = copytree(located(tmp_path_factory), tmp_path_factory.mktemp("joined") / "run")
    with quick(joining):
        return folder, *join_runs(folder, [heads], ASKED, command="caploc neurons together")


def test_heads_and_neurons_are_those_of_the_two_runs(done, heads):
    folder, result, _ = done
    (told,) = result["tasks"]
    neurons = json.loads((folder / "neurons.json").read_text())["tasks"][0]
    assert told["task"] == neurons["task"] == TASKS[0] and told["examples"] == 4
    assert list(told["heads"]) == json.loads((heads / "result.json").read_text())["top"]
    assert set(told["neurons"]) == {row["neuron"] for row in neurons["neurons"]}
    assert json.loads((folder / "together.json").read_text()) == json.loads(json.dumps(result))


def test_beyond_the_sum_is_both_less_each_alone(done):
    _, result, _ = done
    for pairing in result["tasks"][0]["pairings"]:
        lost = {name: pairing["logprob"][name]["mean"] for name in ("heads", "neurons", "both")}
        beyond = pairing["logprob"]["interaction"]["mean"]
        assert beyond == pytest.approx(lost["both"] - lost["heads"] - lost["neurons"], abs=1e-6)
    arms = [pairing["arm"] for pairing in result["tasks"][0]["pairings"]]
    assert arms[0] == "located" and arms.count("random neurons") == 5


def test_the_tables_and_the_headline_are_what_the_file_says(done):
    _, result, exhibits = done
    tables = {each.name: each for each in exhibits}
    assert list(tables) == ["together-layers", "together-losses", "together-demo-addition"]
    (told,) = result["tasks"]
    table = tables["together-losses"]
    losses = dict(zip(table.columns, table.rows[0], strict=True))
    located_ = told["pairings"][0]
    assert losses["score intact"].number == pytest.approx(told["intact"])
    assert losses["score without both"].number == pytest.approx(located_["scores"]["both"])
    assert losses["lost without heads"].startswith(f"{located_['logprob']['heads']['mean']:z.3f} [")
    assert losses["beyond the sum"].startswith(
        f"{located_['logprob']['interaction']['mean']:z.3f} ["
    )
    (layers,) = tables["together-layers"].rows
    assert layers[1] == " ".join(told["heads"]) and layers[2] == str(len(told["neurons"]))
    shares = tables["together-demo-addition"].rows
    assert len(shares) == 6
    for column in (1, 2):
        assert sum(row[column].number for row in shares) == pytest.approx(1)
    for exhibit in exhibits:
        assert all(len(row) == len(exhibit.columns) for row in exhibit.rows)
        assert len(set(exhibit.columns)) == len(exhibit.columns)
    assert f"{TASKS[0]}: {told['verdict']['sentence']}" in table.notes


def test_a_second_call_measures_nothing(done, heads, patch):
    folder, result, _ = done
    rows = Rows()
    again, _ = join_runs(folder, [heads], ASKED, rows, command="another")
    assert rows.measured == 0 and lasting(again) == lasting(result)


@pytest.fixture
def run(done):
    return done[0]


def changed(heads, place, name, change):
    """A copy of a run with something in a file of it changed."""
    folder = copytree(heads, place)
    told = json.loads((folder / name).read_text())
    change(told)
    (folder / name).write_text(json.dumps(told))
    return folder


def test_heads_of_another_model_are_refused(run, heads, tmp_path, patch):
    def other(told):
        told["model"] |= {"fingerprint": "0" * 16, "name": "other"}

    with pytest.raises(BadData, match="are of the model other, whose weights are not those of"):
        join_runs(run, [changed(heads, tmp_path / "other", "result.json", other)], ASKED)


def test_heads_of_a_task_without_neurons_are_refused_unopened(run, heads, tmp_path, patch):
    patch.setattr(joining, "opened", lambda *told: pytest.fail("the run was opened"))
    folder = changed(
        heads, tmp_path / "code", "run.json", lambda told: told["study"].update(task="demo/code")
    )
    with pytest.raises(BadOption) as refused:
        join_runs(run, [heads, folder], ASKED)
    assert str(refused.value) == (
        f"The run in {folder} is of demo/code, of which {run} has no neurons; it has those of "
        "demo/addition, demo/elements."
    )


@pytest.mark.parametrize(
    ("asked", "said"),
    [(Joining(draws=4), "--draws must be 5 or more; got 4."),
     (Joining(limit=1), "--limit must be 2 or more; got 1.")],
    ids=["draws", "limit"],
)  # fmt: skip
def test_settings_that_mean_nothing_are_refused_unopened(run, heads, patch, asked, said):
    patch.setattr(joining, "opened", lambda *told: pytest.fail("the run was opened"))
    with pytest.raises(BadOption, match=said):
        join_runs(run, [heads], asked)


def test_folders_that_hold_no_run_are_one_sentence(run, heads, tmp_path):
    with pytest.raises(BadOption, match="--heads names the folder of a finished `caploc locate`"):
        join_runs(run, [], ASKED)
    with pytest.raises(UserError, match="holds no result.json"):
        join_runs(run, [tmp_path], ASKED)
    with pytest.raises(UserError, match="holds no run of `caploc neurons locate`"):
        join_runs(heads, [heads], ASKED)
