"""The estimators for anything with parts that can be switched off, as scikit-learn has it.

A row of `X` says which parts were out, `y` what was measured. Nothing here knows of models, heads
or tasks: parts may be neurons, features, experts or machines.
"""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from caploc.errors import BadData, BadOption, pick
from caploc.recovery import ESTIMATORS, Measurements

NEEDS_INTACT = ("logistic", "paired")


class KnockoutRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Each part's effect on an outcome, from rows in which random parts were out.

    Parameters: `estimator` is one of `caploc.recovery.ESTIMATORS`: spike-slab (sparse Bayesian,
    with intervals), means, lasso-cv, lasso (the heads paper's), logistic (outcomes of 0 and 1) or
    paired (rows with a single part out). The last two need `intact`.

    After `fit`:

    - `coef_` (parts,): the change of the outcome that taking a part out causes, in units of `y`;
      NaN for a part that was never out.
    - `interval_` (parts, 2): 95 % intervals; NaN where the estimator knows none.
    - `q_` (parts,): the false discovery rate at which the part would be named; NaN likewise.
    - `intercept_`: the outcome with no part out, as the fit has it.

        rows = caploc.designs.bernoulli(40, 500, rate=0.1, seed=0)
        found = KnockoutRegressor().fit(rows, [measure(row) for row in rows])
        found.coef_.argmin()  # the part that is needed most
    """

    coef_: Float[np.ndarray, " parts"]
    interval_: Float[np.ndarray, "parts 2"]
    q_: Float[np.ndarray, " parts"]
    intercept_: float
    n_features_in_: int

    def __init__(self, estimator: str = "spike-slab") -> None:
        """Choose an estimator by its name."""
        self.estimator = estimator

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        groups: ArrayLike | None = None,
        intact: ArrayLike | None = None,
    ) -> "KnockoutRegressor":
        """Estimate every part's effect.

        `X` is (rows, parts), 1 or True where a part was out; `y` is (rows,). `groups` (rows,) says
        which example a row measured, if several share examples: their difficulty is taken off, and
        errors are clustered by them. `intact` (rows,) is the outcome of the row's example with no
        part out, where it is known. Raises UnknownName if there is no such estimator; BadOption if
        the estimator needs `intact`; BadData if `X` holds anything but 0 and 1, or lengths differ;
        ValueError as scikit-learn has it, for data of another shape.
        """
        estimator = pick(ESTIMATORS, self.estimator, "estimator")
        if self.estimator in NEEDS_INTACT and intact is None:
            raise BadOption(
                f"KnockoutRegressor(estimator={self.estimator!r}) compares with what nothing "
                "taken out gives; pass fit(..., intact=...), one number for each row."
            )
        data, outcome = validate_data(self, X, y, dtype=None, y_numeric=True)
        seen, before = measured(switches(data), outcome.astype(float), groups, intact)
        found = estimator(seen, before)
        self.coef_, self.q_ = found.effect, found.q
        self.interval_ = np.stack([found.low, found.high], axis=1)
        expected = seen.masks[seen.mask] @ np.nan_to_num(found.effect)
        self.intercept_ = float(np.mean(seen.outcome - expected))
        return self

    def predict(self, X: ArrayLike) -> Float[np.ndarray, " rows"]:
        """The outcome expected of rows, if effects add up; a part never out counts as idle."""
        check_is_fitted(self)
        rows = switches(validate_data(self, X, dtype=None, reset=False))
        expected: np.ndarray = self.intercept_ + rows @ np.nan_to_num(self.coef_)
        return expected

    def needed(self, top: int = 5) -> list[int]:
        """The `top` parts whose absence costs most, most needed first; fewer if fewer cost."""
        check_is_fitted(self)
        order = np.argsort(np.nan_to_num(self.coef_), kind="stable")[:top]
        return [int(part) for part in order if self.coef_[part] < 0]


def switches(data: Any) -> Bool[np.ndarray, "rows parts"]:
    """Data as booleans; raises BadData if anything is neither 0 nor 1."""
    if not np.isin(data, (0, 1)).all():
        raise BadData("X says which parts were out: it may hold 0 and 1, or False and True, only.")
    return np.asarray(data).astype(bool)


def measured(
    out: Bool[np.ndarray, "rows parts"],
    outcome: Float[np.ndarray, " rows"],
    groups: ArrayLike | None,
    intact: ArrayLike | None,
) -> tuple[Measurements, dict[int, float]]:
    """Rows as estimators take them, and each example's intact outcome.

    Without groups every row is an example of its own. A known intact outcome takes an example's
    difficulty off whole, unless outcomes are 0 and 1; where none is known all examples count as
    equal. Raises BadData if there is not one group or one intact outcome for each row, or two rows
    of an example differ in the latter.
    """
    labels = np.arange(len(outcome)) if groups is None else lengths("groups", groups, len(outcome))
    _, first, example = np.unique(labels, return_index=True, return_inverse=True)
    before = np.full(len(outcome), outcome.mean())
    if intact is not None:
        before = lengths("intact", intact, len(outcome)).astype(float)
        if (before[first][example.reshape(-1)] != before).any():
            raise BadData("intact gives two outcomes for one example; it has one with no part out.")
        if not np.isin([*outcome, *before], (0.0, 1.0)).all():
            outcome = outcome - before + before.mean()
            before = np.full(len(outcome), before.mean())
    masks, mask = np.unique(out, axis=0, return_inverse=True)
    known = dict(zip(example.reshape(-1).tolist(), before.tolist(), strict=True))
    return Measurements(masks, mask.reshape(-1), example.reshape(-1), outcome), known


def lengths(name: str, values: ArrayLike, rows: int) -> np.ndarray:
    """Values, one for each row."""
    found: np.ndarray = check_array(np.asarray(values), ensure_2d=False, dtype=None)
    if found.shape != (rows,):
        raise BadData(f"{name} has shape {found.shape}; give one for each of the {rows} rows.")
    return found
