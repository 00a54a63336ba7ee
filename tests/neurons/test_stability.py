from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from caploc.neurons.sets import (
    RATES,
    between,
    commonality_set,
    overlap_rates,
    pair_interval,
    rates_between,
    within,
)

SETS = st.tuples(st.integers(1, 7), st.integers(1, 20)).flatmap(lambda shape: arrays(bool, shape))


def noisy(kept, count, seed, size=500):
    """Sets that each hold every neuron of `kept` with chance .8 and few others."""
    random = np.random.default_rng(seed)
    return random.random((count, size)) < np.where(kept, 0.8, 0.01)


@given(SETS)
def test_by_default_a_commonality_neuron_is_in_every_set(sets):
    assert (commonality_set(sets) == sets.all(axis=0)).all()


@given(SETS, st.integers(1, 7))
def test_a_share_of_sets_may_do(sets, votes):
    votes = min(votes, len(sets))
    assert (commonality_set(sets, votes / len(sets)) == (sets.sum(axis=0) >= votes)).all()


def test_within_tells_the_mean_of_the_pairs():
    sets = noisy(np.arange(500) < 50, 6, seed=0)
    found = within(sets)
    for name in RATES[1:]:
        each = [vars(overlap_rates(one, other))[name] for one, other in combinations(sets, 2)]
        assert found.rates[name].mean == pytest.approx(np.mean(each))
        assert found.rates[name].low < found.rates[name].mean < found.rates[name].high
    both = [overlap_rates(*pair).reference for pair in permutations(sets, 2)]
    assert found.rates["reference"].mean == pytest.approx(np.mean(both))
    assert found.common == sets.all(axis=0).sum()
    assert found.sizes == tuple(sets.sum(axis=1))
    assert found.subsets == 6


def test_the_interval_resamples_subsets_and_leaves_out_self_pairs():
    """Three subsets: a sample without a pair does not count, one with two of them is their rate."""
    matrix = np.array([[1, 0.2, 0.4], [0.2, 1, 0.9], [0.4, 0.9, 1]])
    weights = np.array([[3, 0, 0], [2, 1, 0], [0, 1, 2], [1, 1, 1]])
    found = pair_interval(matrix, weights)
    assert found.mean == pytest.approx(0.5)
    assert (found.low, found.high) == pytest.approx(np.quantile([0.2, 0.9, 0.5], [0.025, 0.975]))


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    """Overlap `.8² * 50 / ...` of sets whose expected IoU is known from many of them."""
    kept = np.arange(500) < 50
    truth = within(noisy(kept, 150, seed=1)).rates["iou"].mean
    held = 0
    for seed in range(60):
        found = within(noisy(kept, 8, seed=seed + 100), seed=seed).rates["iou"]
        held += found.low <= truth <= found.high
    assert held >= 48


def test_two_subsets_make_one_pair_and_no_interval():
    sets = noisy(np.arange(500) < 50, 2, seed=2)
    found = within(sets).rates["iou"]
    assert found.mean == overlap_rates(*sets).iou
    assert np.isnan([found.low, found.high]).all()


def test_equal_and_empty_sets():
    same = within(np.tile(np.arange(10) < 3, (4, 1)))
    assert all((each.low, each.mean, each.high) == (1, 1, 1) for each in same.rates.values())
    nothing = within(np.zeros((3, 10), dtype=bool))
    assert nothing.common == 0
    assert all(np.isnan(each.mean) for each in nothing.rates.values())


def test_datasets_are_compared_two_by_two():
    random = np.random.default_rng(3)
    found = {name: random.random(60) < 0.3 for name in ("math", "word", "code")}
    splits = {name: random.random((4, 60)) < 0.3 for name in found}
    told = rates_between(found, splits)
    assert told.datasets == ("math", "word", "code")
    for row, one in enumerate(found.values()):
        for column, other in enumerate(found.values()):
            if row != column:
                for name in RATES:
                    assert told.rates[name][row][column] == vars(overlap_rates(one, other))[name]
    # The diagonal is how alike a dataset's own subsets are.
    own = [within(sets).rates for sets in splits.values()]
    for name in RATES:
        diagonal = np.array(told.rates[name]).diagonal()
        assert diagonal == pytest.approx([each[name].mean for each in own])


def test_between_is_the_mean_overlap_of_all_pairs_across_datasets():
    random = np.random.default_rng(5)
    own = random.random((3, 40)) < 0.3
    others = {name: random.random((2, 40)) < 0.3 for name in ("b", "c")}
    expected = np.mean(
        [
            (one & other).sum() / max(one.sum(), other.sum())
            for one in own
            for sets in others.values()
            for other in sets
        ]
    )
    found = between(own, others, "largest")
    assert found.mean == pytest.approx(expected)
    assert found.low <= found.mean <= found.high


def test_between_disjoint_sets_is_nothing_and_between_equal_ones_everything():
    own = np.zeros((3, 10), dtype=bool)
    own[:, :2] = True
    apart = np.roll(own, 5, axis=1)
    for others, expected in (({"b": apart}, 0.0), ({"b": own}, 1.0)):
        found = between(own, others, "largest")
        assert (found.mean, found.low, found.high) == (expected,) * 3
    empty = between(own & False, {"b": own & False}, "largest")
    assert np.isnan(empty.mean)
