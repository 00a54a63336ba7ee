"""Localization strength against known arithmetic and simulated examples; trends against scipy."""

import json
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from caploc.errors import BadOption, UnknownName
from caploc.stats.localization import Scores, Strength, localization, share_lost, trend

SOLID = Scores(0.8, 0.01, 0.3, 0.015)


def measured(strength, stderr=0.0):
    return Strength(strength, stderr, 0.0, 0.0, strength, stderr, 0.0, 0.0)


def of_models(values, stderr=0.0):
    """Strengths and sizes of models that grow in this order."""
    strengths = {f"m{n}": measured(float(value), stderr) for n, value in enumerate(values)}
    return strengths, {name: 10.0**n for n, name in enumerate(strengths)}


class TestShare:
    def test_the_papers_math_heads(self):
        """Llama-3.1-8B: GSM8K .7847 to .3010 (62 %), the general tasks' mean .7166 to .7058."""
        task = Scores(0.7847, 0.011, 0.3010, 0.0126)
        general = Scores(0.7166, 0.004, 0.7058, 0.004, chance=0.3125)
        told = localization(task, general)
        assert told.task_loss == pytest.approx(0.6164, abs=1e-4)
        assert told.general_loss == pytest.approx(0.0108 / 0.4041)
        assert told.strength == pytest.approx(told.task_loss - told.general_loss)
        assert told.stderr == pytest.approx(np.hypot(told.task_stderr, told.general_stderr))
        assert (told.low, told.high) == pytest.approx(
            (told.strength - 1.96 * told.stderr, told.strength + 1.96 * told.stderr)
        )
        assert json.loads(json.dumps(told.as_dict())) == told.as_dict()

    def test_all_is_lost_at_chance_and_nothing_where_nothing_changes(self):
        at_chance = Scores(0.75, 0.01, 0.25, 0.01, chance=0.25)
        assert share_lost(at_chance)[0] == pytest.approx(1)
        same = replace(at_chance, knocked_out=0.75, change_stderr=0.0)
        lost, error = share_lost(same)
        assert (lost, error) == pytest.approx((0, 0))

    def test_an_exact_intact_score_leaves_the_error_of_the_other_alone(self):
        lost, error = share_lost(Scores(0.9, 0.0, 0.4, 0.02, chance=0.1))
        assert (lost, error) == pytest.approx((0.625, 0.02 / 0.8))

    @given(
        intact=st.floats(0.4, 1.0),
        cut=st.floats(0.0, 1.0),
        errors=st.tuples(st.floats(0.001, 0.05), st.floats(0.001, 0.05)),
        correlation=st.floats(-1, 1),
        chance=st.floats(0, 0.25),
    )
    def test_the_error_is_the_gradient_through_the_covariance(
        self, intact, cut, errors, correlation, chance
    ):
        covariance = correlation * errors[0] * errors[1]
        matrix = np.array([[errors[0] ** 2, covariance], [covariance, errors[1] ** 2]])
        change = np.sqrt(max(np.array([1, -1]) @ matrix @ np.array([1, -1]), 0))

        def share(point):
            return (point[0] - point[1]) / (point[0] - chance)

        step, here = 1e-6, np.array([intact, cut])
        gradient = [
            (share(here + move) - share(here - move)) / (2 * step) for move in np.eye(2) * step
        ]
        lost, error = share_lost(Scores(intact, errors[0], cut, errors[1], change, chance))
        assert lost == pytest.approx(share(here))
        assert error == pytest.approx(np.sqrt(max(gradient @ matrix @ gradient, 0)), abs=1e-5)

    def test_not_knowing_the_error_of_the_change_is_cautious_where_examples_stay_hard(self):
        known = replace(SOLID, change_stderr=0.014)
        assert share_lost(SOLID)[1] > share_lost(known)[1]

    def test_errors_that_cannot_belong_together_are_brought_to_what_can_be(self):
        for change in (0.0, 1.0):
            assert np.isfinite(share_lost(replace(SOLID, change_stderr=change))[1])
        assert share_lost(replace(SOLID, change_stderr=0.0))[1] == pytest.approx(
            abs(0.375 * 0.01 - 0.015) / 0.8
        )

    @pytest.mark.parametrize(
        "scores",
        [Scores(0.26, 0.01, 0.2, 0.01, chance=0.25), Scores(0.2, 0.001, 0.1, 0.01, chance=0.25)],
    )
    def test_a_task_that_the_model_cannot_do_has_no_share_to_lose(self, scores):
        with pytest.raises(BadOption, match="not clearly above chance"):
            share_lost(scores)


def test_intervals_of_simulated_examples_hold_the_truth_and_match_the_bootstrap():
    """Examples right intact with 0.8, and of these a known share is lost; elsewhere a twentieth."""
    random = np.random.default_rng(1)
    held, ratios = 0, []
    for number in range(400):
        scores = []
        for share, count, chance in ((0.6, 250, 0.0), (0.05, 800, 0.25)):
            intact = random.random(count) < 0.8
            cut = np.where(random.random(count) < share * (0.8 - chance) / 0.8, 0, intact)
            scores.append((intact.astype(float), cut.astype(float), chance))
        told = localization(*(scored(*each) for each in scores))
        held += told.low <= 0.55 <= told.high
        if number < 8:
            ratios.append(bootstrap(scores, random) / told.stderr)
    assert stats.binomtest(held, 400, 0.95).pvalue > 0.01
    assert np.mean(ratios) == pytest.approx(1, abs=0.03)


def scored(intact, cut, chance):
    """Scores as a run reports them."""
    return Scores(
        intact.mean(),
        stats.sem(intact),
        cut.mean(),
        stats.sem(cut),
        stats.sem(cut - intact),
        chance,
    )


def bootstrap(scores, random):
    """Standard deviation of the strength over resampled examples."""
    shares = []
    for intact, cut, chance in scores:
        picked = random.integers(0, len(intact), (2000, len(intact)))
        before, after = intact[picked].mean(axis=1), cut[picked].mean(axis=1)
        shares.append((before - after) / (before - chance))
    return (shares[0] - shares[1]).std(ddof=1)


class TestTrend:
    def test_five_models_in_perfect_order_reach_the_smallest_p_there_is(self):
        for values in ([0.1, 0.2, 0.3, 0.5, 0.6], [0.9, 0.7, 0.5, 0.3, 0.1]):
            told = trend(*of_models(values))
            assert abs(told.rho) == pytest.approx(1)
            assert told.p == told.least_p == pytest.approx(1 / 60)

    @pytest.mark.parametrize("values", [[3, 1, 2, 5, 4], [1, 2, 4, 3], [2, 1, 3], [1, 1, 2, 0, 1]])
    def test_p_is_the_share_of_orders_as_extreme(self, values):
        told = trend(*of_models(values))
        sizes = np.arange(len(values))
        here = stats.spearmanr(sizes, values).statistic
        every = [stats.spearmanr(sizes, order).statistic for order in permutations(values)]
        assert told.rho == pytest.approx(here)
        assert told.p == pytest.approx(np.mean(np.abs(every) >= abs(here) - 1e-9))
        assert told.least_p == pytest.approx(np.mean(np.abs(every) >= np.max(np.abs(every)) - 1e-9))

    def test_models_come_in_the_order_of_their_sizes_however_they_are_named(self):
        strengths = {"large": measured(0.1), "small": measured(0.9), "middle": measured(0.5)}
        told = trend(strengths, {"small": 1e9, "middle": 3e9, "large": 8e9, "other": 1e12})
        assert told.models == ["small", "middle", "large"]
        assert told.rho == pytest.approx(-1) and told.p == told.least_p == pytest.approx(1 / 3)

    def test_more_models_are_tried_in_random_orders_and_agree_with_scipy(self):
        random = np.random.default_rng(2)
        values = np.arange(12) * 0.1 + random.normal(0, 0.4, 12)
        told = trend(*of_models(values.tolist()))
        near = stats.spearmanr(np.arange(12), values)
        assert told.rho == pytest.approx(near.statistic)
        assert told.p == pytest.approx(near.pvalue, abs=0.01)
        assert told.least_p == pytest.approx(1 / 10_000)
        assert trend(*of_models(range(12))).p == told.least_p
        assert trend(*of_models(range(9))).least_p >= 2 / 362_880

    def test_without_a_trend_small_p_are_no_more_frequent_than_they_say(self):
        random = np.random.default_rng(3)
        small = sum(trend(*of_models(random.normal(size=5).tolist())).p <= 0.05 for _ in range(300))
        # Of 120 orders those with |rho| >= 0.9 and more are at most 5 %.
        assert stats.binomtest(small, 300, 0.05, alternative="greater").pvalue > 0.01

    def test_equal_strengths_have_no_trend(self):
        told = trend(*of_models([0.5, 0.5, 0.5]))
        assert (told.rho, told.p) == (None, 1.0)
        assert json.loads(json.dumps(told.as_dict(), allow_nan=False)) == told.as_dict()

    def test_mistakes_are_refused(self):
        strengths, sizes = of_models([1, 2])
        with pytest.raises(BadOption, match="needs 3 models or more; got m0, m1"):
            trend(strengths, sizes)
        with pytest.raises(UnknownName, match="parameters of m2 is not given"):
            trend(of_models([1, 2, 3])[0], sizes)
