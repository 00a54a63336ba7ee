"""How much a choice flatters itself, against scipy, and where the truth is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from caploc.search.published import excess, mean_loss

SOME = st.lists(st.sampled_from([-1.0, 0.0, 0.5, 1.0]), min_size=3, max_size=30)


@given(SOME, SOME)
def test_the_interval_is_welchs(found, fresh):
    found, fresh = (np.array([*values, 0.3]) for values in (found, fresh))  # never all equal
    told = excess(found, fresh)
    test = stats.ttest_ind(found, fresh, equal_var=False)
    interval = test.confidence_interval(0.95)
    assert told["value"] == pytest.approx(found.mean() - fresh.mean())
    assert told["stderr"] == pytest.approx(np.hypot(stats.sem(found), stats.sem(fresh)))
    assert (told["low"], told["high"]) == pytest.approx((interval.low, interval.high))


def test_without_spread_there_is_no_doubt_and_with_one_example_no_answer():
    ones = excess(np.ones(4), np.zeros(6))
    assert ones == {"value": 1.0, "stderr": 0.0, "low": 1.0, "high": 1.0}
    assert excess(np.array([1.0]), np.zeros(6)) is None
    assert excess(np.array([1.0, np.nan]), np.zeros(6)) is None
    assert excess(np.zeros(6), np.zeros(0)) is None


def test_examples_that_could_not_be_scored_are_left_out():
    holed = excess(np.array([1.0, np.nan, 0.0]), np.array([0.0, 1.0, 1.0, np.nan]))
    assert holed == excess(np.array([1.0, 0.0]), np.array([0.0, 1.0, 1.0]))
    mean, error = mean_loss(np.array([1.0, np.nan, 0.0, 0.5]))
    assert (mean, error) == pytest.approx((0.5, stats.sem([1.0, 0.0, 0.5])))
    assert np.isnan(mean_loss(np.array([np.nan]))).all()
    assert mean_loss(np.array([0.5]))[0] == 0.5 and np.isnan(mean_loss(np.array([0.5]))[1])


def drawn(random, sets, count):
    """0/1 losses of sets that share their examples' difficulty and cost the same."""
    difficulty = random.normal(size=count)
    return (difficulty + random.normal(size=(sets, count)) > 0.5).astype(float)


def test_a_set_chosen_beforehand_is_not_found_to_flatter_itself():
    random = np.random.default_rng(1)
    missed = 0
    for _ in range(600):
        told = excess(drawn(random, 3, 60)[1], drawn(random, 3, 150)[1])
        missed += not told["low"] <= 0 <= told["high"]
    assert stats.binomtest(missed, 600, 0.05).pvalue > 0.01
