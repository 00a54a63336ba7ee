"""Other scores and controls, on neurons of the demo model."""

from shutil import copytree

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr
from small_runs import STUDY, TASKS, Rows, counted, lasting, located, quick, remembered

from caploc.engine.encoding import Span
from caploc.errors import UnknownName
from caploc.neurons import finding
from caploc.neurons.controls import (
    EXCHANGED,
    OWN,
    PLAIN,
    ControlledRun,
    exchange_answers,
    measure_controls,
)
from caploc.neurons.options import Controlling
from caploc.neurons.sets import overlap_rates
from caploc.neurons.study import open_study
from caploc.stats.threshold import above, best

ASKED = Controlling(("activation", "logit"), "demo/prose", (2.0, 6.0), draws=5, limit=4)


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    folder = copytree(located(tmp_path_factory), tmp_path_factory.mktemp("compared") / "run")
    with quick(), open_study(STUDY, folder, None, "") as opened:
        yield opened


@pytest.fixture(scope="module")
def controlled(tmp_path_factory):
    """The controls of a finished run, as the command measures them: folder, result, exhibits."""
    folder = copytree(located(tmp_path_factory), tmp_path_factory.mktemp("controls") / "run")
    with quick():
        result, exhibits = measure_controls(folder, ASKED, command="caploc neurons controls")
        return folder, result.as_dict(), exhibits


def prompt(span):
    """What is read before the answer."""
    return span.inputs[: len(span.inputs) - len(span.continuation) + 1]


@torch.no_grad()
def handed(model, span):
    """What every neuron hands on at every position, by hooks of this test's own."""
    seen = []
    hooks = [
        layer.mlp.down_proj.register_forward_pre_hook(lambda _, given: seen.append(given[0][0]))
        for layer in model.model.model.layers
    ]
    model.model(torch.tensor([span.inputs]))
    for hook in hooks:
        hook.remove()
    return torch.cat(seen, dim=1).numpy()


ANSWERS = st.lists(
    st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple), min_size=2, max_size=12
)


@given(answers=ANSWERS)
def test_every_answer_is_used_once_and_no_prompt_keeps_its_own(answers):
    spans = [Span((9, n, *answer[:-1]), answer) for n, answer in enumerate(answers)]
    mixed = exchange_answers(spans)
    assert sorted(span.continuation for span in mixed) == sorted(answers)
    assert [prompt(span) for span in mixed] == [(9, n) for n in range(len(answers))]
    assert all(span.inputs == (*prompt(span), *span.continuation[:-1]) for span in mixed)
    kept = sum(one.continuation == own for one, own in zip(mixed, answers, strict=True))
    most = max(map(answers.count, answers))
    # of n prompts with one answer in common, n less all other prompts have to keep it
    assert kept == max(0, 2 * most - len(answers))


def test_answers_that_are_letters_are_other_letters(session):
    """With four letters a quarter of answers exchanged blindly would still be right."""
    many = remembered(STUDY.model, TASKS[1], STUDY.options, 60, 0)
    spans = many.spans(session.wording)
    assert len({span.continuation for span in spans}) <= 4 < len(spans)
    for one, other in zip(spans, exchange_answers(spans), strict=True):
        assert one.continuation != other.continuation and prompt(one) == prompt(other)


def test_answers_cannot_be_exchanged_with_nobody():
    with pytest.raises(ValueError, match="2 items or more"):
        exchange_answers([Span((1, 2), (3,))])


def arm_of(result, task, control):
    return next(arm for arm in result["arms"] if (arm["task"], arm["control"]) == (task, control))


def test_every_control_is_as_many_neurons_and_overlaps_as_sets_do(session, controlled):
    _, result, _ = controlled
    names = [OWN, EXCHANGED, PLAIN, "by activation", "by logit"]
    plain = remembered(STUDY.model, "demo/prose", STUDY.options, STUDY.examples, STUDY.seed)
    for task in TASKS:
        assert [arm["control"] for arm in result["arms"] if arm["task"] == task] == names
        own, spans = session.found(task), session.spans(task)
        texts = plain.spans(session.wording)
        means = {
            EXCHANGED: session.finder().stretch("", exchange_answers(spans)[:6]).merged(
                session.finder().stretch("", exchange_answers(spans)[6:])).mean,
            PLAIN: session.locate(PLAIN, texts).moments.mean,
            "by activation": np.mean(
                [np.abs(handed(session.neurons, span)).mean(axis=0) for span in spans],
                axis=0, dtype=float),
        }  # fmt: skip
        taken = np.zeros(own.located.shape, dtype=bool)
        for name, mean in means.items():
            arm, chosen = arm_of(result, task, name), best(mean, float(own.located.mean()))
            taken |= chosen
            assert arm["neurons"] == own.located.sum() == chosen.sum()
            assert arm["shared"] == pytest.approx((own.located & chosen).sum() / chosen.sum())
            expected = spearmanr(own.moments.mean, mean).statistic
            assert arm["spearman"] == pytest.approx(expected, abs=1e-4)
        assert arm_of(result, task, OWN)["shared"] == 1
        (left,) = [row for row in result["specific"] if row["task"] == task]
        assert left["count"] <= (own.located & ~taken).sum() <= left["located"]
        assert left["share"] == left["count"] / left["located"]


def test_what_each_set_costs_is_told_beside_random_neurons(controlled):
    folder, result, (table, left, sigmas) = controlled
    assert (folder / "controls.json").exists()
    assert len(table.rows) == 10 and len(left.rows) == 2 and len(sigmas.rows) == 4
    assert [row[0] for row in table.rows][:3] == [
        f"{TASKS[0]}, {name}" for name in (OWN, EXCHANGED, PLAIN)
    ]
    for arm in result["arms"]:
        assert arm["at_random"]["low"] <= arm["at_random"]["mean"] <= arm["at_random"]["high"]
    own = arm_of(result, TASKS[0], OWN)
    assert own["logprob"]["mean"] > own["at_random"]["high"]


def test_a_sigma_is_told_with_its_overlaps_and_its_cost(session, controlled):
    _, result, _ = controlled
    rows = {(row["task"], row["sigma"]): row for row in result["sigmas"]}
    assert set(rows) == {(task, sigma) for task in TASKS for sigma in ASKED.sigmas}
    for (task, sigma), row in rows.items():
        sets = [above(part.mean, sigma) for part in session.found(task).parts]
        assert row["neurons"] == (sets[0] | sets[1]).sum()  # in half of two subsets
        shared = overlap_rates(*sets).largest
        assert row["within"]["mean"] == (None if shared is None else pytest.approx(shared))
        assert (row["logprob"] is None) == (row["neurons"] == 0)
        assert row["across"] is not None


def test_nothing_is_scored_or_erased_twice(controlled):
    folder, result, _ = controlled
    rows = Rows()
    with quick() as patch:
        scored = counted(patch, finding, "accumulate")
        again, _ = measure_controls(folder, ASKED, rows, command="again")
    assert not scored and rows.measured == 0
    assert lasting(again.as_dict()) == lasting(result)


def test_texts_may_be_a_file(session, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("\n\n".join(["the cat sat", "a dog ran", "it is red", "we go on"]))
    found = ControlledRun(session, Controlling(plain=str(texts))).plain_text
    assert found.examples == 4 and found.moments.items == 4


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (Controlling(plain="demo/pros"), "'demo/pros'"),
        (Controlling(tasks=("demo/code",)), "There is no task of the run 'demo/code'"),
    ],
)
def test_mistakes_are_told_before_anything_is_measured(controlled, asked, said):
    with pytest.raises(UnknownName, match=said):
        measure_controls(controlled[0], asked)
