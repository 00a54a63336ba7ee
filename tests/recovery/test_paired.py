import numpy as np
import pytest
from measured import crossed
from scipy import stats

from caploc import designs
from caploc.recovery import Measurements, PairedDifferences
from caploc.simulate import World


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


def test_a_single_difference_has_an_effect_and_no_interval():
    seen = Measurements(
        np.eye(1, dtype=bool), np.zeros(1, dtype=int), np.zeros(1, dtype=int), np.zeros(1)
    )
    estimate = PairedDifferences().fit(seen, {0: 1.0})
    assert estimate.effect[0] == -1
    assert np.isnan([estimate.low[0], estimate.high[0], estimate.q[0]]).all()


def test_a_heads_rows_count_together_however_many_plans_they_came_in():
    """Adaptive searches ask a head again on further examples: that is one sample, not two."""
    world = World.planted(6, 2, drop=0.4, seed=1)
    masks = designs.singles(6)
    first, before = crossed(world, masks, list(range(30)))
    second, after = crossed(world, masks[[1, 4]], list(range(30, 50)))
    estimate = PairedDifferences().fit(first.joined(second), before | after)
    whole, intact = crossed(world, masks, list(range(50)))
    reference = PairedDifferences().fit(whole, intact)
    assert estimate.effect[[1, 4]].tolist() == reference.effect[[1, 4]].tolist()
    assert estimate.low[[1, 4]].tolist() == reference.low[[1, 4]].tolist()
    assert estimate.effect[0] == PairedDifferences().fit(first, before).effect[0]


def test_masks_of_several_heads_say_nothing_of_heads_alone():
    world = World.planted(6, 2, drop=0.4, seed=1)
    pairs = np.array([[1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0]], dtype=bool)
    estimate = PairedDifferences().fit(*crossed(world, pairs, list(range(20))))
    assert np.isnan(estimate.effect).all()


def test_paired_intervals_cover_the_true_effect_as_often_as_they_say():
    world = World.planted(40, 3, drop=0.3, seed=5)
    truth, covered = world.single_effects(), []
    masks = designs.singles(40)[world.planted_heads]
    for repeat in range(60):
        examples = list(range(100 * repeat, 100 * (repeat + 1)))
        estimate = PairedDifferences().fit(*crossed(world, masks, examples))
        covered.append((estimate.low <= truth) & (truth <= estimate.high))
    planted = np.array(covered)[:, world.planted_heads]
    # 180 intervals: three standard errors of a 95 % coverage are 4.9 points.
    assert 0.90 <= planted.mean() <= 1.0
