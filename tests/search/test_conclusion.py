from dataclasses import replace

import numpy as np
import pytest
from concluded import WORLD, looked
from driven import drive, inside, problem
from scipy import stats

from caploc.recovery.screening import (
    GIVE_OR_TAKE,
    LEAST_SCALE,
    Effects,
    Scale,
    calibrate,
    joined,
)
from caploc.search import METHODS
from caploc.search.conclusion import LEVEL
from worlds.simulate import World


def effects(effect, stderr, freedom=None):
    given = [np.array(values, dtype=float) for values in (effect, stderr)]
    return Effects(*given, None if freedom is None else np.array(freedom, dtype=float))


def test_two_estimates_are_joined_by_their_precision():
    one = effects([-0.2, -0.2, np.nan, np.nan], [0.1, 0.1, np.nan, np.nan])
    other = effects([-0.5, np.nan, 0.3, np.nan], [0.2, np.nan, 0.1, np.nan])
    both = joined(one, other)
    # Precisions 100 and 25.
    assert both.effect[:3] == pytest.approx([(-20 - 12.5) / 125, -0.2, 0.3])
    assert both.stderr[:3] == pytest.approx([125**-0.5, 0.1, 0.1])
    assert np.isnan([both.effect[3], both.stderr[3]]).all()


def test_degrees_of_freedom_are_joined_as_welch_and_satterthwaite_do():
    one, other = effects([0.0, 0.0], [0.1, 0.1], [9, 9]), effects([0.0] * 2, [0.2] * 2, [4, np.inf])
    freedom = joined(one, other).freedom
    assert freedom == pytest.approx([125**2 / (100**2 / 9 + 25**2 / 4), 125**2 / (100**2 / 9)])


def test_outcomes_that_never_differed_are_no_perfect_estimate():
    both = joined(effects([0.0, 0.0], [0.0, 0.0]), effects([-0.3, np.nan], [0.1, np.nan]))
    assert both.effect[0] == -0.3 and both.stderr[0] == pytest.approx(0.1)
    assert np.isnan(both.effect[1])


@pytest.mark.parametrize("doubt", [0.5, 0.1])
def test_the_scale_is_the_most_probable_factor_and_stretch(doubt):
    """On a grid: the priors times the likelihood of what heads do alone."""
    random = np.random.default_rng(0)
    x, stderr = np.array([-0.3, -0.2, -0.05, 0.01]), np.array([0.04, 0.03, 0.02, 0.01])
    error = np.array([0.1, 0.05, 0.05, 0.02])
    alone = 0.6 * x + np.hypot(error, 2 * 0.6 * stderr) * random.normal(size=4)
    factor, stretch = (
        each[..., None] for each in np.meshgrid(np.linspace(0.1, 2, 951), np.linspace(-2, 2, 801))
    )
    spread = np.hypot(error, np.exp(stretch) * factor * stderr)
    log_density = stats.norm.logpdf(alone, factor * x, spread).sum(axis=2)
    log_density += stats.norm.logpdf(factor[..., 0], 1, GIVE_OR_TAKE)
    log_density += stats.norm.logpdf(stretch[..., 0], 0, doubt)
    best = np.unravel_index(log_density.argmax(), log_density.shape)
    found = calibrate(effects(x, stderr), effects(alone, error), doubt)
    assert found.factor == pytest.approx(factor[(*best, 0)], abs=0.003)
    assert np.log(found.stretch) == pytest.approx(stretch[(*best, 0)], abs=0.01)


def test_without_heads_that_have_both_estimates_the_scale_is_one():
    first, unknown = effects([-0.1, -0.2], [0.1, 0.1]), Effects.unknown(2)
    assert calibrate(first, unknown, 0.5) == Scale(1.0, 1.0)
    lacking = effects([np.nan, -0.2], [np.nan, 0.1])
    assert calibrate(lacking, effects([-0.1, np.nan], [0.1, np.nan]), 0.5) == Scale()
    # A head alone on a single example has an effect and no error.
    assert calibrate(first, effects([-1.0, 0.0], [np.nan, np.nan]), 0.5) == Scale()


def test_the_scale_never_turns_effects_around():
    opposite = effects([0.5, 0.5], [0.001, 0.001])
    found = calibrate(effects([-0.5, -0.5], [0.01, 0.01]), opposite, 0.5)
    assert found.factor == LEAST_SCALE > 0


def test_a_scale_is_applied_to_effects_and_errors():
    first = effects([-0.4, 0.1], [0.1, 0.2])
    scaled = Scale(0.5, 2.0).apply(first)
    assert scaled.effect == pytest.approx([-0.2, 0.05])
    assert scaled.stderr == pytest.approx([0.1, 0.2])


def test_planted_heads_are_named_and_lead_the_ranking():
    concluded = looked()
    assert set(concluded.named) == set(WORLD.planted_heads)
    assert concluded.ranking[:4] == concluded.named
    assert sorted(concluded.ranking) == list(range(40))
    assert (concluded.q[concluded.named] < LEVEL).all()
    assert concluded.expected_recall > 0.95 and concluded.tied == []


def test_no_more_heads_are_named_than_asked_for():
    assert len(looked(top=2).named) == 2
    assert len(looked(top=40).named) < 10


def test_heads_that_help_when_gone_are_never_named():
    world = World(np.where(np.arange(40) < 3, -2.0, 0.0), 0.0, 0)
    concluded = looked(world=world, checked=0, ask=World.logprobs)
    assert (concluded.q[:3] > 0.9).all() and (concluded.both.effect[:3] > 0).all()
    assert not set(concluded.named) & {0, 1, 2}


def test_struck_heads_are_last_and_never_on_top():
    struck = tuple(WORLD.planted_heads[:2])
    concluded = looked(struck=struck)
    assert set(concluded.ranking[-2:]) == set(struck)
    assert (concluded.chances[list(struck)] == 0).all()
    assert set(concluded.named) == set(WORLD.planted_heads[2:])
    assert not set(concluded.contested) & set(struck)


def test_the_expected_recall_is_the_mean_chance_of_the_first():
    concluded = looked(rows=300, checked=10)
    expected = concluded.chances[concluded.ranking[:4]].mean()
    assert concluded.expected_recall == pytest.approx(expected)
    assert 0.2 < expected < 1


def test_contested_heads_are_on_the_shortlist_and_of_open_chance():
    concluded = looked(rows=300, checked=10)
    assert concluded.contested and set(concluded.contested) <= set(concluded.shortlist.heads)
    chances = concluded.chances[concluded.contested]
    assert (chances > 0).all() and (chances < 1).all()


def test_effects_and_intervals_are_those_of_the_posterior_and_near_the_truth():
    concluded = looked()
    estimate, alone = concluded.estimate(), concluded.alone
    checked = np.zeros(40, dtype=bool)
    checked[concluded.shortlist.heads] = True
    assert np.isfinite(estimate.effect).all()
    assert estimate.effect[checked] == pytest.approx(alone.effect[checked], abs=0.1)
    assert ((estimate.low <= estimate.effect) & (estimate.effect <= estimate.high)).all()
    posterior = concluded.posterior
    spread = np.where(posterior.spread > 0, posterior.spread, posterior.resolution)
    drawn = replace(posterior, spread=spread).draws(20_000, seed=9)
    outside = ((drawn < estimate.low) | (drawn > estimate.high)).mean(axis=0)
    assert outside[~concluded.tried] == pytest.approx(0.05, abs=0.01)
    assert (estimate.top_chance == concluded.chances).all()
    truth = WORLD.single_effects()[WORLD.planted_heads]
    assert estimate.effect[WORLD.planted_heads] == pytest.approx(truth, abs=0.2)


def test_the_effect_of_a_struck_head_is_that_alone():
    struck = WORLD.planted_heads[0]
    estimate = looked(struck=(struck,)).estimate()
    told = looked().shortlist.estimate()
    assert estimate.effect[struck] == told.effect[struck]
    assert (estimate.low[struck], estimate.high[struck]) == (told.low[struck], told.high[struck])


def test_without_a_shortlist_the_screen_speaks():
    concluded = looked(checked=0)
    assert concluded.scale == Scale()
    assert concluded.both.effect == pytest.approx(concluded.first.effects().effect)
    assert set(concluded.named) == set(WORLD.planted_heads)


def test_more_rows_are_forecast_to_help_and_never_beyond_all():
    gains = []
    for seed in range(5):
        concluded = looked(rows=300, checked=10, seed=seed)
        twice, fourfold = concluded.forecast().values()
        assert list(concluded.forecast()) == ["2", "4"]
        assert 0 < twice <= 1 and 0 < fourfold <= 1
        gains += [twice - concluded.expected_recall, fourfold - twice]
    assert np.mean(gains) > 0


def test_forecasts_do_not_promise_what_more_rows_will_not_keep():
    promised, kept = [], []
    for seed in range(8):
        world = World.planted(40, 4, drop=0.35, seed=seed)
        promised.append(looked(world=world, rows=300, checked=0, seed=seed).forecast()["2"])
        found = looked(world=world, rows=600, checked=0, seed=seed + 50).ranking[:4]
        kept.append(len(set(found) & set(world.planted_heads)) / 4)
    assert 0.3 < np.mean(promised) < np.mean(kept) + 0.05


def test_a_forecast_needs_no_more_heads_than_are_left():
    concluded = looked(world=World.planted(6, 2, seed=1), top=5, struck=(0, 1, 2))
    assert all(0 < recall <= 1 for recall in concluded.forecast().values())
    nothing = looked(world=World.planted(6, 2, seed=1), top=5, struck=tuple(range(6)))
    assert all(np.isfinite(list(nothing.forecast().values())))


def test_heads_that_hardly_differ_at_the_border_are_tied():
    """Four heads of the same effect, two of which are asked for."""
    shifts = np.where(np.isin(np.arange(40), [3, 8, 20, 31]), 2.0, 0.0)
    concluded = looked(world=World(shifts, 2.5, 0), rows=6000, top=2, checked=0)
    assert len(concluded.tied) > 1 and set(concluded.tied) <= {3, 8, 20, 31}
    inside = looked(world=World(shifts, 2.5, 0), rows=6000, top=4, checked=0)
    assert inside.tied == []  # all four of them belong to the top


@pytest.mark.slow
def test_where_nothing_matters_no_head_has_a_small_q():
    """The few heads of the shortlist do not tell how far the errors of all others are wrong."""
    sure = 0
    for seed in range(6):
        world = World.of_kind("null", seed=seed, layers=12, width=12)
        run = drive(METHODS["adaptive"].search(problem(144, budget=1200, seed=seed)), inside(world))
        sure += int((run.found.estimate.q < LEVEL).sum())
    assert sure <= 1
