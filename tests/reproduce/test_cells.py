"""Means, shares and their errors, against closed forms and against chance itself."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from labs import planted, written

from caploc.components import Head
from caploc.reproduce.laboratory import ScoredTask
from caploc.reproduce.preset import Preset
from caploc.reproduce.selection import (
    average,
    error,
    format_score,
    general,
    lost_share,
    mean,
    relative,
)

HEADS = [Head(0, 0)]


def paired(intact, cut) -> ScoredTask:
    """The score that two columns of outcomes of the same examples give."""
    count = len(intact)
    errors = [values.std(ddof=1) / count**0.5 for values in (intact, cut, intact - cut)]
    drop = intact.mean() - cut.mean()
    return ScoredTask(intact.mean(), errors[0], cut.mean(), errors[1], drop, errors[2], count, 0.0)


def test_the_error_of_a_share_is_that_of_many_repetitions():
    random = np.random.default_rng(0)
    shares, errors = [], []
    for _ in range(1500):
        intact = (random.random(200) < 0.7).astype(float)
        cut = intact * (random.random(200) < 0.4) + (1 - intact) * (random.random(200) < 0.1)
        found = relative(paired(intact, cut))
        shares.append(found.score)
        errors.append(found.stderr)
    assert np.mean(errors) == pytest.approx(np.std(shares), rel=0.06)


def test_a_relative_score_is_a_share_of_the_intact_one():
    found = relative(ScoredTask(4.0, 0.5, 1.0, 0.2, 3.0, 0.4, 12, 0.0))
    assert (found.intact, found.score, found.drop) == (1.0, 0.25, 0.75)
    assert found.intact_stderr == 0.0 and found.stderr == found.drop_stderr
    # cov = (0.25 + 0.04 - 0.16) / 2 = 0.065
    variance = 0.25**2 * 0.25 + 0.04 - 2 * 0.25 * 0.065
    assert found.stderr == pytest.approx(variance**0.5 / 4)


@given(st.floats(0.01, 10), st.floats(0, 1), st.floats(0, 10), st.floats(0, 1), st.floats(0, 2))
def test_a_share_of_a_share_is_the_share(whole, one, left, other, change):
    once = relative(ScoredTask(whole, one, left, other, whole - left, change, 9, 0.0))
    twice = relative(once)
    assert twice.score == pytest.approx(once.score)
    assert twice.stderr == pytest.approx(once.stderr, abs=1e-9)


def test_a_model_without_a_change_has_no_error_left():
    same = ScoredTask(0.5, 0.1, 0.5, 0.1, 0.0, 0.0, 25, 0.0)
    assert relative(same).score == 1.0 and relative(same).stderr == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("whole", [0.0, None])
def test_there_is_no_share_of_nothing(whole):
    found = relative(ScoredTask(whole, 0.1, 0.0, 0.0, None, None, 5, 0.0))
    assert (found.intact, found.score, found.drop, found.stderr) == (None,) * 4


def test_the_share_lost_is_in_percent():
    value = lost_share(ScoredTask(0.8, 0.02, 0.2, 0.02, 0.6, 0.02, 100, 0.0))
    assert value.number == pytest.approx(75) and str(value).startswith("75 ± ")


def test_a_mean_adds_up_variances():
    assert average([0.2, 0.4]) == pytest.approx(0.3)
    assert error([0.03, 0.04]) == pytest.approx(0.05 / 2)
    for values in ([], [0.1, None]):
        assert average(values) is None and error(values) is None


def test_the_general_score_is_the_mean_of_its_benchmarks():
    content = written()
    content["benchmark"].append({"label": "G2", "task": "demo/prose", "group": "general"})
    lab = planted(
        {"Gen": {"L0H0": 0.1}, "G2": {"L0H0": 0.3}}, preset=Preset.model_validate(content)
    )
    found = general(lab, lab.preset.models[0], HEADS)
    assert found.intact == pytest.approx(0.8) and found.drop == pytest.approx(0.2)
    assert found.drop_stderr == pytest.approx(0.01 / 2**0.5) and found.examples == 200


def test_a_relative_benchmark_enters_a_mean_as_a_share():
    content = written()
    content["benchmark"][0] |= {"relative": True}
    lab = planted({"Add": {"L0H0": 0.4}}, preset=Preset.model_validate(content))
    model, (add, sort, _) = lab.preset.models[0], lab.preset.benchmarks
    assert format_score(lab, model, add, HEADS).score == pytest.approx(0.5)
    assert mean(lab, model, [add, sort], HEADS).score == pytest.approx((0.5 + 0.8) / 2)
