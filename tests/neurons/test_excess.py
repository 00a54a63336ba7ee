import numpy as np
import pytest

from caploc.errors import BadOption
from caploc.neurons.chance import Excess, permutation_p


def test_the_gain_is_in_standard_deviations_of_the_draws():
    """Draws 0, 1, 2, 3, 4: mean 2, sample sd sqrt(2.5)."""
    random = np.repeat(np.arange(5.0)[:, None], 3, axis=1)
    found = Excess.of(np.array([2.0, 7.0, 12.0]), random)
    assert found.excess.mean == pytest.approx(5)
    assert found.pooled_gain == pytest.approx(5 / np.sqrt(2.5))
    assert found.p == 1 / 6


def test_p_is_uniform_if_the_located_set_is_one_draw_more():
    effects = np.random.default_rng(1).normal(size=(20, 4000))
    found = [permutation_p(float(each[0]), each[1:]) for each in effects.T]
    counts = np.bincount(np.round(np.array(found) * 20).astype(int), minlength=21)[1:]
    assert counts == pytest.approx(200, abs=5 * np.sqrt(200))


def test_draws_that_never_differ_leave_everything_but_p_undefined():
    found = Excess.of(np.ones(4), np.zeros((6, 4)))
    told = found.as_dict()
    assert told["pooled_gain"] is None
    assert told["excess"]["mean"] == 1
    assert found.p == 1 / 7


def test_an_item_without_an_effect_is_in_no_mean():
    random = np.arange(5.0)[:, None] * [1, 1, 0]
    found, without = Excess.of(np.array([7.0, 7.0, np.nan]), random), random[:, :2]
    assert found == Excess.of(np.array([7.0, 7.0]), without)


def test_no_items_tell_nothing():
    told = Excess.of(np.full(2, np.nan), np.zeros((5, 2))).as_dict()
    assert (told["p"], told["pooled_gain"], told["excess"]["mean"]) == (None, None, None)


def test_too_few_draws_are_refused():
    with pytest.raises(BadOption, match="at least 5 random draws; got 4"):
        Excess.of(np.ones(3), np.zeros((4, 3)))
