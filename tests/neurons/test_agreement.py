from itertools import permutations

import numpy as np
import pytest

from caploc.neurons.sets import cohesion

NAMES = ["gsm", "meta", "code", "emotion", "imdb"]
KINDS = {"gsm": "math", "meta": "math", "code": "program", "emotion": "text", "imdb": "text"}


def matrix(size, seed):
    return np.random.default_rng(seed).random((size, size))


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
