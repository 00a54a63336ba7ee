from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measured import crossed, effects_on, scattered
from scipy import sparse, stats

from caploc import designs
from caploc.recovery.estimate import Rows
from caploc.recovery.screening import (
    Effects,
    false_discovery_rates,
    fit_lasso,
    means_apart,
    one_step,
    screened,
    spike_and_slab,
)
from worlds.simulate import World


def rows_of(masks, outcome, **given_too):
    """Rows of masks, each of an example and a mask of its own unless told otherwise."""
    count = len(masks)
    zeros, numbers = np.zeros(count, dtype=int), np.arange(count)
    fields = {
        "cuts": sparse.csr_matrix(np.asarray(masks, dtype=float)),
        "mask": numbers,
        "outcome": np.asarray(outcome, dtype=float),
        "example": numbers,
        "round": zeros,
        "kind": zeros + 1,
        "weight": np.ones(count),
    }
    return Rows(**fields | given_too)


def varied_rows(seed, count=120, heads=7):
    """Rows in three rounds, several to an example and to a mask, of two weights."""
    random = np.random.default_rng(seed)
    masks = random.random((40, heads)) < random.uniform(0.25, 0.6, heads)
    mask = random.integers(0, 40, count)
    outcome = random.normal(size=count) - 2.0 * masks[mask][:, 0]
    return rows_of(
        masks[mask],
        outcome,
        mask=mask,
        example=random.integers(0, 15, count),
        round=np.sort(random.integers(0, 3, count)),
        weight=random.choice([0.5, 1.5], count),
    )


def dense_step(rows, outcome, start, weight):
    """The formulas of `screened`, with every matrix written out."""
    x, u = rows.cuts.toarray(), outcome - rows.cuts @ start
    for number in set(rows.round.tolist()):
        inside = rows.round == number
        x[inside] -= np.average(x[inside], axis=0, weights=weight[inside])
        u[inside] -= np.average(u[inside], weights=weight[inside])
    power = (weight[:, None] * x**2).sum(axis=0)
    step = (weight[:, None] * x * u[:, None]).sum(axis=0) / power
    score = weight[:, None] * x * (u[:, None] - x * step)

    def over(groups):
        numbers = sorted(set(groups.tolist()))
        sums = np.array([score[groups == number].sum(axis=0) for number in numbers])
        return (sums**2).sum(axis=0) * len(numbers) / (len(numbers) - 1)

    variance = over(rows.example)
    if len(set(rows.mask.tolist())) < len(x):
        both = variance + over(rows.mask) - over(np.arange(len(x)))
        variance = np.maximum(variance, both)
    return Effects(start + step, np.sqrt(variance) / power)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=25)
def test_effects_and_errors_are_those_of_the_formulas_written_out(seed):
    rows = varied_rows(seed)
    start = np.random.default_rng(seed).normal(size=7)
    found = one_step(rows, rows.outcome, start)
    expected = dense_step(rows, rows.outcome, start, rows.weight)
    assert found.effect == pytest.approx(expected.effect, nan_ok=True)
    assert found.stderr == pytest.approx(expected.stderr, nan_ok=True)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=10)
def test_the_screen_is_a_sparse_fit_and_one_step_from_there(seed):
    rows = varied_rows(seed)
    outcome = rows.residuals()
    x = rows.cuts.toarray() - rows.cuts.toarray().mean(axis=0)
    y = outcome - outcome.mean()
    start = spike_and_slab(x.T @ x, x.T @ y, float(y @ y), rows.count)
    assert fit_lasso(rows.cuts, outcome) == pytest.approx(start, abs=1e-4)
    expected = dense_step(rows, outcome, start, rows.weight)
    found = screened(rows)
    assert found.effect == pytest.approx(expected.effect, abs=1e-4)
    assert found.stderr == pytest.approx(expected.stderr, abs=1e-4)


def test_intervals_and_tests_are_students():
    effect, stderr = np.array([-0.3, 0.1, np.nan, 0.2]), np.array([0.1, 0.1, np.nan, 0.0])
    found = Effects(effect, stderr, np.array([4.0, np.inf, 1.0, 9.0]))
    t, z = stats.t(4), stats.norm
    assert found.half_width()[:2] == pytest.approx([0.1 * t.ppf(0.975), 0.1 * z.ppf(0.975)])
    assert found.p()[:2] == pytest.approx([2 * t.sf(3), 2 * z.sf(1)])
    # Without an effect or with outcomes that never differed there is nothing to test.
    assert np.isnan(found.p()[2:]).all()
    many = replace(found, freedom=None)
    assert many.half_width()[0] == pytest.approx(0.1 * z.ppf(0.975))


def test_errors_have_the_freedom_of_their_cuts_or_examples():
    masks = np.zeros((200, 2), dtype=bool)
    masks[:20, 0], masks[:100, 1] = True, True
    rows = rows_of(masks, np.random.default_rng(0).normal(size=200))
    assert screened(rows).freedom.tolist() == [19, 99]
    few = replace(rows, example=np.arange(200) % 8)
    assert screened(few).freedom.tolist() == [7, 7]


def test_heads_left_out_are_unknown():
    found = Effects(np.array([-0.3, 0.1]), np.array([0.1, 0.1])).only(np.array([False, True]))
    assert np.isnan([found.effect[0], found.stderr[0], found.p()[0]]).all()
    assert found.effect[1] == 0.1 and found.stderr[1] == 0.1


def test_discovery_rates_are_those_of_benjamini_and_hochberg():
    """The least of p times heads over rank, from each head's rank on."""
    p = np.array([0.03, np.nan, 0.001, 0.5, 0.02])
    assert false_discovery_rates(p) == pytest.approx([0.04, np.nan, 0.004, 0.5, 0.04], nan_ok=True)
    assert np.isnan(false_discovery_rates(np.full(3, np.nan))).all()


def test_the_mean_difference_of_one_round_is_the_plain_one():
    random = np.random.default_rng(0)
    masks = random.random((300, 4)) < 0.3
    rows = rows_of(masks, random.normal(size=300) - masks[:, 1])
    left = rows.residuals()
    plain = [left[masks[:, h]].mean() - left[~masks[:, h]].mean() for h in range(4)]
    assert means_apart(rows).effect == pytest.approx(plain)


def test_the_fit_takes_other_heads_into_account_that_the_means_leave_in():
    """Heads 0 and 1 are mostly cut together; only head 0 does anything."""
    random = np.random.default_rng(1)
    masks = random.random((3000, 10)) < 0.2
    masks[:, 1] = np.where(random.random(3000) < 0.9, masks[:, 0], masks[:, 1])
    rows = rows_of(masks, random.normal(size=3000) - 1.0 * masks[:, 0])
    assert means_apart(rows).effect[1] < -0.7
    assert screened(rows).effect[1] == pytest.approx(0, abs=0.2)
    assert screened(rows).effect[0] == pytest.approx(-1, abs=0.2)


def test_a_head_drawn_more_often_in_a_harder_round_gets_no_blame_for_it():
    random = np.random.default_rng(2)
    number = np.repeat([0, 1], 2000)
    masks = random.random((4000, 3)) < np.where(number, 0.6, 0.1)[:, None]
    outcome = random.normal(size=4000) - 3.0 * number
    asked = screened(rows_of(masks, outcome, round=number))
    assert (np.abs(asked.effect) < 4 * asked.stderr).all()
    mixed = means_apart(rows_of(masks, outcome))
    assert (mixed.effect < -1).all()


def test_a_head_hardly_ever_cut_is_not_estimated():
    masks = np.zeros((60, 3), dtype=bool)
    masks[:30, 0], masks[5:7, 1] = True, True
    rows = rows_of(masks, np.random.default_rng(0).normal(size=60))
    for found in (screened(rows), means_apart(rows)):
        assert np.isfinite([found.effect[0], found.stderr[0]]).all()
        assert np.isnan([found.effect[1:], found.stderr[1:]]).all()
    single = rows_of(masks[:1], [1.0])
    assert np.isnan(screened(single).effect).all() and np.isnan(means_apart(single).effect).all()


def test_intervals_of_idle_heads_hold_nothing_as_often_as_they_say():
    """Screening rows of a few looks, over other examples and masks each time."""
    world, inside, count = World.planted(150, 5, drop=0.3, seed=3), 0, 0
    idle = np.delete(np.arange(150), world.planted_heads)
    for seed in range(4):
        seen, intact = scattered(world, 2000, size=5, examples=range(200), seed=seed)
        looked = replace(seen, rounds=np.arange(2000) // 500)
        found = screened(Rows.of(looked, intact))
        inside += (np.abs(found.effect[idle]) < found.half_width()[idle]).sum()
        count += len(idle)
    # Three standard errors of a coverage of 95 %.
    assert abs(inside / count - 0.95) < 3 * np.sqrt(0.95 * 0.05 / count)


def test_intervals_of_needed_heads_hold_what_they_do_among_others():
    """With two heads in a mask, next to nothing but the head itself is gone."""
    world = World.planted(100, 4, drop=0.3, seed=4)
    truth, z = effects_on(world, list(range(400))), []
    for seed in range(12):
        seen, intact = scattered(world, 3000, size=2, examples=range(400), seed=seed)
        found = screened(Rows.of(seen, intact))
        z.append(((found.effect - truth) / found.stderr)[world.planted_heads])
    # 48 values of a standard normal: within three standard errors of its mean and deviation.
    assert abs(np.mean(z)) < 3 / np.sqrt(48)
    assert abs(np.std(z) - 1) < 3 / np.sqrt(2 * 48)


def test_where_effects_differ_between_examples_the_error_is_that_of_few_examples():
    """Ten examples of 400 rows: the mean of ten effects, whatever the number of rows."""
    random = np.random.default_rng(5)
    masks = random.random((4000, 3)) < 0.3
    example = np.repeat(np.arange(10), 400)
    of_example = random.normal(-1, 0.5, 10)
    outcome = of_example[example] * masks[:, 0] + 0.1 * random.normal(size=4000)
    rows = rows_of(masks, outcome, example=example)
    clustered = one_step(rows, outcome, np.zeros(3))
    plain = one_step(replace(rows, example=np.arange(4000)), outcome, np.zeros(3))
    assert clustered.effect[0] == pytest.approx(of_example.mean(), abs=0.05)
    expected = of_example.std(ddof=1) / np.sqrt(10)
    assert clustered.stderr[0] == pytest.approx(expected, rel=0.1)
    assert clustered.stderr[0] > 3 * plain.stderr[0]


def test_in_a_world_of_varied_effects_clustered_errors_are_larger_than_plain_ones():
    world = World(np.full(20, 0.6), 2.0, seed=6, unsteady=1.0, varied=True)
    seen, intact = scattered(world, 4000, size=2, examples=range(25))
    rows = Rows.of(seen, intact)
    clustered = means_apart(rows).stderr
    plain = one_step(
        replace(rows, example=np.arange(rows.count)), rows.residuals(), np.zeros(20)
    ).stderr
    assert (clustered > plain).mean() > 0.8
    assert np.median(clustered / plain) > 1.3


def test_where_a_masks_rows_go_together_the_error_is_that_of_few_masks():
    """Forty masks, each with a luck of its own: 50 rows of it are not 50 looks at its heads."""
    random = np.random.default_rng(7)
    errors, said = [], []
    for _ in range(200):
        masks = random.random((40, 2)) < 0.5
        mask = np.repeat(np.arange(40), 50)
        outcome = random.normal(size=40)[mask] + 0.1 * random.normal(size=2000)
        example = np.tile(np.arange(50), 40)
        rows = rows_of(masks[mask], outcome, mask=mask, example=example)
        found = one_step(rows, outcome, np.zeros(2))
        errors.append(found.effect)
        said.append(found.stderr)
    # The true effect is 0; the deviation of 400 estimates is known to 3.5 %.
    assert np.sqrt(np.mean(np.square(said))) == pytest.approx(np.std(errors), rel=0.15)


def test_a_crossed_design_of_many_masks_and_few_examples_covers_too():
    world, inside, count = World.planted(30, 3, drop=0.3, seed=8), 0, 0
    idle = np.delete(np.arange(30), world.planted_heads)
    for seed in range(8):
        masks = designs.stratified(30, 60, rate=0.1, seed=seed)
        examples = list(range(50 * seed, 50 * seed + 50))
        found = screened(Rows.of(*crossed(world, masks, examples)))
        inside += (np.abs(found.effect[idle]) < found.half_width()[idle]).sum()
        count += len(idle)
    # Sixty masks make a normal interval a little short: it may miss five points more.
    assert 0.90 - 3 * np.sqrt(0.9 * 0.1 / count) < inside / count
