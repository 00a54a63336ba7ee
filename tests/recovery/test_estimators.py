import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.linear_model import Lasso

from caploc import designs
from caploc.recovery import ESTIMATORS, Measurements, PairedDifferences, PaperLasso
from caploc.search import Plan
from caploc.simulate import World


def crossed(masks, scores):
    """One example per mask, whose outcome is the mask's score."""
    count = len(masks)
    zeros = np.zeros(count, dtype=int)
    return Measurements(masks, np.arange(count), zeros, np.asarray(scores, dtype=float))


def measured(world, masks, examples):
    plan = Plan.crossed(masks, examples)
    outcomes = world.outcomes(plan.masks[plan.mask], plan.example)
    intact = world.outcomes(np.zeros((len(examples), world.heads), dtype=bool), np.array(examples))
    seen = Measurements(plan.masks, plan.mask, plan.example, outcomes)
    return seen, dict(zip(examples, intact.tolist(), strict=True))


@given(st.integers(0, 10**6))
@settings(max_examples=20)
def test_the_papers_lasso_is_scikit_learns_on_standardised_scores(seed):
    random = np.random.default_rng(seed)
    masks = random.random((60, 25)) < 0.1
    scores = random.normal(size=60) - masks[:, 3]
    standard = (scores - scores.mean()) / scores.std()
    reference = Lasso(alpha=0.01, max_iter=5000).fit(masks.astype(float), standard)
    effect = PaperLasso().fit(crossed(masks, scores), {}).effect
    measured_heads = masks.any(axis=0)
    expected = reference.coef_[measured_heads] * scores.std()
    assert np.array_equal(effect[measured_heads], expected)
    assert np.isnan(effect[~measured_heads]).all()


def test_on_an_orthogonal_design_the_lasso_is_a_soft_threshold():
    """Each coefficient is its covariance, shrunk by alpha over the column's variance."""
    masks = np.array([[a, b] for a in (False, True) for b in (False, True)] * 25)
    scores = 1.0 - 0.6 * masks[:, 0] - 0.002 * masks[:, 1]
    effect = PaperLasso().fit(crossed(masks, scores), {}).effect
    spread = scores.std()
    # alpha = 0.01 on standardised scores, and a column's variance is 1/4.
    assert effect[0] == pytest.approx(-0.6 + 0.01 * spread / 0.25, rel=1e-3)
    assert effect[1] == 0


def test_scores_that_do_not_vary_say_nothing():
    masks = designs.stratified(10, 20, rate=0.2, seed=0)
    estimate = PaperLasso().fit(crossed(masks, np.ones(20)), {})
    assert (estimate.effect == 0).all()
    assert np.isnan(estimate.r2_held_out)
    assert estimate.needed(5) == []


def test_held_out_fit_is_high_for_additive_scores_and_low_for_noise():
    masks = designs.stratified(20, 300, rate=0.2, seed=0)
    random = np.random.default_rng(0)
    additive = 1 - 0.3 * masks[:, 2] - 0.2 * masks[:, 7] + 0.01 * random.normal(size=300)
    assert PaperLasso().fit(crossed(masks, additive), {}).r2_held_out > 0.95
    assert PaperLasso().fit(crossed(masks, random.normal(size=300)), {}).r2_held_out < 0.1


def test_paired_differences_are_means_with_students_interval():
    outcomes = np.array([0.0, 1.0, 1.0, 0.0, 1.0, 0.0])
    intact = {0: 1.0, 1: 1.0, 2: 1.0, 3: 0.0, 4: 1.0, 5: 1.0}
    seen = Measurements(np.eye(2, dtype=bool)[:1], np.zeros(6, dtype=int), np.arange(6), outcomes)
    estimate = PairedDifferences().fit(seen, intact)
    differences = np.array([-1, 0, 0, 0, 0, -1.0])
    half = stats.t.ppf(0.975, 5) * differences.std(ddof=1) / np.sqrt(6)
    assert estimate.effect[0] == pytest.approx(-1 / 3)
    assert estimate.low[0] == pytest.approx(-1 / 3 - half)
    assert estimate.high[0] == pytest.approx(-1 / 3 + half)
    assert estimate.q[0] == pytest.approx(stats.ttest_1samp(differences, 0).pvalue)
    assert np.isnan([estimate.effect[1], estimate.q[1]]).all()


def test_differences_without_spread_are_certain_only_if_not_zero():
    masks = np.eye(2, dtype=bool)
    seen = Measurements(
        masks, np.repeat([0, 1], 4), np.tile(np.arange(4), 2), np.array([1.0] * 4 + [0.0] * 4)
    )
    estimate = PairedDifferences().fit(seen, dict.fromkeys(range(4), 1.0))
    assert estimate.effect.tolist() == [0, -1]
    assert estimate.q.tolist() == [1, 0]


def test_paired_intervals_cover_the_true_effect_as_often_as_they_say():
    world = World.planted(40, 3, drop=0.3, seed=5)
    covered = []
    for repeat in range(60):
        examples = list(range(100 * repeat, 100 * (repeat + 1)))
        estimate = PairedDifferences().fit(*measured(world, designs.singles(40), examples))
        truth = world.single_effects()
        covered.append((estimate.low <= truth) & (truth <= estimate.high))
    planted = np.array(covered)[:, world.planted_heads]
    # 180 intervals: three standard errors of a 95 % coverage are 4.9 points.
    assert 0.90 <= planted.mean() <= 1.0


@pytest.mark.parametrize("name", ESTIMATORS)
class TestEveryEstimator:
    """The contract: planted truth, scale, order of heads, missing outcomes."""

    def estimate(self, name, world, examples=range(80), masks=150):
        drawn = designs.singles(world.heads)
        if name == "lasso":
            drawn = designs.stratified(world.heads, masks, rate=0.1, seed=1)
        return ESTIMATORS[name]().fit(*measured(world, drawn, list(examples)))

    def test_finds_planted_heads(self, name):
        world = World.planted(40, 3, drop=0.3, seed=2)
        estimate = self.estimate(name, world)
        assert set(estimate.needed(3)) == set(world.planted_heads)

    def test_effects_scale_with_outcomes(self, name):
        world = World.planted(30, 2, drop=0.3, seed=3)
        drawn = designs.singles(30)
        if name == "lasso":
            drawn = designs.stratified(30, 100, rate=0.1, seed=1)
        seen, intact = measured(world, drawn, list(range(50)))
        scaled = Measurements(seen.masks, seen.mask, seen.example, 7 * seen.outcome)
        first = ESTIMATORS[name]().fit(seen, intact)
        second = ESTIMATORS[name]().fit(scaled, {e: 7 * o for e, o in intact.items()})
        assert np.allclose(7 * first.effect, second.effect, atol=1e-6)

    def test_renumbered_heads_keep_their_effects(self, name):
        world = World.planted(30, 2, drop=0.3, seed=4)
        drawn = designs.singles(30)
        if name == "lasso":
            drawn = designs.stratified(30, 100, rate=0.1, seed=1)
        seen, intact = measured(world, drawn, list(range(50)))
        order = np.random.default_rng(0).permutation(30)
        turned = Measurements(seen.masks[:, order], seen.mask, seen.example, seen.outcome)
        first = ESTIMATORS[name]().fit(seen, intact).effect[order]
        second = ESTIMATORS[name]().fit(turned, intact).effect
        # Coordinate descent stops within its own tolerance of the optimum, from either order.
        assert np.allclose(first, second, atol=2e-3, equal_nan=True)

    def test_outcomes_that_could_not_be_scored_are_left_out(self, name):
        world = World.planted(30, 2, drop=0.3, seed=4)
        drawn = designs.singles(30)
        if name == "lasso":
            drawn = designs.stratified(30, 100, rate=0.1, seed=1)
        seen, intact = measured(world, drawn, list(range(50)))
        outcome = seen.outcome.copy()
        outcome[::17] = np.nan
        estimate = ESTIMATORS[name]().fit(
            Measurements(seen.masks, seen.mask, seen.example, outcome), intact
        )
        assert set(estimate.needed(2)) == set(world.planted_heads)
