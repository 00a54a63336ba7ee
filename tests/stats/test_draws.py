import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from caploc.components import Heads
from caploc.errors import BadData, BadOption
from caploc.stats.chance import NEIGHBOURS, activity_matched, bottom, random_sets

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


@given(LOCATED, arrays(float, 30, elements=st.floats(0, 10)))
def test_a_draw_as_active_keeps_layers_and_leaves_the_located_neurons_out(located, activity):
    for chosen in activity_matched(located, GRID, activity, 3, seed=1):
        for slice_ in GRID.layer_slices:
            inside = located[slice_]
            free = len(inside) - 2 * inside.sum()
            assert chosen[slice_].sum() == inside.sum()
            assert (chosen[slice_] & inside).sum() == max(0, -free)


def test_a_draw_as_active_takes_neighbours_by_activity_and_more_draws_keep_the_first():
    grid, random = Heads((500, 500)), np.random.default_rng(0)
    activity = random.permutation(1000) / 1000
    located = np.zeros(1000, dtype=bool)
    located[[3, 77, 401, 640, 999]] = True
    drawn = activity_matched(located, grid, activity, 50, seed=5)
    assert len({tuple(each) for each in drawn}) == 50
    for layer in (slice(0, 500), slice(500, 1000)):
        ranks = np.argsort(np.argsort(activity[layer]))
        own = np.sort(ranks[located[layer]])
        for chosen in drawn:
            assert (abs(np.sort(ranks[chosen[layer]]) - own) <= NEIGHBOURS + 5).all()
    assert (activity_matched(located, grid, activity, 2, seed=5) == drawn[:2]).all()


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


def test_the_bottom_are_the_lowest_scores():
    scores = np.array([5.0, -9, 0, 0, -1, 3])
    located = np.array([1, 0, 0, 0, 0, 1], dtype=bool)
    assert np.flatnonzero(bottom(scores, located)).tolist() == [1, 4]
    assert np.flatnonzero(bottom(scores, located, absolute=True)).tolist() == [2, 3]


def test_the_bottom_keeps_off_the_located_set_as_far_as_there_is_room():
    scores = np.arange(6.0)
    located = np.array([1, 1, 0, 0, 0, 0], dtype=bool)
    assert np.flatnonzero(bottom(scores, located)).tolist() == [2, 3]
    assert np.flatnonzero(bottom(scores, np.arange(6) > 1)).tolist() == [0, 1, 2, 3]


def test_what_cannot_be_drawn_is_refused():
    located = np.zeros(30, dtype=bool)
    with pytest.raises(BadOption, match="1 or more; got 0"):
        random_sets(located, None, 0, seed=0)
    with pytest.raises(BadOption, match="30 columns and the grid has 4"):
        random_sets(located, Heads((4,)), 1, seed=0)
    with pytest.raises(BadData, match="not finite"):
        bottom(np.full(30, np.nan), located)
