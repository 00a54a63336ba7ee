import json

import numpy as np
import pytest

from caploc.stats import plain_value
from papers.cnl.contrasts import ARMS
from papers.cnl.decoupling import effects_of


def jaccards(first, second):
    """The IoU of each set with that in the same row of the other."""
    both = (first & second).sum(axis=1)
    return both / (first.sum(axis=1) + second.sum(axis=1) - both)


def located(commonality, content, random):
    """A planted locator: 20 neurons of the commonality, `content` of the content, a little noise.

    `commonality` and `content` are numbers of either; the columns of each are its own.
    """
    chosen = random.random(1000) < 0.002
    chosen[20 * commonality : 20 * commonality + 20] = True
    number, width = content
    chosen[200 + 10 * number : 200 + 10 * number + width] = True
    return chosen


def planted(width, items=200):
    """The IoU of every arm, if the content has `width` neurons of its own."""
    random = np.random.default_rng(0)
    sets = {arm: [] for arm in ("base", *ARMS)}
    for item in range(items):
        content, other = (item % 40, width), (item % 40 + 40, width)
        arms = {
            "base": (0, content),
            "SS": (0, content),
            "SC": (0, other),
            "CD": (1, content),
            "DD": (1, other),
        }
        for arm, (commonality, with_what) in arms.items():
            sets[arm].append(located(commonality, with_what, random))
    base = np.array(sets["base"])
    return {arm: jaccards(base, np.array(sets[arm])) for arm in ARMS}


def test_a_locator_of_commonality_has_that_effect_only():
    found = effects_of(planted(0))
    assert found["commonality"].low > 0.7
    for effect in (found["individual"], found["content"]):
        error = (effect.high - effect.low) / (2 * 1.96)
        assert abs(effect.mean) < 4 * error < 0.03
    assert found["items"] == 200


def test_a_locator_of_content_too_has_all_three():
    found = effects_of(planted(10))
    for effect in (found["commonality"], found["individual"], found["content"]):
        assert effect.low > 0.1
    assert found["similarity"]["SS"].mean > found["similarity"]["SC"].mean


def test_effects_are_differences_of_the_means():
    random = np.random.default_rng(1)
    arms = {arm: random.random(50) for arm in ARMS}
    found = effects_of(arms)
    mean = {arm: each.mean() for arm, each in arms.items()}
    assert found["commonality"].mean == pytest.approx(mean["SC"] - mean["DD"])
    assert found["individual"].mean == pytest.approx(mean["SS"] - mean["SC"])
    assert found["content"].mean == pytest.approx(mean["CD"] - mean["DD"])


def test_items_without_neurons_count_in_no_arm():
    arms = {arm: np.array([0.5, 0.25, np.nan]) for arm in ARMS}
    arms["SS"] = np.array([np.nan, 1.0, 1.0])
    found = effects_of(arms)
    assert (found["items"], found["undefined"]) == (1, 2)
    assert found["individual"].mean == 0.75
    assert json.loads(json.dumps(plain_value(found), allow_nan=False))["content"]["low"] is None
