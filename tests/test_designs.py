import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caploc import designs
from caploc.components import Heads
from caploc.errors import BadOption

STRATIFIED_SEED_7 = [[3, 6, 11], [0, 8, 9], [2, 5, 7], [1, 4, 10]]
BERNOULLI_SEED_7 = [[3, 6], [8, 9, 11], [0, 7, 8, 9, 11]]
rates = st.floats(0.05, 0.5)
DRAWS = {"bernoulli": designs.bernoulli, "stratified": designs.stratified}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@given(rate=rates, seed=st.integers(0, 2**32), few=st.integers(1, 20), more=st.integers(0, 20))
def test_more_masks_keep_the_first_ones(draw, rate, seed, few, more):
    first = draw(30, few, rate=rate, seed=seed)
    assert (draw(30, few + more, rate=rate, seed=seed)[:few] == first).all()


@given(heads=st.integers(2, 60), rate=rates, masks=st.integers(1, 60), seed=st.integers(0, 99))
def test_stratified_masks_cut_equally_many_heads_and_use_all_equally(heads, rate, masks, seed):
    each = int(rate * heads)
    if each == 0:
        with pytest.raises(BadOption, match="less than one head"):
            designs.stratified(heads, masks, rate=rate, seed=seed)
        return
    drawn = designs.stratified(heads, masks, rate=rate, seed=seed)
    assert (drawn.sum(axis=1) == each).all()
    assert np.ptp(drawn.sum(axis=0)) <= 1


def test_stratified_ties_are_broken_at_random():
    first = {tuple(designs.stratified(50, 1, rate=0.1, seed=s)[0].nonzero()[0]) for s in range(40)}
    assert len(first) > 30


def test_bernoulli_masks_cut_at_their_rate():
    drawn = designs.bernoulli(1000, 400, rate=0.03, seed=1)
    # Standard error of the mean of 400,000 draws: 0.00027.
    assert drawn.mean() == pytest.approx(0.03, abs=0.0011)


def test_the_same_seed_gives_the_same_masks_on_every_machine():
    """Written down once: PCG64 and the use made of it must never change."""
    drawn = designs.stratified(12, 4, rate=0.25, seed=7)
    assert [row.nonzero()[0].tolist() for row in drawn] == STRATIFIED_SEED_7
    drawn = designs.bernoulli(12, 3, rate=0.25, seed=7)
    assert [row.nonzero()[0].tolist() for row in drawn] == BERNOULLI_SEED_7


def test_controls_match_layer_by_layer_and_avoid_the_chosen():
    chosen = np.zeros(12, dtype=bool)
    chosen[[0, 1, 5]] = True
    slices = [slice(0, 4), slice(4, 8), slice(8, 12)]
    for control in designs.layer_matched_masks(chosen, slices, 30, seed=3):
        assert [int(control[s].sum()) for s in slices] == [2, 1, 0]
        assert not (control & chosen).any()


def test_controls_take_what_there_is_in_a_layer_that_was_chosen_whole_and_the_rest_elsewhere():
    chosen = np.array([True, True, False, True, True, True])
    (control,) = designs.layer_matched_masks(chosen, [slice(0, 3), slice(3, 6)], 1, seed=0)
    assert np.flatnonzero(control).tolist() == [2]
    chosen = np.array([True, True, True, False, False, False, False])
    slices = [slice(0, 4), slice(4, 7)]
    for control in designs.layer_matched_masks(chosen, slices, 5, seed=0):
        assert control[3] and control[4:].sum() == 2


@given(size=st.integers(1, 200), seed=st.integers(0, 99), data=st.data())
def test_more_examples_keep_the_first_ones(size, seed, data):
    few = data.draw(st.integers(1, size))
    every = designs.draw_examples(size, size, seed=seed)
    assert sorted(every) == list(range(size))
    assert designs.draw_examples(size, few, seed=seed) == every[:few]


@pytest.mark.parametrize("count", [0, -1, 11])
def test_more_examples_than_there_are_is_refused(count):
    with pytest.raises(BadOption, match=f"between 1 and 10.*got {count}"):
        designs.draw_examples(10, count, seed=0)


def test_single_masks_cut_each_head_alone():
    assert [row.nonzero()[0].tolist() for row in designs.singles(4)] == [[0], [1], [2], [3]]


layers = st.lists(st.integers(0, 6), min_size=1, max_size=5)


@given(layers=layers, seed=st.integers(0, 99), data=st.data())
def test_controls_draw_heads_to_avoid_only_where_a_layer_has_too_few_others(layers, seed, data):
    slices = Heads(tuple(layers)).layer_slices
    mask, avoid = (
        np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)), dtype=bool)
        for n in (sum(layers), sum(layers))
    )
    room = [int((~mask[columns]).sum()) for columns in slices]
    short = any(mask[columns].sum() > free for columns, free in zip(slices, room, strict=True))
    for control in designs.layer_matched_masks(mask, slices, 3, seed=seed, avoid=avoid):
        assert not (control & mask).any() and control.sum() == min(mask.sum(), sum(room))
        for columns, free in zip(slices, room, strict=True):
            least = min(int(mask[columns].sum()), free)
            assert control[columns].sum() >= least if short else control[columns].sum() == least
            welcome = int((~mask & ~avoid)[columns].sum())
            assert (control & avoid)[columns].sum() == max(control[columns].sum() - welcome, 0)


@given(heads=st.integers(1, 300), rate=st.floats(0.001, 0.999))
def test_a_mask_has_its_share_of_the_heads_rounded_down_or_is_refused(heads, rate):
    if rate * heads < 1:
        with pytest.raises(BadOption, match=f"of {heads} heads is less than one head a mask"):
            designs.check_mask_size(heads, rate)
    else:
        assert designs.check_mask_size(heads, rate) == int(rate * heads)


def test_the_rate_that_a_refusal_names_is_enough():
    for heads in range(2, 400):
        with pytest.raises(BadOption) as refused:
            designs.check_mask_size(heads, 0.9 / heads)
        least = float(str(refused.value).split("use ")[1].split()[0])
        assert designs.check_mask_size(heads, least) >= 1
