"""How localized a task is in a model, and whether that depends on the model's size.

Localization strength is the share of its score that the task loses with the heads found knocked
out, less the share that general tasks lose: large where few heads carry this task and no other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import factorial, inf

import numpy as np
from jaxtyping import Float
from scipy import stats

from caploc import designs
from caploc.errors import BadOption, UnknownName
from caploc.stats.intervals import JsonRecord

WIDTH = 1.96  # standard errors on either side of a 95 % interval
CLEAR = 2.0  # standard errors that an intact score must lie above chance
FEWEST_MODELS = 3  # whose order can be right or wrong
ALL_ORDERS = 8  # models, at most, of which every order is tried
ORDERS = 9_999  # random ones, of more
ROUNDING = 1e-12  # of a correlation


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
class Strength(JsonRecord):
    """Localization strength with its 95 % interval, and the two shares that it is made of."""

    strength: float
    stderr: float
    low: float
    high: float
    task_loss: float
    task_stderr: float
    general_loss: float
    general_stderr: float


@dataclass(frozen=True)
class Trend(JsonRecord):
    """Whether localization grows or falls with the number of parameters.

    `rho` is Spearman's rank correlation (None where all strengths are equal) and `p` its two-sided
    permutation p; `least_p` is the smallest p that these models could give, had they come in
    perfect order: 1/60 with five.
    """

    models: list[str]
    rho: float | None
    p: float
    least_p: float


def averaged(scores: Sequence[Scores]) -> Scores:
    """Average over several tasks, such as a general score; their examples are independent.

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
    """Compute the standard error of a mean of independent figures with these."""
    return float(np.linalg.norm(errors)) / len(errors)


def share_error(
    left: float, whole: float, errors: tuple[float, float], change: float | None
) -> float:
    """Compute the standard error of a share `r` that is left of a whole, by the delta method.

    `var r = (r² var I + var K - 2 r cov(I, K)) / whole²`, with the errors of I (the whole score)
    and K (what is left of it), and `cov(I, K) = (var I + var K - var(I - K)) / 2`, or 0 where the
    error of the change is not known.
    """
    intact, cut = errors
    covariance = 0.0
    if change is not None:
        covariance = (intact**2 + cut**2 - change**2) / 2
        covariance = min(max(covariance, -intact * cut), intact * cut)  # rounded errors may not fit
    variance = left**2 * intact**2 + cut**2 - 2 * left * covariance
    return float(max(variance, 0.0) ** 0.5 / abs(whole))


def share_lost(scores: Scores) -> tuple[float, float]:
    """Compute the share of the intact score above chance that is lost, and its standard error.

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
    errors = scores.intact_stderr, scores.knocked_out_stderr
    return 1 - left, share_error(left, above, errors, scores.change_stderr)


def localization(task: Scores, general: Scores) -> Strength:
    """Take the share of the task's score lost less that of the general one, of other examples.

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
    sizes = centred_ranks([parameters[model] for model in models])
    values = centred_ranks([strengths[model].strength for model in models])
    if not sizes.any() or not values.any():
        return Trend(models, None, 1.0, 1.0)
    length, every = float(np.linalg.norm(sizes) * np.linalg.norm(values)), len(models) <= ALL_ORDERS
    tried = stats.permutation_test(
        (values,),
        lambda order, axis: (np.abs(order @ sizes) / length).round(9),
        permutation_type="pairings",
        vectorized=True,
        n_resamples=inf if every else ORDERS,
        alternative="greater",
        random_state=designs.generator(seed),
    )
    orders = tried.null_distribution
    least = max(2 / factorial(len(models)), 1 / (1 + ORDERS))
    if every:
        least = float((orders >= orders.max() - ROUNDING).mean())
    return Trend(models, float(values @ sizes) / length, float(tried.pvalue), least)


def centred_ranks(values: Sequence[float]) -> Float[np.ndarray, " models"]:
    """Rank values, ties shared, and take their mean off."""
    ranks: np.ndarray = stats.rankdata(values)
    ranks -= ranks.mean()
    return ranks
