import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from caploc.errors import BadData
from caploc.neurons.stats import mean_interval, paired_interval

VALUES = arrays(np.float64, st.integers(2, 30), elements=st.floats(-1e6, 1e6))


def test_the_interval_of_a_large_sample_is_the_normal_one():
    values = np.random.default_rng(0).normal(2, 3, 1000)
    found = mean_interval(values)
    error = values.std() / np.sqrt(1000)
    assert found.mean == pytest.approx(values.mean())
    assert found.low == pytest.approx(values.mean() - 1.96 * error, abs=0.1 * error)
    assert found.high == pytest.approx(values.mean() + 1.96 * error, abs=0.1 * error)
    assert found.items == 1000


def test_intervals_hold_the_truth_as_often_as_they_say():
    random, held = np.random.default_rng(1), 0
    for seed in range(100):
        found = mean_interval(random.exponential(size=60), seed=seed)
        held += found.low <= 1 <= found.high
    # Of 100 at 95 % (a little less for so skewed data): five standard errors below.
    assert 84 <= held < 100


@given(VALUES, st.integers(0, 3))
def test_an_interval_lies_within_the_data_and_around_the_mean(values, seed):
    found = mean_interval(values, seed=seed)
    slack = 1e-9 * np.abs(values).max()
    assert values.min() - slack <= found.low <= found.high <= values.max() + slack
    assert found == mean_interval(values, seed=seed)


def test_pairing_removes_what_items_have_in_common():
    random = np.random.default_rng(2)
    easy = random.normal(0, 100, 200)
    first, second = easy + random.normal(1, 0.1, 200), easy + random.normal(0, 0.1, 200)
    found = paired_interval(first, second)
    assert found.mean == pytest.approx((first - second).mean())
    assert 0.9 < found.low < found.high < 1.1


def test_missing_values_are_left_out():
    values = np.array([1.0, np.nan, 2.0, 3.0, np.nan])
    assert mean_interval(values) == mean_interval(np.array([1.0, 2.0, 3.0]))
    one, other = np.array([1.0, 2.0, np.nan]), np.array([0.0, np.nan, 5.0])
    assert paired_interval(one, other).items == 1


def test_equal_values_give_a_point():
    found = mean_interval(np.full(10, 0.1))
    assert (found.low, found.high) == (found.mean, found.mean) == (pytest.approx(0.1),) * 2


def test_nothing_is_known_of_too_few_items():
    one = mean_interval(np.array([2.5]))
    assert one.as_dict() == {"mean": 2.5, "low": None, "high": None, "items": 1, "level": 0.95}
    none = mean_interval(np.array([np.nan]))
    assert none.as_dict()["mean"] is None
    assert none.items == 0


def test_what_has_no_interval_is_refused():
    with pytest.raises(BadData, match="1 of 2 values are infinite"):
        mean_interval(np.array([1.0, -np.inf]))
