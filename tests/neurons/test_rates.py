from fractions import Fraction
from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from caploc.components import Heads
from caploc.errors import BadOption
from caploc.neurons.chance import count_shared
from caploc.neurons.sets import RATES, mean_rates, overlap_rates, rate_matrices

MANY = st.tuples(st.integers(1, 8), st.integers(1, 30)).flatmap(lambda shape: arrays(bool, shape))


def members(columns, size=10):
    chosen = np.zeros(size, dtype=bool)
    chosen[list(columns)] = True
    return chosen


def by_sets(first, second):
    """A second implementation, on Python's sets."""
    one, other = (set(np.flatnonzero(each)) for each in (first, second))
    below = {
        "reference": len(one),
        "largest": max(len(one), len(other)),
        "iou": len(one | other),
    }
    return {name: len(one & other) / count if count else None for name, count in below.items()}


def test_the_published_pair_fits_division_by_the_larger_set_only():
    """Sets of 1,000 and 969 with 964.2 in common, times 10: overlap .9642 and IoU .9595."""
    first, second = np.zeros(20_000, dtype=bool), np.zeros(20_000, dtype=bool)
    first[:10_000] = True
    second[10_000 - 9642 : 10_000 + 49] = True
    found = overlap_rates(first, second)
    assert found.largest == pytest.approx(0.9642, abs=5e-5)
    assert found.iou == pytest.approx(0.9595, abs=5e-5)


def test_empty_sets_have_no_rate():
    nothing, some = members([]), members([1, 2])
    assert set(vars(overlap_rates(nothing, nothing)).values()) == {None}
    found = overlap_rates(nothing, some)
    assert found.reference is None
    assert (found.largest, found.iou) == (0, 0)
    assert overlap_rates(some, nothing).reference == 0


@given(MANY)
def test_matrices_hold_the_rates_of_every_two_sets(sets):
    matrices = rate_matrices(sets)
    for row, first in enumerate(sets):
        for column, second in enumerate(sets):
            told = by_sets(first, second)
            for name in RATES:
                value = matrices[name][row, column]
                assert (None if np.isnan(value) else value) == pytest.approx(told[name])


def exact_tail(size, one, other, count):
    """The hypergeometric tail in whole numbers."""
    ways = sum(
        comb(one, common) * comb(size - one, other - common)
        for common in range(count, min(one, other) + 1)
        if other - common <= size - one
    )
    return float(Fraction(ways, comb(size, other)))


@given(st.integers(1, 60).flatmap(lambda size: arrays(bool, (2, size))))
def test_chance_over_the_whole_model_is_hypergeometric(pair):
    first, second = pair
    found = count_shared(first, second, Heads((len(first),)))
    sizes = int(first.sum()), int(second.sum())
    assert found.count == (first & second).sum()
    assert found.expected == pytest.approx(sizes[0] * sizes[1] / len(first))
    assert found.p == pytest.approx(exact_tail(len(first), *sizes, found.count))
    # With one layer both kinds of chance are one.
    assert (found.expected_in_layers, found.p_in_layers) == (found.expected, found.p)


def test_chance_in_layers_is_that_of_every_way_to_draw():
    """All pairs of sets with as many in each of three small layers, counted one by one."""
    grid = Heads((4, 0, 3, 2))
    first, second = members([0, 1, 4, 7], 9), members([1, 4, 5, 8], 9)
    drawn = [
        [
            set(one) | set(other) | set(last)
            for one in combinations(range(4), counts[0])
            for other in combinations(range(4, 7), counts[1])
            for last in combinations(range(7, 9), counts[2])
        ]
        for counts in ((2, 1, 1), (1, 2, 1))
    ]
    common = np.array([len(one & other) for one in drawn[0] for other in drawn[1]])
    found = count_shared(first, second, grid)
    assert found.count == 2
    assert found.expected_in_layers == pytest.approx(common.mean())
    assert found.p_in_layers == pytest.approx((common >= 2).mean())


def test_chance_is_exact_at_the_size_of_a_real_model():
    size, chosen = 352_256, 528
    first, second = (np.zeros(size, dtype=bool) for _ in range(2))
    first[:chosen] = True
    second[chosen - 3 : 2 * chosen - 3] = True
    found = count_shared(first, second, Heads((11_008,) * 32))
    assert found.expected == pytest.approx(chosen**2 / size)
    assert found.p == pytest.approx(exact_tail(size, chosen, chosen, 3), rel=1e-7)
    # All of both sets lie in one layer: to meet there is no wonder.
    assert found.p_in_layers == pytest.approx(exact_tail(11_008, chosen, chosen, 3), rel=1e-7)
    assert found.p_in_layers > 0.99 > 0.1 > found.p


@given(MANY)
def test_rates_of_many_sets_are_means_over_their_pairs(sets):
    ious = [overlap_rates(one, other).iou for one, other in combinations(sets, 2)]
    known = [each for each in ious if each is not None]
    assert mean_rates(sets).iou == (pytest.approx(np.mean(known)) if known else None)


def test_empty_sets_leave_pairs_out():
    found = mean_rates(np.array([members([]), members([1]), members([1])]))
    assert found.iou == pytest.approx(1 / 3)
    assert mean_rates(np.zeros((2, 5), dtype=bool)).iou is None


def test_what_cannot_be_counted_is_refused():
    with pytest.raises(BadOption, match="5 columns and the grid has 6"):
        count_shared(members([], 5), members([], 5), Heads((6,)))
