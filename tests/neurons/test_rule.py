"""Rules: which neurons they choose, against the rule written out by hand."""

from functools import partial

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from caploc.neurons.model import NeuronGrid
from caploc.neurons.options import Rule

raw = partial(Rule, normalised=False)  # scores as they are, to be worked out by hand

GRID = NeuronGrid((40, 60, 80))


def heavy(seed, rows=5):
    """Scores with heavy tails, of several examples."""
    return np.random.default_rng(seed).standard_t(2, size=(rows, GRID.size))


def chosen(rule, scores):
    return rule.choose(rule.moments(GRID.size).added(scores), GRID)


def far(values, sigma):
    return values > values.mean() + sigma * values.std()


@given(st.integers(0, 100), st.sampled_from([1.0, 2.5, 4.0]), st.booleans(), st.booleans())
def test_sigma_is_far_above_the_mean_of_all_or_of_the_layer(seed, sigma, per_layer, absolute):
    scores = heavy(seed)
    mean = scores.mean(0)
    mean = np.abs(mean) if absolute else mean
    expected = far(mean, sigma)
    if per_layer:
        expected = np.concatenate([far(mean[columns], sigma) for columns in GRID.layer_slices])
    rule = raw(sigma, per_layer=per_layer, absolute=absolute)
    np.testing.assert_array_equal(chosen(rule, scores), expected)


@given(st.integers(0, 100), st.sampled_from([0.01, 0.1, 1.0]))
def test_a_share_is_the_best_ones(seed, share):
    scores = heavy(seed)
    found = chosen(raw(share=share), scores)
    count = max(1, round(share * GRID.size))
    assert found.sum() == count
    assert set(np.flatnonzero(found)) == set(np.argsort(-scores.mean(0))[:count])


@given(st.integers(0, 100), st.sampled_from([0.2, 0.5, 1.0]), st.booleans())
def test_votes_count_the_examples_in_which_a_neuron_is_far_out(seed, votes, absolute):
    scores = heavy(seed)
    sizes = np.abs(scores) if absolute else scores
    passed = sum(far(row, 1.5).astype(int) for row in sizes)
    found = chosen(raw(1.5, votes=votes, absolute=absolute), scores)
    np.testing.assert_array_equal(found, passed >= round(votes * len(scores) + 0.4))


def test_normalised_no_example_outweighs_the_others():
    scores = np.zeros((3, GRID.size))
    scores[0, 7], scores[1:, 9] = 1000, 1
    assert np.flatnonzero(chosen(raw(), scores)).tolist() == [7]
    rule = raw(share=1 / GRID.size, normalised=True)
    assert np.flatnonzero(chosen(rule, scores)).tolist() == [9]
