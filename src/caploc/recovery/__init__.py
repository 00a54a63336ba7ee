"""From rows and outcomes to an estimate of every head's effect.

Two estimators: each head alone against the intact model on the same examples, and the heads
paper's, which fits masks to one score a mask.
"""

import warnings
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float
from scipy import stats
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso
from sklearn.metrics import r2_score
from sklearn.model_selection import KFold, cross_val_predict

from caploc.components import ALONE
from caploc.recovery.estimate import (
    Estimate,
    Estimator,
    Measurements,
    PerExample,
    PerHead,
)

CONFIDENCE = 0.95
# Of what a head does alone, told as 95 %: a little more, so that of a head tried on 75 examples the
# drop on 200 others lies inside 93 times of 100 (at 95 %: 91).
REPEATABLE = 0.965
SMALLEST = 1e-9  # error of a count, where none is possible


def fit_paired(
    seen: Measurements, intact: dict[int, float], *, level: float = REPEATABLE
) -> Estimate:
    """Take the mean over examples of (outcome without the head - intact outcome).

    Uses the masks that knock out a single head. Intervals are those of `paired`; `q` is the
    Benjamini-Hochberg value of its p over all heads measured.
    """
    found = np.full((4, seen.masks.shape[1]), np.nan)
    scored = seen.outcome[~np.isnan(seen.outcome)]
    binary = {*scored, *intact.values()} <= {0.0, 1.0}
    for head, differences in single_head_differences(seen, intact):
        found[:, head] = paired(differences, binary=binary, level=level)
    effect, low, high, p = found
    return Estimate("paired", effect, low, high, false_discovery_rates(p), estimand=ALONE)


def false_discovery_rates(p: PerHead) -> PerHead:
    """Adjust p-values for the number of them (Benjamini and Hochberg); NaN stays NaN."""
    q, known = np.full(len(p), np.nan), np.isfinite(p)
    if known.any():
        q[known] = stats.false_discovery_control(p[known])
    return q


def single_head_differences(
    seen: Measurements, intact: dict[int, float]
) -> Iterator[tuple[int, PerExample]]:
    """Yield every head that was knocked out alone, and what examples' outcomes changed by."""
    single = seen.masks.sum(axis=1) == 1
    cut = np.where(single, seen.masks.argmax(axis=1), -1)[seen.mask]
    for head in np.flatnonzero(seen.masks[single].any(axis=0)):
        outcomes = seen.where(cut == head).by_example()
        differences = np.array([o - intact[e] for e, o in outcomes.items() if e in intact])
        if differences.size:
            yield int(head), differences


def paired(
    differences: PerExample, *, binary: bool = False, level: float = CONFIDENCE
) -> tuple[float, float, float, float]:
    """Average differences, with the interval and two-sided p; a single one has the mean alone.

    `matched_pairs` and `sign_test` of `binary` outcomes, Student's t of others. If all of these are
    equal there is no spread to judge by: they are a change for certain (p = 0) unless they are 0.
    """
    mean = float(differences.mean())
    if differences.size < 2:
        return mean, np.nan, np.nan, np.nan
    if binary:
        return mean, *matched_pairs(differences, level), sign_test(differences)
    if np.ptp(differences) == 0:
        return mean, mean, mean, 1.0 if mean == 0 else 0.0
    with warnings.catch_warnings():
        # Nearly equal differences: SciPy warns of lost precision, which does not matter here.
        warnings.simplefilter("ignore", RuntimeWarning)
        test = stats.ttest_1samp(differences, 0.0)
        low, high = test.confidence_interval(level)
    return mean, float(low), float(high), float(test.pvalue)


def matched_pairs(differences: PerExample, level: float = CONFIDENCE) -> tuple[float, float]:
    """Interval of the mean of two differences or more that are -1, 0 or 1.

    Student's t after half a pair more of each of the four kinds (Agresti and Min 2005, "Simple
    improved confidence intervals for comparing matched proportions"): where few pairs differ the
    plain one is too narrow, and calls 1 loss in 100 a proof of less than 3. Where none differ, the
    interval leaves room for what a sample of that size misses altogether at that level.
    """
    count = differences.size
    mean = float(differences.mean())
    if np.ptp(differences) == 0:
        steps = 1 if mean == 0 else 2  # from 1 to -1
        room = (1 - (1 - level) ** (1 / count)) * steps
        return max(mean - room, -1.0), min(mean + room, 1.0)
    centre, error = smoothed(differences)
    half = float(stats.t.ppf((1 + level) / 2, count - 1)) * error
    return max(centre - half, -1.0), min(centre + half, 1.0)


def smoothed(differences: PerExample) -> tuple[float, float]:
    """Mean and standard error after half a pair more of each of the four kinds of matched pairs."""
    larger = differences.size + 2
    centre = float(differences.sum()) / larger
    variance = (float((differences**2).sum()) + 1) / larger - centre**2
    return centre, (variance / larger) ** 0.5


def paired_standard_error(differences: PerExample, *, binary: bool) -> float:
    """That of the mean of two differences or more, as if a normal had Student's wider tails."""
    count = differences.size
    plain = float(differences.std(ddof=1)) / count**0.5
    error = smoothed(differences)[1] if binary else plain
    return error * float(stats.t.ppf(0.975, count - 1) / stats.norm.ppf(0.975))


def sign_test(differences: PerExample) -> float:
    """Two-sided mid-p value of no change, of differences that are -1, 0 or 1.

    McNemar's exact test of the pairs that differ, with half of the probability of what was seen
    (Fagerland, Lydersen and Laake 2013, "The McNemar test for binary matched-pairs data").
    """
    changed, gained = int(np.count_nonzero(differences)), int((differences > 0).sum())
    if not changed:
        return 1.0
    exact = stats.binomtest(gained, changed).pvalue
    return float(exact - stats.binom.pmf(gained, changed, 0.5))


def falls(differences: PerExample, *, binary: bool) -> float:
    """One-sided p value of no fall: mid-p of the sign test, or that of the paired t-test."""
    return float(falls_of_each(differences[None], binary=binary)[0])


def falls_of_each(changes: Float[np.ndarray, "heads examples"], *, binary: bool) -> PerHead:
    """`falls` of each row; examples that are NaN are left out, and a row of nothing else is NaN."""
    p = np.full(len(changes), np.nan)
    if binary:
        gained, lost = (changes > 0).sum(axis=1), (changes < 0).sum(axis=1)
        tail = stats.binom.cdf(gained, gained + lost, 0.5)
        p = tail - stats.binom.pmf(gained, gained + lost, 0.5) / 2
    else:
        for row, change in enumerate(changes):
            mean, _, _, two_sided = paired(change[np.isfinite(change)])
            p[row] = two_sided / 2 if mean < 0 else 1 - two_sided / 2
    p[~np.isfinite(changes).any(axis=1)] = np.nan
    return p


def falls_short(differences: PerExample, price: float, *, binary: bool) -> float:
    """One-sided p value of a fall by `price` or more, where the mean falls by less.

    Of `binary` outcomes that of the score test of matched pairs (Tango 1998, "Equivalence test and
    confidence interval for the difference in proportions for the paired-sample design"), which
    keeps its level also where few pairs differ: an end of `matched_pairs` does not, on one side.
    Of others that of the paired t-test; NaN for a single one.
    """
    if not binary:
        return falls(-(differences + price), binary=False)
    if price > 1:
        return 0.0  # no accuracy falls by more
    count, gains = differences.size, int((differences > 0).sum())
    losses = int(np.count_nonzero(differences)) - gains
    # the likeliest share of gains, if the share of losses is larger by the price
    half = (losses + gains - (2 * count - losses + gains) * price) / (4 * count)
    share = half + (half**2 + gains * price * (1 - price) / (2 * count)) ** 0.5
    error = (count * (2 * share + price * (1 - price))) ** 0.5
    return float(stats.norm.cdf((losses - gains - count * price) / max(error, SMALLEST)))


ALPHA, ITERATIONS = 0.01, 5000  # of the paper's Lasso
FOLDS = 5


def fit_paper_lasso(seen: Measurements, intact: dict[int, float]) -> Estimate:
    """Minimise `1/(2M) |y - b0 - A x|^2 + alpha |x|_1` over masks.

    `A` holds 1 where a mask knocks a head out and is not standardised; `y` is each mask's mean
    outcome, standardised to mean 0 and variance 1 over the M masks (arXiv 2603.03335, section 3;
    alpha and the number of iterations from its released settings). The coefficients times the
    standard deviation of the scores are the effects, all 0 if the scores do not vary. The penalty
    pulls them towards 0, so they rank heads better than they measure them.

    `r2_held_out` is that of predictions for masks left out of the fit, in five folds; NaN with
    too few or equal scores.
    """
    scores = seen.mask_means()
    measured = ~np.isnan(scores)
    masks, scores = seen.masks[measured].astype(float), scores[measured]
    coefficients, r2 = np.zeros(masks.shape[1]), float("nan")
    spread = scores.std() if scores.size else 0.0
    if spread != 0:
        target = (scores - scores.mean()) / spread
        model = Lasso(alpha=ALPHA, max_iter=ITERATIONS)
        with warnings.catch_warnings():
            # The paper stops after 5,000 iterations whether or not the fit has settled.
            warnings.simplefilter("ignore", ConvergenceWarning)
            coefficients = model.fit(masks, target).coef_ * spread
            if len(scores) >= 2 * FOLDS:
                folds = KFold(FOLDS, shuffle=True, random_state=0)
                r2 = float(r2_score(target, cross_val_predict(model, masks, target, cv=folds)))
    return Estimate(
        "lasso",
        np.where(masks.any(axis=0), coefficients, np.nan),
        *(np.full(masks.shape[1], np.nan),) * 3,
        r2_held_out=r2,
    )


__all__ = ["Estimate", "Estimator", "Measurements"]
