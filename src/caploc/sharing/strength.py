"""How localized a task is in a model, and whether that depends on the model's size.

Localization strength is the share of its score that the task loses with the heads found knocked
out, less the share that general tasks lose: large where few heads carry this task and no other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import permutations
from math import factorial, isnan
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import stats

from caploc import designs
from caploc.errors import BadOption, UnknownName

WIDTH = 1.96  # standard errors on either side of a 95 % interval
CLEAR = 2.0  # standard errors that an intact score must lie above chance
FEWEST_MODELS = 3  # whose order can be right or wrong
ALL_ORDERS = 8  # models, at most, of which every order is tried
ORDERS = 9_999  # random ones, of more
REDRAWN = 2_000


@dataclass(frozen=True)
class Scores:
    """A task's score with no head and with the heads found knocked out, with standard errors.

    `change_stderr` is that of the difference of the two, both being of the same examples; None
    where it is not known, and then they are taken as independent, which is too cautious where an
    example that is hard stays hard. `chance` is the score of guessing.
    """

    intact: float
    intact_stderr: float
    knocked_out: float
    knocked_out_stderr: float
    change_stderr: float | None = None
    chance: float = 0.0


@dataclass(frozen=True)
class Strength:
    """Localization strength with its 95 % interval, and the two shares that it is made of."""

    strength: float
    stderr: float
    low: float
    high: float
    task_loss: float
    task_stderr: float
    general_loss: float
    general_stderr: float

    def as_dict(self) -> dict[str, Any]:
        """As files hold it."""
        return asdict(self)


@dataclass(frozen=True)
class Trend:
    """Whether localization grows or falls with the number of parameters.

    `rho` is Spearman's rank correlation (None where all strengths are equal) and `p` its two-sided
    permutation p; `least_p` is the smallest p that these models could give, had they come in
    perfect order: 1/60 with five. `low` and `high` hold 95 % of the correlations that come of
    redrawing each strength with its standard error: what measurement alone leaves open.
    """

    models: list[str]
    rho: float | None
    p: float
    least_p: float
    low: float | None
    high: float | None

    def as_dict(self) -> dict[str, Any]:
        """As files hold it."""
        return asdict(self)


def averaged(scores: Sequence[Scores]) -> Scores:
    """The mean over several tasks, such as a general score; their examples are independent.

    Raises:
        BadOption: if there is none.
    """
    if not scores:
        raise BadOption("A mean of scores needs one task or more; got none.")
    values = np.array([(each.intact, each.knocked_out, each.chance) for each in scores])
    intact, knocked_out, chance = values.mean(axis=0).tolist()
    changes = [each.change_stderr for each in scores if each.change_stderr is not None]
    return Scores(
        intact,
        of_mean([each.intact_stderr for each in scores]),
        knocked_out,
        of_mean([each.knocked_out_stderr for each in scores]),
        of_mean(changes) if len(changes) == len(scores) else None,
        chance,
    )


def of_mean(errors: Sequence[float]) -> float:
    """The standard error of a mean of independent figures with these."""
    return float(np.linalg.norm(errors)) / len(errors)


def share_lost(scores: Scores) -> tuple[float, float]:
    """The share of the intact score above chance that is lost, and its standard error.

    `d = (I - K) / (I - c)`; by the delta method, with `r = (K - c) / (I - c)`,

        var d = (r² var I + var K - 2 r cov(I, K)) / (I - c)²

    and `cov(I, K) = (var I + var K - var(I - K)) / 2`, or 0 where the error of the change is not
    known.

    Raises:
        BadOption: if the intact score is not above chance by two standard errors: there is nothing
            to take a share of.
    """
    above = scores.intact - scores.chance
    if above <= 0 or above < CLEAR * scores.intact_stderr:
        raise BadOption(
            f"An intact score of {scores.intact:.4g} is not clearly above chance "
            f"({scores.chance:.4g}): there is nothing to take a share of; use a task that the "
            "model can do, or more examples."
        )
    left = (scores.knocked_out - scores.chance) / above
    intact, cut = scores.intact_stderr, scores.knocked_out_stderr
    covariance = 0.0
    if scores.change_stderr is not None:
        covariance = (intact**2 + cut**2 - scores.change_stderr**2) / 2
        covariance = min(max(covariance, -intact * cut), intact * cut)  # rounded errors may not fit
    variance = left**2 * intact**2 + cut**2 - 2 * left * covariance
    return 1 - left, max(variance, 0.0) ** 0.5 / above


def localization(task: Scores, general: Scores) -> Strength:
    """Share of the task's score lost less that of the general one; other examples, so independent.

    Raises:
        BadOption: if one of the intact scores is not clearly above chance.
    """
    lost, task_error = share_lost(task)
    elsewhere, general_error = share_lost(general)
    strength, error = lost - elsewhere, float(np.hypot(task_error, general_error))
    half = WIDTH * error
    return Strength(
        strength,
        error,
        strength - half,
        strength + half,
        lost,
        task_error,
        elsewhere,
        general_error,
    )


def trend(
    strengths: Mapping[str, Strength], parameters: Mapping[str, float], *, seed: int = 0
) -> Trend:
    """Compare models by their number of parameters.

    With eight models or fewer every order of the strengths is tried; with more, random ones, and
    `p = (1 + orders as extreme) / (1 + orders)`.

    Raises:
        BadOption: with fewer than three models. UnknownName: if a model's size is not given.
    """
    if len(strengths) < FEWEST_MODELS:
        raise BadOption(
            f"A trend needs {FEWEST_MODELS} models or more; got {', '.join(strengths) or 'none'}."
        )
    if missing := [model for model in strengths if model not in parameters]:
        raise UnknownName(f"The number of parameters of {', '.join(missing)} is not given.")
    models = sorted(strengths, key=lambda model: parameters[model])
    random = designs.generator(seed)
    sizes = centred(np.array([[float(parameters[model]) for model in models]]))[0]
    values = np.array([strengths[model].strength for model in models])
    errors = np.array([strengths[model].stderr for model in models])
    rho = float(correlations(sizes, values[None])[0])
    redrawn = correlations(sizes, values + errors * random.standard_normal((REDRAWN, len(models))))
    redrawn = redrawn[np.isfinite(redrawn)]
    low, high = np.quantile(redrawn, [0.025, 0.975]) if redrawn.size else (np.nan, np.nan)
    p, least = permuted(sizes, values, random)
    return Trend(models, known(rho), p, least, known(float(low)), known(float(high)))


def permuted(
    sizes: Float[np.ndarray, " models"],
    values: Float[np.ndarray, " models"],
    random: np.random.Generator,
) -> tuple[float, float]:
    """Two-sided permutation p of the rank correlation, and the smallest that there can be.

    The identity is among all orders, so p is never 0.
    """
    count = len(values)
    every = count <= ALL_ORDERS
    if every:
        orders = np.array(list(permutations(range(count))))
    else:
        orders = random.permuted(np.tile(np.arange(count), (ORDERS, 1)), axis=1)
    distances = np.abs(np.nan_to_num(correlations(sizes, values[orders])))
    here = abs(np.nan_to_num(correlations(sizes, values[None])[0])) - 1e-12
    if every:
        least = float((distances >= distances.max() - 1e-12).mean())
        return float((distances >= here).mean()), least
    least = max(2 / factorial(count), 1 / (1 + ORDERS))
    return float((1 + (distances >= here).sum()) / (1 + ORDERS)), least


def correlations(
    sizes: Float[np.ndarray, " models"], values: Float[np.ndarray, "samples models"]
) -> Float[np.ndarray, " samples"]:
    """Spearman's correlation of each sample with the centred ranks of the sizes.

    NaN where either side is all equal.
    """
    ranks = centred(values)
    length = np.linalg.norm(ranks, axis=1) * np.linalg.norm(sizes)
    found = np.full(len(values), np.nan)
    np.divide(ranks @ sizes, length, out=found, where=length > 0)
    return found


def centred(values: Float[np.ndarray, "samples models"]) -> Float[np.ndarray, "samples models"]:
    """Ranks within each sample, ties shared, less their mean."""
    ranks = stats.rankdata(values, axis=1)
    less: np.ndarray = ranks - ranks.mean(axis=1, keepdims=True)
    return less


def known(value: float) -> float | None:
    """A number as JSON keeps it: None for NaN."""
    return None if isnan(value) else value
