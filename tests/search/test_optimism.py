"""How much a choice flatters itself, against scipy, and where the truth is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from caploc.search.published import choosing, excess, mean_loss, optimism

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
        told = optimism(drawn(random, 3, 60), drawn(random, 3, 150), 1)
        missed += not told["low"] <= 0 <= told["high"]
    assert stats.binomtest(missed, 600, 0.05).pvalue > 0.01


def test_choosing_the_best_of_equals_gains_what_order_statistics_say():
    """The largest of k means, less their average, of independent parts: the rest is shared."""
    random = np.random.default_rng(2)
    sets, count, gains = 8, 100, []
    for _ in range(600):
        found, fresh = drawn(random, sets, count), drawn(random, sets, 200)
        gains.append(choosing(found, fresh, int(found.mean(axis=1).argmax()))["value"])
    many = drawn(random, sets, 400_000)
    own = (many - many.mean(axis=0)).std(axis=1).mean() * (sets / (sets - 1)) ** 0.5
    largest = random.normal(size=(200_000, sets)).max(axis=1).mean()
    expected = largest * own / count**0.5
    error = np.std(gains, ddof=1) / 600**0.5
    assert abs(np.mean(gains) - expected) < 4 * error
    assert expected > 20 * error


def test_what_all_sets_share_is_no_part_of_choosing():
    """Fresh examples that are all easier lower the optimism, and leave the choice as it was."""
    random = np.random.default_rng(4)
    found, fresh = drawn(random, 5, 60), drawn(random, 5, 90)
    told = choosing(found, fresh, 2)
    assert told["value"] == pytest.approx(
        (found[2].mean() - found.mean()) - (fresh[2].mean() - fresh.mean())
    )
    assert told["stderr"] < optimism(found, fresh, 2)["stderr"]
    easier = choosing(found, fresh - 0.3, 2)
    assert list(easier.values()) == pytest.approx(list(told.values()))
    assert optimism(found, fresh - 0.3, 2)["value"] == pytest.approx(
        optimism(found, fresh, 2)["value"] + 0.3
    )


def test_a_single_set_was_not_chosen():
    random = np.random.default_rng(3)
    assert choosing(drawn(random, 1, 20), drawn(random, 1, 20), 0) is None
    assert choosing(drawn(random, 2, 20), np.zeros((2, 0)), 0) is None
