import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from caploc.components import Heads
from caploc.errors import BadOption
from caploc.neurons.chance import random_sets

LOCATED = arrays(bool, 30)
GRID = Heads((10, 0, 15, 5))


@given(LOCATED, st.booleans(), st.integers(0, 5))
def test_a_draw_has_the_size_of_the_located_set(located, excluding, seed):
    for sets in (
        random_sets(located, None, 3, seed=seed, excluding=excluding),
        random_sets(located, GRID, 3, seed=seed, excluding=excluding),
    ):
        assert (sets.sum(axis=1) == located.sum()).all()


@given(LOCATED, st.booleans())
def test_a_layer_matched_draw_has_its_size_in_every_layer(located, excluding):
    for chosen in random_sets(located, GRID, 3, seed=1, excluding=excluding):
        assert GRID.counts(chosen) == GRID.counts(located)


@given(LOCATED)
def test_a_draw_keeps_off_the_located_set_as_far_as_there_is_room(located):
    overlap = (random_sets(located, None, 3, seed=2) & located).sum(axis=1)
    assert (overlap == max(0, 2 * located.sum() - 30)).all()
    for slice_ in GRID.layer_slices:
        size, inside = slice_.stop - slice_.start, located[slice_]
        overlap = (random_sets(located, GRID, 3, seed=2)[:, slice_] & inside).sum(axis=1)
        assert (overlap == max(0, 2 * inside.sum() - size)).all()


@given(LOCATED, st.integers(1, 6), st.booleans())
def test_more_draws_keep_the_first_ones(located, draws, excluding):
    def both(count):
        options = {"seed": 3, "excluding": excluding}
        return [random_sets(located, grid, count, **options) for grid in (None, GRID)]

    for few, many in zip(both(draws), both(7), strict=True):
        assert (few == many[:draws]).all()


def test_every_neuron_is_drawn_equally_often():
    located = np.zeros(30, dtype=bool)
    located[[0, 1, 12]] = True
    for excluding, free in ((True, 27), (False, 30)):
        often = random_sets(located, None, 4000, seed=0, excluding=excluding).mean(axis=0)
        pool = ~located if excluding else np.ones(30, dtype=bool)
        # Five standard errors of a share of 3 / free.
        assert often[pool] == pytest.approx(3 / free, abs=5 * np.sqrt(3 / free / 4000))
        assert (often[~pool] == 0).all()


def test_draws_and_seeds_differ():
    located = np.arange(1000) < 20
    sets = random_sets(located, None, 50, seed=0)
    assert len(np.unique(sets, axis=0)) == 50
    assert (random_sets(located, None, 50, seed=1) != sets).any(axis=1).all()


def test_what_cannot_be_drawn_is_refused():
    located = np.zeros(30, dtype=bool)
    with pytest.raises(BadOption, match="1 or more; got 0"):
        random_sets(located, None, 0, seed=0)
    with pytest.raises(BadOption, match="30 columns and the grid has 4"):
        random_sets(located, Heads((4,)), 1, seed=0)
