import json

import numpy as np
import pytest

from caploc.errors import BadOption
from caploc.neurons.chance import permutation_p, specificity


def test_the_gain_is_in_standard_deviations_of_the_draws():
    """Draws 0, 1, 2, 3, 4: mean 2, sample sd sqrt(2.5)."""
    random = np.repeat(np.arange(5.0)[:, None], 3, axis=1)
    found = specificity(np.array([2.0, 7.0, 12.0]), random)
    assert found.per_item == pytest.approx(np.array([0, 5, 10]) / np.sqrt(2.5))
    assert found.gain.mean == pytest.approx(5 / np.sqrt(2.5))
    assert found.excess.mean == pytest.approx(5)
    assert (found.located, found.random, found.draws) == (7, 2, 5)
    assert found.pooled_gain == pytest.approx(5 / np.sqrt(2.5))
    assert found.p == 1 / 6


def test_neurons_like_any_others_have_no_gain():
    """The gain of a normal item among many draws is a standard normal."""
    random = np.random.default_rng(0)
    effects = random.normal(3, 2, (201, 1000))
    found = specificity(effects[0], effects[1:])
    assert abs(found.gain.mean) < 4 / np.sqrt(1000)
    assert found.gain.low < found.gain.mean < found.gain.high
    assert found.per_item.std() == pytest.approx(1, abs=0.1)
    assert 0.005 < found.p < 0.995


def test_p_is_uniform_if_the_located_set_is_one_draw_more():
    effects = np.random.default_rng(1).normal(size=(20, 4000))
    found = [permutation_p(float(each[0]), each[1:]) for each in effects.T]
    counts = np.bincount(np.round(np.array(found) * 20).astype(int), minlength=21)[1:]
    assert counts == pytest.approx(200, abs=5 * np.sqrt(200))


def test_needed_neurons_stand_out():
    random = np.random.default_rng(2)
    found = specificity(random.normal(1, 0.1, 50), random.normal(0, 0.1, (20, 50)))
    assert found.gain.low > 5
    assert found.excess.low > 0 or found.excess.high < 0
    assert found.pooled_gain > 20
    assert found.p == 1 / 21


def test_items_on_which_all_draws_did_the_same_have_no_gain():
    random = np.zeros((5, 3))
    random[:, 1] = [0, 1, 2, 3, 4]
    found = specificity(np.array([1.0, 2.0, np.nan]), random)
    assert found.items_undefined == 2
    assert found.gain.items == 1
    assert found.gain.mean == 0
    # The item that lacks its effect is in no mean.
    assert found.located == 1.5
    assert json.loads(json.dumps(found.as_dict(), allow_nan=False))["per_item"] == [None, 0, None]


def test_draws_that_never_differ_leave_everything_but_p_undefined():
    found = specificity(np.ones(4), np.zeros((6, 4)))
    told = found.as_dict()
    assert told["gain"]["mean"] is None
    assert told["pooled_gain"] is None
    assert told["excess"]["mean"] == 1
    assert found.p == 1 / 7


def test_no_items_tell_nothing():
    told = specificity(np.full(2, np.nan), np.zeros((5, 2))).as_dict()
    assert (told["p"], told["located"], told["random"]) == (None, None, None)


def test_too_few_draws_are_refused():
    with pytest.raises(BadOption, match="at least 5 random draws; got 4"):
        specificity(np.ones(3), np.zeros((4, 3)))
