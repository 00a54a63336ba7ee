from itertools import product
from math import exp, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caploc.recovery.screening import EXPECTED, FIRST_SLAB, UPDATES, Prior, ascend, spike_and_slab


def orthogonal(random, rows, columns):
    """Columns at right angles, of different lengths."""
    q, _ = np.linalg.qr(random.normal(size=(rows, columns)))
    return q * random.uniform(2, 12, columns)


def noisy(random, design, needed, strength=0.5):
    coefficients = np.zeros(design.shape[1])
    coefficients[:needed] = strength * random.normal(size=needed)
    return design @ coefficients + random.normal(size=len(design))


def fitted(design, y):
    return spike_and_slab(design.T @ design, design.T @ y, float(y @ y), len(y))


def hyper_parameters(misfit, chance, second, rows):
    """Noise, slab and share that make what is expected likeliest, kept within their bounds."""
    count = len(chance)
    noise = max(misfit / rows, 0.2)
    slab = min(max(second.sum() / max(chance.sum(), 1e-9), 0.02**2), 4.0)
    share = min(max(chance.mean(), min(2 / count, 0.2)), 0.2)
    return noise, slab, share


def closed_form(design, y):
    """Expectation maximization where columns are at right angles: each column is on its own."""
    rows, scale = len(y), np.sqrt(y @ y / len(y))
    y = y / scale
    lengths, moment = (design**2).sum(axis=0), design.T @ y
    noise, slab, share = 1.0, FIRST_SLAB**2, min(EXPECTED / design.shape[1], 0.5)
    for _ in range(UPDATES):
        spread = 1 / (lengths / noise + 1 / slab)
        mean = spread * moment / noise
        bayes_factor = np.sqrt(spread / slab) * np.exp(mean**2 / (2 * spread))
        chance = share * bayes_factor / (share * bayes_factor + 1 - share)
        posterior, second = chance * mean, chance * (spread + mean**2)
        # E|y - X b|^2, the cross terms of different columns being 0.
        misfit = y @ y - 2 * posterior @ moment + lengths @ second
        noise, slab, share = hyper_parameters(misfit, chance, second, rows)
    return posterior * scale


@given(seed=st.integers(0, 10**6))
@settings(max_examples=30)
def test_on_an_orthogonal_design_the_fit_is_the_closed_form(seed):
    random = np.random.default_rng(seed)
    design = orthogonal(random, 80, 12)
    y = noisy(random, design, 4)
    # It stops once no coefficient changes by more than 1e-5 standard deviations.
    assert fitted(design, y) == pytest.approx(closed_form(design, y), abs=2e-3)


def enumerated(design, y, prior):
    """Posterior mean over all supports, each with its own likelihood."""
    rows, columns = design.shape
    total, mean = 0.0, np.zeros(columns)
    for support in product([False, True], repeat=columns):
        inside = np.array(support)
        part = design[:, inside]
        covariance = prior.noise * np.eye(rows) + prior.slab * part @ part.T
        _, determinant = np.linalg.slogdet(covariance)
        explained = y @ np.linalg.solve(covariance, y)
        likelihood = exp(-0.5 * (determinant - rows * log(prior.noise) + explained))
        weight = likelihood * prior.share ** inside.sum() * (1 - prior.share) ** (~inside).sum()
        total += weight
        mean[inside] += weight * prior.slab * part.T @ np.linalg.solve(covariance, y)
    return mean / total


def ascended(design, y, prior):
    columns = design.shape[1]
    chance, mean, product_ = np.full(columns, prior.share), np.zeros(columns), np.zeros(columns)
    ascend(design.T @ design, design.T @ y, prior, (chance, mean, product_))
    assert product_ == pytest.approx(design.T @ design @ (chance * mean), abs=1e-6)
    return chance * mean


@pytest.mark.parametrize("seed", range(5))
def test_on_an_orthogonal_design_it_is_the_mean_over_all_supports(seed):
    random = np.random.default_rng(seed)
    design = orthogonal(random, 15, 7)
    y = noisy(random, design, 3)
    prior = Prior(noise=0.9, slab=0.3, share=0.25)
    exact = enumerated(design, y, prior)
    assert ascended(design, y, prior) == pytest.approx(exact, abs=1e-4)


def test_with_little_correlation_it_is_close_to_the_mean_over_all_supports():
    random = np.random.default_rng(1)
    design = (random.random((120, 8)) < 0.3).astype(float)
    design -= design.mean(axis=0)
    y = noisy(random, design, 3, strength=2.0)
    prior = Prior(noise=1.0, slab=1.0, share=0.25)
    exact = enumerated(design, y, prior)
    assert ascended(design, y, prior) == pytest.approx(exact, abs=0.06)
    assert np.abs(exact).max() > 1


def plain(design, y):
    """The same algorithm on rows rather than on `X'X`, one column and one update after another."""
    scale = np.sqrt(y @ y / len(y))
    y, columns = y / scale, design.shape[1]
    noise, slab, share = 1.0, FIRST_SLAB**2, min(EXPECTED / columns, 0.5)
    chance, mean = np.full(columns, share), np.zeros(columns)
    left = y.copy()
    for _ in range(UPDATES):
        spread = np.array([noise / (x @ x + noise / slab) for x in design.T])
        for _ in range(60):
            for j, x in enumerate(design.T):
                left = left + x * chance[j] * mean[j]
                mean[j] = spread[j] * (x @ left) / noise
                odds = share / (1 - share) * np.sqrt(spread[j] / slab)
                odds *= np.exp(min(mean[j] ** 2 / (2 * spread[j]), 500))
                chance[j] = odds / (1 + odds)
                left = left - x * chance[j] * mean[j]
        second = chance * (spread + mean**2)
        variance = second - (chance * mean) ** 2
        misfit = left @ left + (design**2).sum(axis=0) @ variance
        noise, slab, share = hyper_parameters(misfit, chance, second, len(y))
    return chance * mean * scale


@pytest.mark.parametrize("seed", range(4))
def test_on_any_design_it_is_what_a_plain_loop_over_rows_finds(seed):
    random = np.random.default_rng(seed)
    design = (random.random((150, 20)) < 0.2).astype(float)
    design -= design.mean(axis=0)
    y = noisy(random, design, 3, strength=1.5)
    assert fitted(design, y) == pytest.approx(plain(design, y), abs=5e-3)


def test_a_column_without_variation_has_no_coefficient():
    random = np.random.default_rng(2)
    design = np.column_stack([random.normal(size=200), np.zeros(200)])
    y = 2 * design[:, 0] + random.normal(size=200)
    first, second = fitted(design, y)
    assert first == pytest.approx(2, abs=0.2) and second == 0


def test_noise_alone_is_shrunk_to_nothing():
    random = np.random.default_rng(3)
    design = (random.random((400, 60)) < 0.1).astype(float)
    design -= design.mean(axis=0)
    least_squares, *_ = np.linalg.lstsq(design, y := random.normal(size=400), rcond=None)
    assert np.abs(fitted(design, y)).max() < 0.2 * np.abs(least_squares).max()


def test_outcomes_of_zero_have_coefficients_of_zero():
    design = np.random.default_rng(4).normal(size=(50, 5))
    assert fitted(design, np.zeros(50)).tolist() == [0] * 5
