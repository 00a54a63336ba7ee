"""Other scores, other numbers of points and controls, on neurons of the demo model."""

from shutil import copytree

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr
from small_runs import STUDY, TASKS, Rows, counted, located, quick, remembered

from caploc.engine.encoding import Span
from caploc.neurons import finding
from caploc.neurons.attribution import Attribution
from caploc.neurons.study import open_study
from caploc.reproduce.cnl import (
    POINTS,
    SHARE,
    compare_scores,
    controls_exhibit,
    exchange_answers,
    points_exhibit,
    scores_exhibit,
)
from caploc.stats.sets import overlap_rates, rank_correlation
from caploc.stats.threshold import best

METHODS = ("activation", "logit")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder = copytree(located(tmp_path_factory), tmp_path_factory.mktemp("compared") / "run")
    with quick(), open_study(STUDY, folder, None, "") as opened_lab:
        yield opened_lab


@pytest.fixture(scope="module")
def ways(lab):
    return compare_scores(lab, TASKS[:1], METHODS, 4)


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


def test_answers_that_are_letters_are_other_letters(lab):
    """With four letters a quarter of answers exchanged blindly would still be right."""
    many = remembered(STUDY.model, TASKS[1], STUDY.options, 60, 0)
    spans = many.spans(lab.bench.wording)
    assert len({span.continuation for span in spans}) <= 4 < len(spans)
    for one, other in zip(spans, exchange_answers(spans), strict=True):
        assert one.continuation != other.continuation and prompt(one) == prompt(other)


def test_answers_cannot_be_exchanged_with_nobody():
    with pytest.raises(ValueError, match="2 items or more"):
        exchange_answers([Span((1, 2), (3,))])


def test_sets_compared_are_the_best_percent_of_all_neurons(lab, ways):
    size = lab.bench.neurons.grid.size
    for way in ways:
        chosen = way.found.located
        assert chosen.sum() == round(SHARE * size) == 23
        mean = way.found.moments.mean
        assert mean[chosen].min() >= mean[~chosen].max()


def test_the_studys_own_score_is_itself_and_the_baselines_are_others(lab, ways):
    assert [way.method for way in ways] == ["gradient", *METHODS]
    own, activation, logit = ways
    assert own.same_best == own.spearman == 1
    np.testing.assert_array_equal(own.found.moments.mean, lab.found(TASKS[0]).moments.mean)
    for other in (activation, logit):
        assert other.same_best < 1 and other.spearman < 0.99
        expected = spearmanr(own.found.moments.mean, other.found.moments.mean).statistic
        assert other.spearman == pytest.approx(expected)
        shared = own.found.located & other.found.located
        assert other.same_best == pytest.approx(shared.sum() / 23)
    assert (activation.found.moments.mean >= 0).all()  # sizes


def test_the_activation_baseline_is_the_size_of_activations(lab, ways):
    spans = lab.source(TASKS[0]).spans(lab.bench.wording)
    model = lab.bench.neurons
    sizes = [np.abs(handed(model, span)).mean(axis=0) for span in spans]
    np.testing.assert_allclose(ways[1].found.moments.mean, np.mean(sizes, axis=0), rtol=1e-4)


def test_what_each_set_costs_is_told_beside_random_neurons(ways):
    table = scores_exhibit(ways)
    assert [row[0] for row in table.rows] == [f"{TASKS[0]}, {way.method}" for way in ways]
    for row, way in zip(table.rows, ways, strict=True):
        assert len(row) == len(table.columns)
        assert (row[4].number, row[5].number) == (way.lost, way.lost_at_random)
        assert np.isfinite(way.lost) and np.isfinite(way.lost_at_random)
    assert ways[0].lost > ways[0].lost_at_random


def test_nothing_is_scored_or_erased_twice(lab, ways):
    rows = Rows()
    lab.progress, before = rows, lab.progress
    with quick() as patch:
        scored = counted(patch, finding, "accumulate")
        again = compare_scores(lab, TASKS[:1], METHODS, 4)
    lab.progress = before
    assert not scored and rows.measured == 0
    assert [each.lost for each in again] == [each.lost for each in ways]


def test_more_points_come_nearer_to_the_most(lab):
    table = points_exhibit(lab, TASKS[:1], 3)
    names = [row[0].rpartition(", ")[2] for row in table.rows]
    assert names == [*(f"S = {steps}" for steps in POINTS), "gradient"]
    found = {name: row[1].number for name, row in zip(names, table.rows, strict=True)}
    assert found["S = 40"] == pytest.approx(1)
    assert 0.99 < found["S = 5"] <= found["S = 19"] <= 1
    assert found["gradient"] < found["S = 5"]
    spans = lab.source(TASKS[0]).spans(lab.bench.wording)[:3]
    means = [
        lab.finder(Attribution("integrated", steps=steps)).stretch("", spans).mean
        for steps in (5, 40)
    ]
    shared = overlap_rates(best(means[1], SHARE), best(means[0], SHARE)).largest
    assert table.rows[0][2].number == pytest.approx(shared)


def test_controls_take_their_neurons_out(lab):
    table = controls_exhibit(lab, TASKS, "demo/prose")
    with_texts = [row[3].number for row in table.rows]
    assert all(0 <= share <= 1 for share in with_texts)
    for row, task in zip(table.rows, TASKS, strict=True):
        spans = lab.source(task).spans(lab.bench.wording)
        own = lab.found(task).located
        others = [
            lab.study.rule.choose(lab.finder().stretch("", each), lab.bench.neurons.grid)
            for each in (exchange_answers(spans), lab.source("demo/prose").spans(lab.bench.wording))
        ]
        assert (row[0], row[1]) == (task, str(own.sum()))
        for cell, other in zip(row[2:4], others, strict=True):
            assert cell.number == pytest.approx((own & other).sum() / own.sum())
        left = (own & ~others[0] & ~others[1]).sum()
        assert row[4] == str(left) and row[5].number == pytest.approx(left / own.sum())


def test_without_plain_text_its_column_is_a_dash(lab):
    table = controls_exhibit(lab, TASKS[:1], None)
    assert table.rows[0][3] == "–" and "Plain text: not asked." in table.notes[0]


def test_a_constant_score_has_no_rank_spearman():
    flat, rising = np.ones(5), np.arange(5.0)
    assert rank_correlation(flat, rising) is rank_correlation(rising, flat) is None
    assert rank_correlation(rising, -rising) == pytest.approx(-1)
    assert rank_correlation(rising, rising**3) == pytest.approx(1)
