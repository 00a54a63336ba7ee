"""Sparse Bayesian regression: a spike at zero and a slab, by variational inference.

Fits `y = X b + noise` with each `b_j` zero but for a share `pi`, and `N(0, slab)` otherwise. The
fully factorized approximation and its coordinate updates are those of Carbonetto and Stephens
(2012, "Scalable variational inference for Bayesian variable selection in regression"); noise, slab
and `pi` follow by expectation maximization.
"""

from dataclasses import dataclass
from math import exp, log

import numpy as np
from jaxtyping import Float

SWEEPS = 20  # coordinate sweeps between two updates of noise, slab and share
UPDATES = 15
SETTLED = 1e-5  # largest change of a coefficient, in standard deviations of y, to stop at
FIRST_SLAB = 0.1  # standard deviation of the slab to begin with, in standard deviations of y
EXPECTED = 10  # coefficients that are not zero, to begin with


@dataclass
class Prior:
    """Variance of the noise and of the slab, and the share of coefficients in it."""

    noise: float
    slab: float
    share: float


def spike_and_slab(
    gram: Float[np.ndarray, "columns columns"],
    moment: Float[np.ndarray, " columns"],
    total: float,
    rows: int,
) -> Float[np.ndarray, " columns"]:
    """Posterior mean of the coefficients, from `X'X`, `X'y` and `y'y` of centred data."""
    scale = total / rows if rows and total else 1.0
    moment = moment / scale**0.5
    diagonal = np.diag(gram).copy()
    count = max(len(moment), 1)
    prior = Prior(1.0, FIRST_SLAB**2, min(EXPECTED / count, 0.5))
    chance = np.where(diagonal > 0, prior.share, 0.0)
    mean, fitted = np.zeros(len(moment)), np.zeros(len(moment))
    for _ in range(UPDATES):
        before = chance * mean
        ascend(gram, moment, prior, (chance, mean, fitted))
        posterior = chance * mean
        spread = prior.noise / (diagonal + prior.noise / prior.slab)
        second = chance * (spread + mean**2)
        misfit = rows - 2 * posterior @ moment + posterior @ fitted
        prior.noise = max((misfit + diagonal @ (second - posterior**2)) / rows, 0.2)
        prior.slab = float(np.clip(second.sum() / max(chance.sum(), 1e-9), 0.02**2, 4.0))
        prior.share = float(np.clip(chance.mean(), min(2 / count, 0.2), 0.2))
        if np.abs(posterior - before).max(initial=0) < SETTLED:
            break
    coefficients: np.ndarray = chance * mean * scale**0.5
    return coefficients


def ascend(
    gram: Float[np.ndarray, "columns columns"],
    moment: Float[np.ndarray, " columns"],
    prior: Prior,
    state: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    """Update chance of the slab, mean within it and `gram @ (chance * mean)`, in place."""
    chance, mean, fitted = state
    odds = log(prior.share / (1 - prior.share))
    diagonal = np.diag(gram).tolist()
    for _ in range(SWEEPS):
        largest = 0.0
        for column, own in enumerate(diagonal):
            if own <= 0:
                continue
            old = float(chance[column] * mean[column])
            spread = prior.noise / (own + prior.noise / prior.slab)
            new = spread / prior.noise * float(moment[column] - fitted[column] + own * old)
            evidence = odds + 0.5 * log(spread / prior.slab) + new * new / (2 * spread)
            inside = 1 / (1 + exp(-evidence)) if evidence > -50 else 0.0
            chance[column], mean[column] = inside, new
            change = inside * new - old
            if abs(change) > 1e-12:
                fitted += gram[:, column] * change
            largest = max(largest, abs(change))
        if largest < SETTLED:
            break
