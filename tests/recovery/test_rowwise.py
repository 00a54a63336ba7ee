import numpy as np
import pytest
from measured import crossed, scattered
from scipy import optimize
from scipy.special import expit, log_expit
from sklearn.linear_model import LassoCV

from caploc import designs
from caploc.errors import BadOption
from caploc.recovery import (
    EXAMPLE_PRIOR,
    HEAD_PRIOR,
    Measurements,
    fit_chosen_lasso,
    fit_logistic,
)
from caploc.recovery.estimate import Rows
from worlds.simulate import World


def test_the_chosen_penalty_is_scikit_learns_over_folds_of_whole_masks():
    """A second way to the folds: each mask's rows are held out together, penalties as spaced."""
    masks = designs.stratified(12, 25, rate=0.2, seed=0)
    seen, intact = crossed(World.planted(12, 2, seed=2), masks, list(range(20)))
    rows = Rows.of(seen, intact)
    y = rows.residuals() / rows.residuals().std()
    x = rows.cuts.toarray()
    # Masks of equal size fill the five folds in turn.
    held_out = [np.flatnonzero(rows.mask % 5 == fold) for fold in range(5)]
    folds = [(np.setdiff1d(np.arange(500), test), test) for test in held_out]
    largest = np.abs((x - x.mean(axis=0)).T @ y).max() / 500
    reference = LassoCV(alphas=np.geomspace(largest, largest / 100, 30), cv=folds, tol=1e-6)
    expected = reference.fit(x, y).coef_ * rows.residuals().std()
    assert fit_chosen_lasso(seen, intact).effect == pytest.approx(expected, abs=2e-3)


def test_masks_that_cannot_be_held_out_leave_no_penalty_to_choose():
    masks = np.array([[True, False]])
    estimate = fit_chosen_lasso(*crossed(World.planted(2, 1, seed=0), masks, list(range(30))))
    assert estimate.effect[0] == 0 and np.isnan(estimate.effect[1])


def test_the_logistic_fit_is_the_mode_of_its_posterior():
    """Found again by a general optimizer from the likelihood and the priors, written out."""
    world = World.planted(4, 1, drop=0.4, intact=0.7, seed=3)
    seen, intact = scattered(world, 200, size=1, examples=range(12))
    x, outcome, count = seen.masks[seen.mask].astype(float), seen.outcome, 12
    x = np.vstack([x, np.zeros((count, 4))])
    y = np.concatenate([outcome, list(intact.values())])
    example = np.concatenate([seen.example, np.arange(count)])

    def surprise(parameters):
        heads, offsets, base = parameters[:4], parameters[4:-1], parameters[-1]
        odds = x @ heads + offsets[example] + base
        likelihood = (y * log_expit(odds) + (1 - y) * log_expit(-odds)).sum()
        prior = (heads**2).sum() / HEAD_PRIOR**2 + (offsets**2).sum() / EXAMPLE_PRIOR**2
        return prior / 2 - likelihood

    mode = optimize.minimize(surprise, np.zeros(4 + count + 1)).x
    before = mode[4:-1] + mode[-1]
    expected = [(expit(before + head) - expit(before)).mean() for head in mode[:4]]
    assert fit_logistic(seen, intact).effect == pytest.approx(expected, abs=2e-3)


def test_the_logistic_fit_sees_effects_where_accuracy_hardly_moves():
    """Near the floor, a head that takes half of what is left shows beside one that does nothing."""
    shifts = np.zeros(20)
    shifts[4] = 2.0
    world = World(shifts, -2.5, seed=4)
    seen, intact = scattered(world, 4000, examples=range(300))
    effect = fit_logistic(seen, intact).effect
    assert int(np.argmin(effect)) == 4
    assert effect[4] < 4 * np.delete(effect, 4).min()


@pytest.mark.parametrize(
    ("outcome", "intact"), [([0.5, 1.0], {0: 1.0}), ([1.0, 0.0], {0: 0.3}), ([2.0, 0.0], {0: 1.0})]
)
def test_the_logistic_fit_refuses_what_is_neither_right_nor_wrong(outcome, intact):
    zeros = np.zeros(2, dtype=int)
    seen = Measurements(np.eye(2, dtype=bool), np.arange(2), zeros, np.array(outcome))
    with pytest.raises(BadOption, match="outcomes of 0 and 1; use another one"):
        fit_logistic(seen, intact)
