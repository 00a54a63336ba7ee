import json
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from caploc.errors import BadOption, UnknownName
from caploc.neurons.sets import cohesion, correlate_matrices, correlations, orders

NAMES = ["gsm", "meta", "code", "emotion", "imdb"]
KINDS = {"gsm": "math", "meta": "math", "code": "program", "emotion": "text", "imdb": "text"}


def matrix(size, seed, symmetric=False):
    values = np.random.default_rng(seed).random((size, size))
    return (values + values.T) / 2 if symmetric else values


def entries(values):
    return values[~np.eye(len(values), dtype=bool)]


def test_cohesion_tells_apart_the_diagonal_one_kind_and_two():
    values = np.full((5, 5), 0.1)
    values[0, 1] = values[1, 0] = 0.6
    values[3, 4], values[4, 3] = 0.4, 0.8
    np.fill_diagonal(values, [0.9, 0.8, 0.7, np.nan, 1.0])
    found = cohesion(values, NAMES, KINDS)
    assert found.cohesion == pytest.approx(0.85)
    assert found.same_kind == pytest.approx(0.6)
    assert found.across_kinds == pytest.approx(0.1)
    assert found.contrast == pytest.approx(0.5)
    assert found.separability == pytest.approx((4 * 0.6 + 16 * 0.1) / 20)
    # 15 ways to choose two pairs of five datasets, each as often among the orders; one is as good.
    assert found.p == pytest.approx(1 / 15)


def test_kinds_that_say_nothing_get_no_small_p():
    found = cohesion(np.ones((5, 5)), NAMES, KINDS)
    assert (found.contrast, found.p) == (0, 1)


def test_p_of_cohesion_is_the_share_of_dealings_counted_one_by_one():
    values, kinds = matrix(5, 0), [KINDS[name] for name in NAMES]

    def contrast(dealt):
        same = np.equal.outer(np.array(dealt), np.array(dealt))
        apart = ~np.eye(5, dtype=bool)
        return values[same & apart].mean() - values[~same].mean()

    every = [contrast(dealt) for dealt in permutations(kinds)]
    found = cohesion(values, NAMES, KINDS)
    assert found.contrast == pytest.approx(contrast(kinds))
    assert found.p == pytest.approx(np.mean(np.array(every) >= contrast(kinds) - 1e-12))


def test_one_dataset_a_kind_has_no_same_kind():
    found = cohesion(matrix(2, 1), ["gsm", "imdb"], KINDS)
    assert (found.same_kind, found.contrast, found.p) == (None, None, None)
    assert found.across_kinds == found.separability
    alone = cohesion(np.array([[0.5]]), ["gsm"], KINDS)
    assert (alone.cohesion, alone.separability) == (0.5, None)


def test_missing_entries_are_left_out():
    values = matrix(5, 2)
    values[0, 2] = np.nan
    found = cohesion(values, NAMES, KINDS)
    assert found.separability == pytest.approx(np.nanmean(entries(values)))


@pytest.mark.parametrize("seed", range(5))
def test_correlations_are_scipys(seed):
    first, second = matrix(6, seed, symmetric=True), matrix(6, seed + 50)
    first[2, 3] = np.nan
    found = correlate_matrices(first, second)
    known = ~np.isnan(entries(first))
    pair = entries(first)[known], entries(second)[known]
    assert found.pairs == 29
    assert found.pearson.value == pytest.approx(stats.pearsonr(*pair).statistic)
    assert found.spearman.value == pytest.approx(stats.spearmanr(*pair).statistic)
    assert -1 <= found.pearson.low <= found.pearson.high <= 1


def test_weights_count_entries_so_often():
    first, second = np.random.default_rng(3).random((2, 5))
    often = np.array([2, 1, 0, 1, 3])
    repeated = [np.repeat(each, often) for each in (first, second)]
    first[2] = np.nan
    found = correlations(first[None], second[None], often[None].astype(float))
    assert found == pytest.approx(stats.pearsonr(*repeated).statistic)


def test_the_interval_is_that_of_datasets_drawn_again():
    first, second = matrix(6, 3), matrix(6, 4)
    random, drawn = np.random.default_rng(0), []
    while len(drawn) < 8000:
        picked = random.integers(6, size=6)
        if len(set(picked)) >= 3:
            pairs = [(i, j) for i in picked for j in picked if i != j]
            values = [[each[pair] for pair in pairs] for each in (first, second)]
            drawn.append(np.corrcoef(*values)[0, 1])
    found = correlate_matrices(first, second).pearson
    assert (found.low, found.high) == pytest.approx(np.quantile(drawn, [0.025, 0.975]), abs=0.04)


def test_matrices_that_go_together_are_told():
    first = matrix(7, 5, symmetric=True)
    found = correlate_matrices(first, 3 * first - 1)
    for each in (found.pearson, found.spearman):
        assert each.value == pytest.approx(1)
        assert each.low == pytest.approx(1)
        assert each.p == pytest.approx(1 / 5040)
    against = correlate_matrices(first, np.exp(-first))
    assert against.spearman.value == pytest.approx(-1)
    assert against.spearman.p == pytest.approx(1 / 5040)
    assert against.pearson.value > -1


def test_p_is_the_share_of_orders_counted_one_by_one():
    first, second = matrix(4, 6), matrix(4, 7)
    every = [
        stats.pearsonr(entries(first[np.ix_(order, order)]), entries(second)).statistic
        for order in permutations(range(4))
    ]
    found = correlate_matrices(first, second).pearson
    assert found.p == pytest.approx(np.mean(np.abs(every) >= abs(found.value) - 1e-12))


def test_p_of_unrelated_matrices_is_as_often_small_as_it_says():
    small = [
        correlate_matrices(matrix(4, seed), matrix(4, seed + 1000)).pearson.p <= 0.1
        for seed in range(50)
    ]
    # 5 expected of 50 (a little less, for p comes in steps of 1/24); five standard errors.
    assert sum(small) <= 5 + 5 * np.sqrt(4.5)
    assert sum(small) > 0


def test_many_datasets_are_reordered_at_random_the_true_order_first():
    found = orders(9, seed=0)
    assert found.shape == (10_000, 9)
    assert found[0].tolist() == list(range(9))
    assert (np.sort(found, axis=1) == np.arange(9)).all()
    assert len(orders(5, seed=0)) == 120


def test_constant_and_tiny_matrices_have_no_correlation():
    found = correlate_matrices(np.full((5, 5), 0.1), matrix(5, 8))
    assert set(vars(found.pearson).values()) == {None}
    assert found.pairs == 20
    told = json.loads(
        json.dumps(correlate_matrices(matrix(1, 0), matrix(1, 0)).as_dict(), allow_nan=False)
    )
    assert told["spearman"]["value"] is None
    three = correlate_matrices(matrix(3, 9), matrix(3, 10)).pearson
    assert three.low is None
    assert three.value is not None


@settings(max_examples=25)
@given(st.integers(2, 5), st.floats(-1e3, 1e3), st.floats(1e-3, 1e3))
def test_units_do_not_matter(size, shift, factor):
    first, second = matrix(size, size), matrix(size, size + 20)
    one = correlate_matrices(first, second)
    other = correlate_matrices(first * factor + shift, second)
    assert other.pearson.value == pytest.approx(one.pearson.value, rel=1e-6)
    assert other.pearson.p == pytest.approx(one.pearson.p)


def test_what_is_no_matrix_of_datasets_is_refused():
    with pytest.raises(BadOption, match="got 2 x 3"):
        cohesion(np.ones((2, 3)), NAMES, KINDS)
    with pytest.raises(BadOption, match="2 rows and 5 datasets"):
        cohesion(np.ones((2, 2)), NAMES, KINDS)
    with pytest.raises(UnknownName, match="no kind for the dataset 'gsm8k'"):
        cohesion(np.ones((1, 1)), ["gsm8k"], KINDS)
    with pytest.raises(BadOption, match="2 and 3 datasets"):
        correlate_matrices(np.ones((2, 2)), np.ones((3, 3)))
