import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from caploc.recovery.screening import (
    Posterior,
    fitted_shares,
    ladder,
    likelihood,
    shrink,
    top_chances,
)


def few_strong(random, heads=120, share=0.1, strength=0.25, error=0.05):
    """Truth of which a share is not zero, and estimates of it."""
    truth = np.where(random.random(heads) < share, strength * random.normal(size=heads), 0.0)
    stderr = error * random.uniform(0.5, 2, heads)
    return truth, truth + stderr * random.normal(size=heads), stderr


def test_estimates_with_tiny_errors_stay_and_with_huge_ones_vanish():
    effect = np.array([-0.3, 0.2, -0.3, 0.25, 0.0] * 8)
    stderr = np.array([1e-4, 1e-4, 50.0, 50.0, 1e-3] * 8)
    posterior = shrink(effect, stderr)
    sure, vague = stderr == 1e-4, stderr == 50.0
    assert posterior.mean[sure] == pytest.approx(effect[sure], abs=1e-5)
    assert posterior.deviation[sure] == pytest.approx(np.full(16, 1e-4), rel=0.01)
    # What is left is the prior: as far as known effects go, and centred on nothing.
    assert np.abs(posterior.mean[vague]).max() < 1e-3
    assert 0.1 < posterior.deviation[vague].min() < posterior.deviation[vague].max() < 0.3


@given(seed=st.integers(0, 10**6))
@settings(max_examples=30)
def test_shrinking_keeps_the_sign_and_never_grows(seed):
    _, effect, stderr = few_strong(np.random.default_rng(seed))
    mean = shrink(effect, stderr).mean
    assert (np.abs(mean) <= np.abs(effect)).all()
    assert (mean * effect >= 0).all()


def test_of_equal_estimates_the_surer_one_counts_for_more():
    _, effect, stderr = few_strong(np.random.default_rng(0))
    effect[:2], stderr[:2] = -0.2, (0.05, 0.15)
    mean = shrink(effect, stderr).mean
    assert mean[0] < mean[1] < 0


def test_a_head_without_an_estimate_has_the_prior_and_others_the_prior_given_theirs():
    """By numerical integration of prior times likelihood, the prior read off an unknown head."""
    _, effect, stderr = few_strong(np.random.default_rng(1), heads=40)
    effect[0] = np.nan
    posterior = shrink(effect, stderr)
    share, width = posterior.weight[0], posterior.spread[0]
    assert (posterior.centre[0] == 0).all() and width[0] == 0 and share.sum() == pytest.approx(1)

    grid = np.linspace(-3, 3, 60001)
    prior = stats.norm.pdf(grid[:, None], 0, width[1:]) @ share[1:]
    for head in (1, 2, int(np.nanargmax(np.abs(effect)))):
        idle = share[0] * stats.norm.pdf(effect[head], 0, stderr[head])
        density = prior * stats.norm.pdf(effect[head], grid, stderr[head])
        total, first, second = ((grid**power * density).sum() * 1e-4 for power in range(3))
        mean = first / (total + idle)
        assert posterior.mean[head] == pytest.approx(mean, abs=1e-6)
        deviation = np.sqrt(second / (total + idle) - mean**2)
        assert posterior.deviation[head] == pytest.approx(deviation, abs=1e-6)


def test_no_other_shares_make_the_estimates_likelier():
    _, effect, stderr = few_strong(np.random.default_rng(2))
    widths = ladder(effect, stderr)
    density = likelihood(effect, stderr, widths)

    def penalized(share):
        return np.log(density @ share).sum() + 10 * np.log(share[0])

    count = len(widths)
    fitted = fitted_shares(density, np.full(count, 1 / count), 10.0 * (np.arange(count) == 0))
    assert fitted.sum() == pytest.approx(1)
    random = np.random.default_rng(3)
    best = penalized(fitted)
    for _ in range(300):
        other = random.dirichlet(np.full(len(widths), 0.3))
        for step in (0.01, 0.1, 1.0):
            mixed = (1 - step) * fitted + step * np.maximum(other, 1e-12)
            assert penalized(mixed / mixed.sum()) < best + 0.02


def test_estimates_that_are_noise_alone_leave_a_prior_at_zero():
    random = np.random.default_rng(4)
    stderr = np.full(300, 0.05)
    posterior = shrink(stderr * random.normal(size=300), stderr)
    assert np.abs(posterior.mean).max() < 0.02
    assert posterior.weight[:, 0].mean() > 0.5


@pytest.mark.parametrize("stderr", [np.full(3, np.nan), np.zeros(3)])
def test_without_any_estimate_nothing_is_expected(stderr):
    posterior = shrink(np.array([0.1, np.nan, -0.1]), stderr)
    assert (posterior.mean == 0).all() and (posterior.deviation == 0).all()


def test_draws_have_the_posteriors_mean_and_deviation_and_heads_are_apart():
    random = np.random.default_rng(5)
    weight = random.dirichlet(np.ones(4), 30)
    weight[0] = [0, 0, 1, 0]
    posterior = Posterior(weight, random.normal(size=(30, 4)), random.uniform(0, 1, (30, 4)))
    drawn = posterior.draws(20000, seed=1)
    error = posterior.deviation / np.sqrt(20000)
    assert (np.abs(drawn.mean(axis=0) - posterior.mean) < 4 * error).all()
    # The variance of a mixture's draws has at most the fourth moment's error: 3 % is ample.
    assert drawn.std(axis=0) == pytest.approx(posterior.deviation, rel=0.03)
    apart = np.corrcoef(drawn.T)[np.triu_indices(30, 1)]
    assert np.abs(apart).max() < 4.5 / np.sqrt(20000)
    assert (posterior.draws(10, seed=1) == posterior.draws(10, seed=1)).all()
    assert (posterior.draws(10, seed=1) != posterior.draws(10, seed=2)).all()


@given(seed=st.integers(0, 10**6), top=st.integers(1, 12))
@settings(max_examples=30)
def test_chances_to_be_on_top_sum_to_the_size_of_the_top(seed, top):
    random = np.random.default_rng(seed)
    truth, effect, stderr = few_strong(random, heads=int(random.integers(1, 30)))
    effect[random.random(len(truth)) < 0.2] = np.nan
    chances = top_chances(shrink(effect, stderr), top, seed=seed)
    assert chances.sum() == pytest.approx(min(top, len(truth)))
    assert (chances >= 0).all() and (chances <= 1).all()


def test_the_most_negative_effects_are_on_top():
    effect = np.concatenate([[-0.5, 0.6, -0.3, -0.4], np.zeros(30)])
    chances = top_chances(shrink(effect, np.full(34, 0.01)), 3)
    assert np.flatnonzero(chances > 0.99).tolist() == [0, 2, 3]
    assert chances[1] == 0


def test_among_idle_heads_chance_decides_and_not_the_column():
    chances = top_chances(shrink(np.zeros(50), np.full(50, 0.1)), 10)
    # 1,000 draws: four standard errors of a fifth.
    assert chances == pytest.approx(np.full(50, 0.2), abs=4 * np.sqrt(0.16 / 1000))


def test_of_heads_with_a_chance_to_be_on_top_that_share_is_on_top():
    random = np.random.default_rng(6)
    said, true = [], []
    for repeat in range(60):
        truth, effect, stderr = few_strong(random)
        said.append(top_chances(shrink(effect, stderr), 5, seed=repeat))
        true.append(np.argsort(np.argsort(truth)) < 5)
    said, true = np.concatenate(said), np.concatenate(true)
    for low, high in ((0, 0.1), (0.1, 0.3), (0.3, 0.5), (0.5, 0.7), (0.7, 0.9), (0.9, 1)):
        inside = (said > low) & (said <= high)
        p, count = said[inside].mean(), inside.sum()
        # Heads of one world share an estimated prior, so the draws are not quite apart.
        bound = 3 * np.sqrt(p * (1 - p) / count) + 0.03
        assert abs(true[inside].mean() - p) < bound, (low, high, count)


@pytest.mark.parametrize("small", [0.0, 0.3, 0.6])
def test_intervals_hold_effects_too_small_for_any_estimate_to_show(small):
    """Most heads do a little, less than the errors; no prior's point at zero may deny it."""
    random = np.random.default_rng(3)
    truth = small * random.standard_normal(600)
    truth[:5] = -8.0
    posterior = shrink(truth + random.standard_normal(600), np.ones(600))
    low, high = posterior.interval()
    held = (low <= truth) & (truth <= high)
    assert held.mean() > 0.9 and held[:5].all()
    assert 0 < posterior.resolution < 1


def test_what_estimates_would_show_is_no_part_of_the_resolution():
    random = np.random.default_rng(4)
    truth = np.where(np.arange(600) < 60, 0.0, 2.0 * random.standard_normal(600))
    posterior = shrink(truth + random.standard_normal(600), np.ones(600))
    assert posterior.resolution < 2.0


def test_an_interval_is_as_sure_as_it_is_told_to_be():
    posterior = shrink(np.linspace(-4, 4, 50), np.full(50, 0.5))
    wide, narrow = posterior.interval(), posterior.interval(level=0.5)
    assert (wide[0] <= narrow[0]).all() and (narrow[1] <= wide[1]).all()
    drawn = posterior.draws(4000, seed=1)[:, 0]
    inside = ((drawn >= narrow[0, 0]) & (drawn <= narrow[1, 0])).mean()
    assert inside == pytest.approx(0.5, abs=0.05)
