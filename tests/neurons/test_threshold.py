import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from caploc.errors import BadData, BadOption
from caploc.neurons.options import Rule
from caploc.neurons.threshold import above, best

SIGMAS = (3.0, 4.0, 5.0, 6.0, 8.0)

ANY = arrays(
    np.float64,
    st.integers(1, 300),
    elements=st.floats(allow_nan=False, allow_infinity=False),
)


@given(ANY, st.sampled_from(SIGMAS) | st.floats(0.01, 20))
def test_no_scores_whatever_let_more_pass_than_cantelli_allows(scores, sigma):
    found = above(scores, sigma)
    assert found.mean() <= (1 + 1e-9) / (1 + sigma**2)


@given(ANY, st.floats(0.1, 6))
def test_what_passes_scores_higher_than_what_does_not(scores, sigma):
    chosen = above(scores, sigma)
    if chosen.any() and not chosen.all():
        assert scores[chosen].min() >= scores[~chosen].max()


def test_the_bound_of_cantelli_is_reached():
    """One in ten at 1, the rest at 0: mean .1, sd .3, so 1 is exactly 3 sd above."""
    scores = np.zeros(1000)
    scores[:100] = 1
    assert above(scores, 2.999).mean() == 0.1 == pytest.approx(1 / (1 + 3**2))
    assert not above(scores, 3.001).any()


def test_the_rule_is_mean_plus_sigma_standard_deviations():
    scores = np.random.default_rng(0).standard_t(3, 5000)
    for sigma in SIGMAS:
        cutoff = scores.mean() + sigma * scores.std()
        found = above(scores, sigma)
        assert (found == (scores > cutoff)).all()
        assert found.any()


def test_normal_scores_pass_as_often_as_the_normal_tail_says():
    scores = np.random.default_rng(1).normal(size=400_000)
    for sigma in (1.0, 2.0, 3.0):
        expected = stats.norm.sf(sigma) * len(scores)
        assert above(scores, sigma).sum() == pytest.approx(expected, abs=5 * np.sqrt(expected))
    assert not above(scores).any()


@pytest.mark.parametrize("value", [0.0, 0.1, -3.7, 1e300, 5e-324])
def test_equal_scores_choose_nothing(value):
    assert not above(np.full(352_256, value)).any()


def test_scores_of_any_scale_and_origin_choose_the_same():
    scores = np.random.default_rng(2).standard_t(2, 3000)
    chosen = above(scores, 4.0)
    assert chosen.sum() > 3
    for factor, shift in ((1e-200, 0), (1e200, 0), (1, 1e6), (3, -50)):
        assert (above(scores * factor + shift, 4.0) == chosen).all()


@given(ANY, st.floats(1e-6, 1))
def test_the_best_share_has_its_size_and_the_best_scores(scores, share):
    found = best(scores, share)
    assert found.sum() == max(1, round(share * len(scores)))
    assert sorted(scores[found]) == sorted(scores)[-found.sum() :]


def test_of_equal_scores_the_lower_column_is_chosen():
    assert np.flatnonzero(best(np.array([1.0, 2, 2, 2, 1]), 0.4)).tolist() == [1, 2]


def test_scores_that_are_not_finite_are_refused():
    scores = np.zeros(2304)
    scores[[17, 40]] = np.nan, np.inf
    for choose in (lambda: above(scores), lambda: best(scores, 0.1)):
        with pytest.raises(BadData, match=r"2 of 2,304 scores are not finite .* column 17"):
            choose()
    with pytest.raises(BadData, match="no scores"):
        above(np.zeros(0))


@pytest.mark.parametrize("sigma", [0.0, -1.0, np.nan, np.inf])
def test_a_sigma_that_is_no_threshold_is_refused(sigma):
    with pytest.raises(BadOption, match="must be positive"):
        above(np.arange(5.0), sigma)


@pytest.mark.parametrize("share", [0.0, -0.1, 1.01, np.nan])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(BadOption, match="above 0 and at most 1"):
        best(np.arange(5.0), share)


def test_normalised_no_example_outweighs_the_others():
    scores = np.zeros((3, 180))
    scores[0, 7], scores[1:, 9] = 1000, 1
    for rule, column in ((Rule(normalised=False), 7), (Rule(share=1 / 180, normalised=True), 9)):
        chosen = rule.choose(rule.moments(180).added(scores))
        assert np.flatnonzero(chosen).tolist() == [column]
