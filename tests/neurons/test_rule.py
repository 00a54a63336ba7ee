"""Rules: which neurons they choose, against the rule written out by hand."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from caploc.neurons.options import Rule

NEURONS = 180


def heavy(seed, rows=5):
    """Scores with heavy tails, of several examples."""
    return np.random.default_rng(seed).standard_t(2, size=(rows, NEURONS))


def chosen(rule, scores):
    return rule.choose(rule.moments(NEURONS).added(scores))


@given(st.integers(0, 100), st.sampled_from([1.0, 2.5, 4.0]))
def test_sigma_is_far_above_the_mean(seed, sigma):
    scores = heavy(seed)
    mean = scores.mean(0)
    found = chosen(Rule(sigma, normalised=False), scores)
    np.testing.assert_array_equal(found, mean > mean.mean() + sigma * mean.std())


@given(st.integers(0, 100), st.sampled_from([0.01, 0.1, 1.0]))
def test_a_share_is_the_best_ones(seed, share):
    scores = heavy(seed)
    found = chosen(Rule(share=share, normalised=False), scores)
    count = max(1, round(share * NEURONS))
    assert found.sum() == count
    assert set(np.flatnonzero(found)) == set(np.argsort(-scores.mean(0))[:count])


def test_normalised_no_example_outweighs_the_others():
    scores = np.zeros((3, NEURONS))
    scores[0, 7], scores[1:, 9] = 1000, 1
    assert np.flatnonzero(chosen(Rule(normalised=False), scores)).tolist() == [7]
    rule = Rule(share=1 / NEURONS, normalised=True)
    assert np.flatnonzero(chosen(rule, scores)).tolist() == [9]
