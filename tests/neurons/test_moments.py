from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from caploc.errors import BadData, BadOption
from caploc.neurons.threshold import Moments

SCORES = st.tuples(st.integers(1, 12), st.integers(1, 9)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=st.floats(-1e6, 1e6, width=32))
)
SETTINGS = st.fixed_dictionaries({"normalised": st.booleans()})


def gathered(scores, **settings):
    return Moments.empty(scores.shape[1], **settings).added(scores)


def assert_alike(one, other):
    assert one.items == other.items
    scale = np.abs(other.mean).max() + np.sqrt(other.squares.max())
    assert one.mean == pytest.approx(other.mean, rel=1e-12, abs=1e-12 * scale)
    assert one.squares == pytest.approx(other.squares, rel=1e-12, abs=1e-12 * scale**2)


@given(SCORES, SETTINGS, st.lists(st.integers(0, 12), max_size=4))
def test_shards_merge_to_what_one_pass_gives(scores, settings, cuts):
    whole = gathered(scores, **settings)
    edges = sorted({0, len(scores), *(min(cut, len(scores)) for cut in cuts)})
    shards = [gathered(scores[low:high], **settings) for low, high in pairwise(edges)]
    merged = Moments.empty(scores.shape[1], **settings)
    for shard in reversed(shards):
        merged = merged.merged(shard)
    one_by_one = Moments.empty(scores.shape[1], **settings)
    for row in scores:
        one_by_one = one_by_one.added(row[None])
    assert_alike(merged, whole)
    assert_alike(one_by_one, whole)


def test_mean_and_standard_error_are_numpys():
    scores = np.random.default_rng(0).normal(3, 2, (50, 7))
    found = gathered(scores[:20]).added(scores[20:])
    assert found.mean == pytest.approx(scores.mean(axis=0), rel=1e-13)
    assert found.standard_error == pytest.approx(scores.std(axis=0, ddof=1) / np.sqrt(50))


def test_a_large_mean_does_not_drown_the_variance():
    noise = np.random.default_rng(1).normal(size=(1000, 3))
    found = Moments.empty(3)
    for row in noise + 1e9:
        found = found.added(row[None])
    assert found.standard_error == pytest.approx(noise.std(axis=0, ddof=1) / 1000**0.5, rel=1e-5)


def test_normalised_items_weigh_the_same():
    scores = np.array([[1.0, 3.0], [-100.0, 300.0], [0.0, 0.0]])
    found = gathered(scores, normalised=True)
    assert found.mean == pytest.approx([0.0, 0.5])
    assert gathered(scores).mean == pytest.approx([-33.0, 101.0])


def test_half_precision_scores_are_added_up_in_double():
    scores = np.full((4096, 1), 0.1, dtype=np.float16)
    assert gathered(scores).mean == pytest.approx(float(np.float16(0.1)), rel=1e-14)
    assert gathered(scores).mean.dtype == np.float64


def test_scores_given_are_left_as_they_were():
    scores = np.random.default_rng(2).normal(size=(5, 4))
    before = scores.copy()
    gathered(scores, normalised=True)
    assert (scores == before).all()


def test_a_file_keeps_everything(tmp_path):
    scores = np.random.default_rng(3).normal(size=(6, 40))
    found = gathered(scores, normalised=True)
    np.savez(tmp_path / "moments.npz", **found.as_arrays())
    with np.load(tmp_path / "moments.npz") as arrays_read:
        back = Moments.from_arrays(arrays_read)
    assert (back.items, back.normalised) == (6, True)
    for name in ("mean", "squares"):
        assert (getattr(back, name) == getattr(found, name)).all()
    assert_alike(back.added(scores), gathered(np.tile(scores, (2, 1)), normalised=True))


def test_nothing_is_known_of_too_few_items():
    nothing = Moments.empty(2)
    assert np.isnan(nothing.standard_error).all()
    assert np.isnan(nothing.added(np.ones((1, 2))).standard_error).all()
    assert nothing.merged(nothing).items == 0
    assert nothing.added(np.zeros((0, 2))).items == 0


def test_what_does_not_fit_together_is_refused():
    for other in (Moments.empty(2, normalised=True), Moments.empty(3)):
        with pytest.raises(BadOption, match="cannot be merged"):
            Moments.empty(2).merged(other)
    with pytest.raises(BadData, match="3 neurons and those before of 2"):
        Moments.empty(2).added(np.zeros((1, 3)))
    with pytest.raises(BadData, match="1 of 2 scores are not finite"):
        Moments.empty(2).added(np.array([[0, np.nan]]))
