"""Located neurons tuned from end to end: what is trained, what is told, and what is left alone."""

import json
from dataclasses import replace
from shutil import copytree

import numpy as np
import pytest
import torch
from small_runs import STUDY, TASKS, TUNED, counted, lasting, located, quick, tuned

from caploc.errors import UserError
from caploc.neurons import enhancing
from caploc.neurons import study as studies
from caploc.neurons.enhancing import GOLD, enhance_located, enhance_tasks
from caploc.neurons.options import FEWEST, Enhancing
from caploc.neurons.study import open_study

pytestmark = pytest.mark.slow  # whole studies

RANDOM = "random"


@pytest.fixture
def patch():
    with quick() as patched:
        yield patched


@pytest.fixture
def run(tmp_path_factory, tmp_path):
    """A finished run of `locate` in a folder of its own."""
    return copytree(located(tmp_path_factory), tmp_path / "run")


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    return tuned(tmp_path_factory)


def of(result, task, name):
    """The arms of one name."""
    return [arm for arm in result.tasks[task].arms if arm.arm == name]


def gold(arm, task):
    """An arm's change of a task's log-probability."""
    (change,) = [c for c in arm.changes if (c.task, c.measure) == (task, GOLD)]
    return change


def test_the_matrix_is_what_the_arms_say(done):
    _, result, exhibits = done
    table = exhibits[-1]
    assert table.columns == ["tuned", *TASKS] and [row[0] for row in table.rows] == list(TASKS)
    for row in table.rows:
        (own,) = of(result, row[0], "located")
        for judged, cell in zip(TASKS, row[1:], strict=True):
            change = gold(own, judged)
            assert change.change.mean == pytest.approx(change.after - change.before)
            drawn = [gold(arm, judged).change.mean for arm in of(result, row[0], RANDOM)]
            assert cell == f"{change.change.mean:z.3f} ({np.mean(drawn):z.3f})"


def test_draws_are_tuned_at_the_rate_that_is_best_for_the_first_and_the_next_lower(done):
    _, result, _ = done
    first, *others = (arm.fit for arm in of(result, TASKS[0], RANDOM))
    rates = sorted(map(float, first.losses))
    lower = [rate for rate in rates if rate < first.rate]
    assert len(rates) > 1
    assert all(sorted(map(float, fit.losses)) == [*lower[-1:], first.rate] for fit in others)
    assert all(fit.at_edge == (fit.rate in (rates[0], rates[-1])) for fit in others)


def test_a_second_call_tunes_nothing(done, patch):
    folder, result, _ = done
    calls = counted(patch, enhancing, "find_best_rate")
    again, _ = enhance_located(folder, TUNED, command="another")
    assert not calls
    assert lasting(again.as_dict()) == lasting(result.as_dict()) and again.command == "another"
    assert json.loads((folder / "enhancement.json").read_text())["command"] == "another"


def whole_after(patch):
    """For every task tuned: did each weight come back bit for bit?"""
    whole, inner = [], enhancing._enhance_task

    def outer(session, *told):
        state = session.model.model.state_dict()
        before = {name: tensor.clone() for name, tensor in state.items()}
        try:
            return inner(session, *told)
        finally:
            after = session.model.model.state_dict()
            whole.append(all(torch.equal(after[name], each) for name, each in before.items()))
            parameters = list(session.model.model.parameters())
            assert not any(each.requires_grad for each in parameters)

    patch.setattr(enhancing, "_enhance_task", outer)
    return whole


def tuned_arms(patch, stop=None):
    """Note every arm that is tuned; the one numbered `stop` is interrupted."""
    arms, inner = [], enhancing.find_best_rate

    def outer(model, trainable, given, recipe, progress, what, tried):
        arms.append(what)
        if len(arms) - 1 == stop:
            raise KeyboardInterrupt
        return inner(model, trainable, given, recipe, progress, what, tried)

    patch.setattr(enhancing, "find_best_rate", outer)
    return arms


def test_a_run_killed_between_arms_repeats_none_and_ends_like_one_that_was_not(done, run, patch):
    inner = enhancing.find_best_rate
    whole, begun = whole_after(patch), tuned_arms(patch, stop=3)
    with pytest.raises(KeyboardInterrupt):
        enhance_located(run, TUNED)
    assert whole == [True] and not (run / "enhancement.json").exists()
    patch.setattr(enhancing, "find_best_rate", inner)
    went_on = tuned_arms(patch)
    resumed, _ = enhance_located(run, TUNED)
    assert len(begun) == 4 and len(went_on) == 2 * (1 + FEWEST) - 3 and went_on[0] == begun[3]
    assert whole == [True, True, True] and lasting(resumed.as_dict()) == lasting(done[1].as_dict())


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """A finished run, opened once."""
    folder = copytree(located(tmp_path_factory), tmp_path_factory.mktemp("asked") / "run")
    with quick(), open_study(STUDY, folder, None, "") as opened:
        yield opened


@pytest.fixture
def asked(session, patch):
    """Ask a run's ledger: the tasks to be measured. What is measured is not the question here."""
    (session.folder / "ledger.jsonl").unlink(missing_ok=True)

    def measured(asked_):
        calls = []

        def pretend(session, asked, task, recall):
            recall({"arm": "located"}, lambda: calls.append(task) or {})

        patch.setattr(enhancing, "_enhance_task", pretend)
        enhance_tasks(session, asked_)
        return calls

    return measured


@pytest.mark.parametrize(
    "other",
    [
        replace(TUNED, recipe=replace(TUNED.recipe, steps=3)),
        replace(TUNED, recipe=replace(TUNED.recipe, rates=(1e-3,))),
        replace(TUNED, recipe=replace(TUNED.recipe, seed=1)),
        replace(TUNED, limit=3),
    ],
    ids=["steps", "rates", "seed", "limit"],
)
def test_whatever_changes_a_number_is_measured_anew(asked, other):
    assert asked(TUNED) == list(TASKS)
    assert asked(other) == list(TASKS)
    assert asked(TUNED) == asked(other) == []


@pytest.mark.parametrize("field", ["find_on", "judge_on"])
def test_other_examples_under_the_same_name_are_measured_anew(asked, session, patch, field):
    """As if the file that a task's examples come from was edited between two calls."""
    asked(TUNED)
    source = session.sources[TASKS[1]]
    changed = replace(source, **{field: getattr(source, field)[1:]})
    patch.setitem(session.sources, TASKS[1], changed)
    assert asked(TUNED) == list(TASKS)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            {"arms": ("located", "best")},
            "There is no arm 'best'. Known: full, located, lora, none, random",
        ),
        ({"tasks": ("demo/code",)}, "There is no task of the run 'demo/code'"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_mistakes_are_told_before_a_model_is_loaded(run, patch, wrong, said):
    patch.setattr(studies.NeuronSession, "meters", property(lambda session: pytest.fail("loaded")))
    with pytest.raises(UserError) as refused:
        enhance_located(run, Enhancing(**wrong))
    assert said in str(refused.value)
