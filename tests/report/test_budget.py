"""Whether more rows would change the answer."""

import numpy as np
import pytest
from scipy import stats
from shaping import shaped

from caploc.report.sureness import FACTORS, named_again, stability


def test_of_two_heads_the_chance_is_that_of_a_normal_difference():
    effect, stderr = np.array([-0.3, -0.1]), np.array([0.1, 0.2])
    shares = dict(named_again(effect, stderr, np.array([True, False])))
    for factor in FACTORS:
        spread = np.sqrt((stderr**2).sum() * (1 + 1 / factor))
        truth = stats.norm.cdf(0.2 / spread)
        assert shares[factor] == pytest.approx(truth, abs=4 * np.sqrt(0.25 / 2000))


def test_more_rows_name_more_of_the_same_heads_again():
    random = np.random.default_rng(0)
    effect = np.sort(random.normal(0, 0.1, 96))
    shares = [s for _, s in named_again(effect, np.full(96, 0.05), np.arange(96) < 5)]
    assert shares == sorted(shares) and shares[0] < shares[-1] < 1


def test_heads_without_doubt_are_named_again_by_any_run():
    effect = np.array([-0.5, -0.4, 0.0, 0.0])
    shares = named_again(effect, np.full(4, 1e-9), np.array([True, True, False, False]))
    assert {share for _, share in shares} == {1.0}


def test_it_is_said_only_where_heads_are_named_by_effects_that_have_intervals(result):
    result["heads"] = [head for head in result["heads"] if head["effect"] is not None]
    assert stability(shaped(result)) and stability(shaped(result)) == stability(shaped(result))
    result["method"]["name"] = "greedy"
    assert stability(shaped(result)) == []
    result["method"]["name"] = "css"
    result["heads"][0]["low"] = None
    assert stability(shaped(result)) == []
