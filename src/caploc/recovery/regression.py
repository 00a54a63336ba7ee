"""Estimators that fit masks to outcomes: the heads paper's on one score a mask, others on rows.

Those on rows take any design, crossed or scattered.
"""

import warnings

import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso, LassoCV, LogisticRegression
from sklearn.metrics import r2_score
from sklearn.model_selection import GroupKFold, KFold, cross_val_predict

from caploc.errors import BadOption
from caploc.recovery.estimate import (
    Estimate,
    Measurements,
    PerHead,
    Rows,
    is_binary,
    noise_ceiling,
)
from caploc.recovery.screening import Effects, false_discovery_rates, means_apart, screened

ALPHA, ITERATIONS = 0.01, 5000  # of the paper's Lasso
FOLDS = 5
PENALTIES = 30  # that cross-validation chooses from
SETTLED = 1e-4
HEAD_PRIOR = 0.5  # standard deviation of a head's effect on the log-odds
EXAMPLE_PRIOR = 2.0  # the same of an example's difficulty


class PaperLasso:
    """Minimise `1/(2M) |y - b0 - A x|^2 + alpha |x|_1` over masks.

    `A` holds 1 where a mask knocks a head out and is not standardised; `y` is each mask's mean
    outcome, standardised to mean 0 and variance 1 over the M masks (arXiv 2603.03335, section 3;
    alpha and the number of iterations from its released settings). The coefficients times the
    standard deviation of the scores are the effects. The penalty pulls all of them towards 0, so
    they rank heads better than they measure them.
    """

    def fit(self, seen: Measurements, intact: dict[int, float]) -> Estimate:
        """Fit on the mask means; all effects are 0 if these do not vary.

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
        table = seen.table()
        return Estimate(
            "lasso",
            np.where(masks.any(axis=0), coefficients, np.nan),
            *(np.full(masks.shape[1], np.nan),) * 3,
            r2_held_out=r2,
            ceiling=float("nan") if table is None else noise_ceiling(table),
        )


class DifferenceOfMeans:
    """Mean outcome of the rows that cut a head less that of the others, difficulty removed.

    Needs no model at all; a head's effect is blurred by those of all other heads in its masks.
    """

    def fit(self, seen: Measurements, intact: dict[int, float]) -> Estimate:
        """Intervals are clustered by example; see `caploc.recovery.screening`."""
        return estimated("means", means_apart(Rows.of(seen, intact)))


class SpikeAndSlab:
    """A sparse Bayesian fit of the strongest heads, and one step from there for every head.

    See `caploc.recovery.screening`.
    """

    def fit(self, seen: Measurements, intact: dict[int, float]) -> Estimate:
        """Intervals are clustered by example."""
        return estimated("spike-slab", screened(Rows.of(seen, intact)))


class ChosenLasso:
    """The Lasso on rows, its penalty chosen by cross-validation over masks.

    Outcomes have their example's difficulty removed. Like every Lasso it pulls effects towards zero
    and has no intervals.
    """

    def fit(self, seen: Measurements, intact: dict[int, float]) -> Estimate:
        """A mask's rows are held out together."""
        rows = Rows.of(seen, intact)
        unknown = np.full(rows.cuts.shape[1], np.nan)
        measured = np.asarray(rows.cuts.sum(axis=0)).ravel() > 0
        outcome = rows.residuals()
        folds = min(FOLDS, len(np.unique(rows.mask)))
        if folds < 2 or np.ptp(outcome) == 0:
            effect = np.where(measured, 0.0, np.nan)
        else:
            split = list(GroupKFold(folds).split(rows.cuts, groups=rows.mask))
            # On the scale of 1, so that the tolerance means the same for every outcome.
            scale = float(outcome.std())
            model = LassoCV(alphas=PENALTIES, eps=1e-2, cv=split, tol=SETTLED)
            fitted = model.fit(rows.cuts.tocsc(), outcome / scale)
            effect = np.where(measured, fitted.coef_ * scale, np.nan)
        return Estimate("lasso-cv", effect, unknown, unknown, unknown)


class Logistic:
    """Log-odds of a right answer: an offset for each example plus an effect for each head cut.

    Offsets and effects have normal priors (ridge penalties); scikit-learn fits the mode. A head's
    effect is the mean over examples of the change of the probability when it alone is cut. For
    0/1 outcomes near the floor or ceiling, where effects do not add up on the scale of accuracy.
    """

    def fit(self, seen: Measurements, intact: dict[int, float]) -> Estimate:
        """Without intervals; raises BadOption if outcomes are not 0 and 1."""
        rows = Rows.of(seen, intact)
        if not is_binary(intact) or not np.isin(rows.outcome, (0.0, 1.0)).all():
            raise BadOption("The logistic estimator needs outcomes of 0 and 1; use another one.")
        heads = rows.cuts.shape[1]
        unknown = np.full(heads, np.nan)
        measured = np.asarray(rows.cuts.sum(axis=0)).ravel() > 0
        differ = len(np.unique(rows.outcome)) > 1
        effect = self.effects(rows, intact) if differ else np.zeros(heads)
        return Estimate("logistic", np.where(measured, effect, np.nan), *(unknown,) * 3)

    def effects(self, rows: Rows, intact: dict[int, float]) -> PerHead:
        """Changes of the probability; the intact rows take part in the fit."""
        numbers = np.array(list(intact))
        place = {int(number): at for at, number in enumerate(numbers)}
        asked = [place[int(example)] for example in rows.example] + list(range(len(numbers)))
        offset = sparse.csr_matrix(
            (np.ones(len(asked)), (np.arange(len(asked)), asked)), (len(asked), len(numbers))
        )
        none = sparse.csr_matrix((len(numbers), rows.cuts.shape[1]))
        cuts = sparse.vstack([rows.cuts, none])
        design = sparse.hstack([HEAD_PRIOR * cuts, EXAMPLE_PRIOR * offset]).tocsr()
        outcome = np.concatenate([rows.outcome, np.array([intact[int(n)] for n in numbers])])
        model = LogisticRegression(C=1.0, max_iter=500, tol=SETTLED).fit(design, outcome > 0.5)
        head = HEAD_PRIOR * model.coef_[0, : rows.cuts.shape[1]]
        odds = model.intercept_[0] + EXAMPLE_PRIOR * model.coef_[0, rows.cuts.shape[1] :]
        changed = 1 / (1 + np.exp(-(odds[:, None] + head))) - 1 / (1 + np.exp(-odds[:, None]))
        return changed.mean(axis=0)


def estimated(name: str, found: Effects) -> Estimate:
    """Effects with their 95 % intervals and false discovery rates."""
    half = found.half_width()
    q = false_discovery_rates(found.p())
    return Estimate(name, found.effect, found.effect - half, found.effect + half, q)
