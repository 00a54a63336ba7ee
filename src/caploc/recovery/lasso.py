"""The heads paper's estimator: the Lasso on one score a mask."""

import warnings

import numpy as np
from jaxtyping import Float
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso
from sklearn.metrics import r2_score
from sklearn.model_selection import KFold, cross_val_predict

from caploc.heads import Masks
from caploc.recovery.estimate import Estimate, Measurements, noise_ceiling

FOLDS = 5


class PaperLasso:
    """Minimise `1/(2M) |y - b0 - A x|^2 + alpha |x|_1` over masks.

    `A` holds 1 where a mask knocks a head out and is not standardised; `y` is each mask's mean
    outcome, standardised to mean 0 and variance 1 over the M masks (arXiv 2603.03335, section 3;
    alpha and the number of iterations from its released settings). The coefficients times the
    standard deviation of the scores are the effects. The penalty pulls all of them towards 0, so
    they rank heads better than they measure them.
    """

    alpha = 0.01
    iterations = 5000

    def fit(self, seen: Measurements, intact: dict[int, float]) -> Estimate:
        """Fit on the mask means; `r2_held_out` is cross-validated over masks in five folds."""
        scores = seen.mask_means()
        measured = ~np.isnan(scores)
        masks, scores = seen.masks[measured], scores[measured]
        unknown = np.full(seen.masks.shape[1], np.nan)
        effect = np.where(masks.any(axis=0), self.coefficients(masks, scores), np.nan)
        table = seen.table()
        return Estimate(
            "lasso",
            effect,
            *(unknown, unknown, unknown),
            r2_held_out=self.held_out(masks, scores),
            ceiling=float("nan") if table is None else noise_ceiling(table),
        )

    def coefficients(self, masks: Masks, scores: Float[np.ndarray, " masks"]) -> np.ndarray:
        """Effects in score units; all 0 if the scores do not vary."""
        if not scores.size:
            return np.full(masks.shape[1], np.nan)
        spread = scores.std()
        if spread == 0:
            return np.zeros(masks.shape[1])
        with warnings.catch_warnings():
            # The paper stops after 5,000 iterations whether or not the fit has settled.
            warnings.simplefilter("ignore", ConvergenceWarning)
            fitted = self.model().fit(masks.astype(float), (scores - scores.mean()) / spread)
        return fitted.coef_ * spread

    def model(self) -> Lasso:
        """The scikit-learn model with the paper's settings."""
        return Lasso(alpha=self.alpha, max_iter=self.iterations)

    def held_out(self, masks: Masks, scores: Float[np.ndarray, " masks"]) -> float:
        """R² of predictions for masks left out of the fit; NaN with too few or equal scores."""
        if len(scores) < 2 * FOLDS or scores.std() == 0:
            return float("nan")
        spread = scores.std()
        folds = KFold(FOLDS, shuffle=True, random_state=0)
        target = (scores - scores.mean()) / spread
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            predicted = cross_val_predict(self.model(), masks.astype(float), target, cv=folds)
        return float(r2_score(target, predicted))
