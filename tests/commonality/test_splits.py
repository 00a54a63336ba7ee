import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caploc.commonality import disjoint, misplaced
from caploc.errors import BadOption


@given(st.integers(1, 6), st.integers(1, 20), st.integers(0, 30), st.integers(0, 5))
def test_subsets_share_no_item(subsets, size, spare, seed):
    found = disjoint(subsets * size + spare, size, subsets=subsets, seed=seed)
    assert found.shape == (subsets, size)
    assert len(np.unique(found)) == subsets * size
    assert 0 <= found.min() <= found.max() < subsets * size + spare


def test_a_larger_size_keeps_the_items_of_a_smaller_one():
    small, large = (disjoint(1000, size, subsets=3, seed=1) for size in (10, 300))
    assert (large[:, :10] == small).all()


def test_every_item_is_as_often_in_a_subset():
    often = np.zeros(20)
    for seed in range(2000):
        often[disjoint(20, 5, seed=seed)[0]] += 1
    assert often / 2000 == pytest.approx(0.25, abs=5 * np.sqrt(0.25 * 0.75 / 2000))


@given(st.integers(2, 50), st.integers(0, 5))
def test_no_item_keeps_its_answer_and_none_is_lost(items, seed):
    donors = misplaced(items, seed=seed)
    assert sorted(donors) == list(range(items))
    assert (donors != np.arange(items)).all()


def test_what_cannot_be_split_is_refused():
    with pytest.raises(
        BadOption, match="3 subsets of 4 items need 12 items and there are 10; .* 3"
    ):
        disjoint(10, 4, subsets=3)
    with pytest.raises(BadOption, match="1 or more; got 10, 2 and 0"):
        disjoint(10, 0)
    with pytest.raises(BadOption, match="2 items or more; got 1"):
        misplaced(1)
