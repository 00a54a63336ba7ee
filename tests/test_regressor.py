"""Estimators for any black box with parts that can be switched off."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline

from caploc import designs
from caploc.errors import BadData, BadOption, UnknownName
from caploc.regressor import KnockoutRegressor

PARTS, ROWS = 30, 900
EFFECT = np.zeros(PARTS)
EFFECT[[3, 11, 20]] = [-0.8, -0.5, 0.4]


@pytest.fixture(scope="module")
def world():
    """Rows of a black box whose parts' effects are known: 7 + X @ EFFECT + noise."""
    out = designs.bernoulli(PARTS, ROWS, rate=0.1, seed=1)
    noise = np.random.default_rng(2).normal(0, 0.2, ROWS)
    return out, 7 + out @ EFFECT + noise


@pytest.mark.parametrize("estimator", ["spike-slab", "means", "lasso-cv", "lasso"])
def test_the_parts_that_matter_come_back(world, estimator):
    found = KnockoutRegressor(estimator).fit(*world)
    assert found.needed(2) == [3, 11] and found.needed(9)[:2] == [3, 11]
    assert np.abs(found.coef_ - EFFECT).max() < 0.15
    assert abs(found.intercept_ - 7) < 0.1


def test_intervals_cover_the_truth(world):
    found = KnockoutRegressor().fit(*world)
    low, high = found.interval_.T
    assert np.mean((low <= EFFECT) & (high >= EFFECT)) >= 0.85
    assert set(np.flatnonzero(found.q_ < 0.01)) == {3, 11, 20}


def test_predictions_are_the_sum_of_effects(world):
    found = KnockoutRegressor().fit(*world)
    new = designs.bernoulli(PARTS, 50, rate=0.1, seed=5)
    assert np.allclose(found.predict(new), found.intercept_ + new @ found.coef_)
    assert found.score(new, 7 + new @ EFFECT) > 0.95


def test_it_is_at_home_in_scikit_learn(world):
    out, outcome = world
    assert clone(KnockoutRegressor("means")).get_params() == {"estimator": "means"}
    assert cross_val_score(make_pipeline(KnockoutRegressor()), out, outcome, cv=3).min() > 0.5
    choice = GridSearchCV(KnockoutRegressor(), {"estimator": ["lasso", "spike-slab"]}, cv=3)
    assert choice.fit(out, outcome).best_estimator_.n_features_in_ == PARTS


@pytest.mark.parametrize(("spread", "known"), [(1.0, False), (40.0, True)])
def test_the_difficulty_of_examples_is_taken_off(spread, known):
    """Examples that differ more than any part's effect must not blur the effects."""
    random = np.random.default_rng(3)
    example = np.tile(np.arange(20), ROWS // 20)
    out = designs.bernoulli(PARTS, ROWS, rate=0.1, seed=4)
    intact = random.normal(0, spread, 20)[example]
    outcome = intact + out @ EFFECT + random.normal(0, 0.1, ROWS)
    told = {"groups": example} | ({"intact": intact} if known else {})
    named = KnockoutRegressor().fit(out, outcome, **told)
    unnamed = KnockoutRegressor().fit(out, outcome)
    assert named.needed(2) == [3, 11]
    wrong = np.abs(named.coef_ - EFFECT).max(), np.abs(unnamed.coef_ - EFFECT).max()
    assert wrong[0] < 0.15 and wrong[0] < wrong[1] / 2


def test_right_and_wrong_answers_take_the_intact_ones_along():
    random = np.random.default_rng(6)
    out = designs.bernoulli(PARTS, ROWS, rate=0.1, seed=7)
    outcome = (random.random(ROWS) < 0.95 + out @ np.minimum(EFFECT, 0)).astype(float)
    found = KnockoutRegressor("logistic").fit(out, outcome, intact=np.ones(ROWS))
    assert found.needed(2) == [3, 11]
    with pytest.raises(BadOption, match="logistic.*pass fit\\(..., intact="):
        KnockoutRegressor("logistic").fit(out, outcome)


def test_single_parts_are_compared_in_pairs():
    out = np.eye(4, dtype=bool)[np.repeat(np.arange(4), 5)]
    example = np.tile(np.arange(5), 4)
    outcome = example - 2.0 * out[:, 1]
    found = KnockoutRegressor("paired").fit(out, outcome, groups=example, intact=example)
    assert found.coef_.tolist() == [0, -2, 0, 0]


def test_a_part_that_was_never_out_is_unknown(world):
    out, outcome = world
    wider = np.hstack([out, np.zeros((ROWS, 1), dtype=bool)])
    found = KnockoutRegressor().fit(wider, outcome)
    assert np.isnan(found.coef_[-1]) and np.isnan(found.interval_[-1]).all()
    assert np.isfinite(found.predict(np.ones((1, PARTS + 1)))).all()


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({"X": [[0.5, 1]], "y": [1]}, BadData, "may hold 0 and 1"),
        ({"X": [[0, 1]] * 3, "y": [1, 2, 3], "groups": [1, 2]}, BadData, "each of the 3 rows"),
        (
            {"X": [[0, 1]] * 2, "y": [1, 2], "groups": [1, 1], "intact": [1, 2]},
            BadData,
            "two outcomes for one example",
        ),
        ({"X": [[0, 1]], "y": [1, 2]}, ValueError, "inconsistent numbers of samples"),
    ],
)
def test_mistakes_are_sentences(arguments, error, sentence):
    with pytest.raises(error, match=sentence):
        KnockoutRegressor().fit(**arguments)


def test_an_unknown_estimator_is_named():
    with pytest.raises(UnknownName, match="Did you mean 'lasso'"):
        KnockoutRegressor("laso").fit([[0, 1], [1, 0]], [1, 2])
