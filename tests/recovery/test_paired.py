import numpy as np
import pytest
from measured import crossed
from scipy import stats

from caploc import designs
from caploc.recovery import (
    REPEATABLE,
    Measurements,
    falls,
    falls_short,
    fit_paired,
    matched_pairs,
    sign_test,
)
from worlds.simulate import World


def alone(outcomes, intact):
    """The fit of one head, on an example for each pair of outcomes."""
    examples = np.arange(len(outcomes))
    seen = Measurements(np.eye(2, dtype=bool)[:1], 0 * examples, examples, np.array(outcomes))
    return fit_paired(seen, dict(enumerate(intact)))


def test_measures_have_students_interval():
    outcomes, intact = np.array([0.5, 1.5, 1.0, 0.0]), [1.0, 1.75, 1.0, 0.25]
    estimate, differences = alone(outcomes, intact), outcomes - intact
    half = stats.t.ppf((1 + REPEATABLE) / 2, 3) * differences.std(ddof=1) / 2
    assert estimate.effect[0] == pytest.approx(differences.mean())
    assert estimate.low[0] == pytest.approx(differences.mean() - half)
    assert estimate.high[0] == pytest.approx(differences.mean() + half)
    assert estimate.q[0] == pytest.approx(stats.ttest_1samp(differences, 0).pvalue)
    assert np.isnan([estimate.effect[1], estimate.q[1]]).all()


def test_right_and_wrong_have_the_interval_and_p_of_matched_pairs():
    estimate = alone([0.0, 1.0, 1.0, 0.0, 1.0, 0.0], [1.0, 1.0, 1.0, 0.0, 1.0, 1.0])
    differences = np.array([-1, 0, 0, 0, 0, -1.0])
    assert estimate.effect[0] == pytest.approx(-1 / 3)
    assert (estimate.low[0], estimate.high[0]) == matched_pairs(differences, REPEATABLE)
    # two losses and no gain: 2 x 1/4, less half of what both tails hold
    assert estimate.q[0] == pytest.approx(0.25)


def test_measures_without_spread_are_certain_only_if_not_zero():
    assert alone([2.5] * 4, [2.5] * 4).q[0] == 1
    assert alone([1.5] * 4, [2.5] * 4).q[0] == 0


def test_as_many_losses_as_gains_are_no_change():
    assert alone([0.0, 1.0, 1.0], [1.0, 0.0, 1.0]).q[0] == pytest.approx(0.5)
    assert alone([1.0, 1.0], [1.0, 1.0]).q[0] == 1.0


@pytest.mark.parametrize(
    ("losses", "gains", "p"),
    # binomial tails of fair coins, the last term halved
    [
        (0, 0, 0.5),
        (1, 0, 0.25),
        (4, 0, 1 / 32),
        (5, 1, (1 + 6 / 2) / 64),
        (1, 4, 1 - (1 + 5 / 2) / 32),
    ],
)
def test_a_fall_is_tested_on_one_side(losses, gains, p):
    differences = np.array([-1.0] * losses + [1.0] * gains + [0.0] * 7)
    assert falls(differences, binary=True) == pytest.approx(p)


def test_the_fall_of_a_measure_is_tested_by_students_t():
    differences = np.array([-0.5, -0.1, 0.2, -0.7])
    for sign in (1, -1):
        reference = stats.ttest_1samp(sign * differences, 0, alternative="less").pvalue
        assert falls(sign * differences, binary=False) == pytest.approx(reference)


def test_two_answers_lost_of_two_are_no_proof():
    estimate = alone([0.0, 0.0], [1.0, 1.0])
    assert estimate.q[0] == pytest.approx(0.25) and estimate.low[0] == -1 < estimate.high[0]


@pytest.mark.parametrize(
    ("count", "loses", "gains"),
    [(25, 0.1, 0.0), (40, 0.2, 0.05), (25, 1, 0), (200, 0.005, 0), (100, 0.03, 0), (40, 0.3, 0),
     (40, 0.9, 0), (100, 0.05, 0.05), (60, 0.1, 0.02)],
)  # fmt: skip
def test_intervals_of_few_pairs_hold_the_truth_as_often_as_they_say(count, loses, gains):
    random = np.random.default_rng(0)
    kinds = [loses, gains, 1 - loses - gains]
    held = 0
    for _ in range(2000):
        low, high = matched_pairs(random.choice([-1.0, 1.0, 0.0], count, p=kinds))
        held += low <= gains - loses <= high
    assert held / 2000 > 0.93


@pytest.mark.parametrize(("loses", "gains"), [(0.7, 0.02), (0.5, 0.02), (0.2, 0.05), (0.1, 0.03)])
def test_what_two_hundred_others_show_lies_in_the_interval_of_seventy_five(loses, gains):
    random = np.random.default_rng(0)
    kinds, truth, repeated = [loses, gains, 1 - loses - gains], 0, 0
    for _ in range(2000):
        low, high = matched_pairs(random.choice([-1.0, 1.0, 0.0], 75, p=kinds), REPEATABLE)
        truth += low <= gains - loses <= high
        repeated += low <= random.choice([-1.0, 1.0, 0.0], 200, p=kinds).mean() <= high
    assert repeated / 2000 > 0.92 and 0.95 < truth / 2000 < 0.98


def test_p_of_no_change_is_rarely_small_where_nothing_changes():
    random = np.random.default_rng(1)
    draws = random.choice([-1.0, 0.0, 1.0], (4000, 60), p=[0.1, 0.8, 0.1])
    p = np.array([sign_test(differences) for differences in draws])
    assert 0.03 < (p < 0.05).mean() < 0.06


def test_a_single_difference_has_an_effect_and_no_interval():
    seen = Measurements(
        np.eye(1, dtype=bool), np.zeros(1, dtype=int), np.zeros(1, dtype=int), np.zeros(1)
    )
    estimate = fit_paired(seen, {0: 1.0})
    assert estimate.effect[0] == -1
    assert np.isnan([estimate.low[0], estimate.high[0], estimate.q[0]]).all()


def test_a_heads_rows_count_together_however_many_plans_they_came_in():
    """Adaptive searches ask a head again on further examples: that is one sample, not two."""
    world = World.planted(6, 2, drop=0.4, seed=1)
    masks = designs.singles(6)
    first, before = crossed(world, masks, list(range(30)))
    second, after = crossed(world, masks[[1, 4]], list(range(30, 50)))
    estimate = fit_paired(first.joined(second), before | after)
    whole, intact = crossed(world, masks, list(range(50)))
    reference = fit_paired(whole, intact)
    assert estimate.effect[[1, 4]].tolist() == reference.effect[[1, 4]].tolist()
    assert estimate.low[[1, 4]].tolist() == reference.low[[1, 4]].tolist()
    assert estimate.effect[0] == fit_paired(first, before).effect[0]


def test_masks_of_several_heads_say_nothing_of_heads_alone():
    world = World.planted(6, 2, drop=0.4, seed=1)
    pairs = np.array([[1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0]], dtype=bool)
    estimate = fit_paired(*crossed(world, pairs, list(range(20))))
    assert np.isnan(estimate.effect).all()


def changes(losses, gains, count):
    return np.array([-1.0] * losses + [1.0] * gains + [0.0] * (count - losses - gains))


@pytest.mark.parametrize("gains", [0.0, 0.01, 0.1])
@pytest.mark.parametrize("count", [60, 150, 240, 400])
@pytest.mark.parametrize("price", [0.02, 0.03])
def test_a_fall_of_the_price_seldom_passes_for_less(price, count, gains):
    """By every number of losses and gains that may come, at the least true fall that is one."""
    level, wrongly = 0.025, 0.0
    for gained in range(int(count * gains * 2.5) + 6 if gains else 1):
        chance = stats.binom.pmf(gained, count, gains)
        lost = np.arange(count - gained + 1)
        chances = stats.binom.pmf(lost, count - gained, (price + gains) / (1 - gains))
        for one in lost[chances > 1e-9]:
            p = falls_short(changes(one, gained, count), price, binary=True)
            wrongly += chance * chances[one] * (p <= level)
    assert wrongly <= 1.05 * level


def test_no_answer_lost_of_many_is_less_than_the_price():
    assert falls_short(changes(0, 0, 240), 0.02, binary=True) < 0.025
    assert falls_short(changes(1, 0, 240), 0.02, binary=True) > 0.025  # 46 of 1000 have no more
    assert falls_short(changes(1, 0, 300), 0.02, binary=True) < 0.025
    assert falls_short(changes(30, 30, 2000), 0.02, binary=True) < 0.001
    assert falls_short(changes(0, 0, 5), 1.0, binary=True) < 0.025


def test_a_measure_falls_short_of_the_price_by_students_t():
    differences = np.array([-0.5, -0.1, 0.2, -0.7])
    reference = stats.ttest_1samp(differences, -0.4, alternative="greater").pvalue
    assert falls_short(differences, 0.4, binary=False) == pytest.approx(reference)
    assert falls_short(np.full(4, -0.4), 0.5, binary=False) == 0
    assert falls_short(np.full(4, -0.6), 0.5, binary=False) == 1
