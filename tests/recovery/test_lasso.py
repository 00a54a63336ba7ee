import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measured import one_score_a_mask
from sklearn.linear_model import Lasso

from caploc import designs
from caploc.recovery import fit_paper_lasso


@given(st.integers(0, 10**6))
@settings(max_examples=20)
def test_the_papers_lasso_is_scikit_learns_on_standardised_scores(seed):
    random = np.random.default_rng(seed)
    masks = random.random((60, 25)) < 0.1
    scores = random.normal(size=60) - masks[:, 3]
    standard = (scores - scores.mean()) / scores.std()
    reference = Lasso(alpha=0.01, max_iter=5000).fit(masks.astype(float), standard)
    effect = fit_paper_lasso(one_score_a_mask(masks, scores), {}).effect
    measured_heads = masks.any(axis=0)
    expected = reference.coef_[measured_heads] * scores.std()
    assert np.array_equal(effect[measured_heads], expected)
    assert np.isnan(effect[~measured_heads]).all()


def test_on_an_orthogonal_design_the_lasso_is_a_soft_threshold():
    """Each coefficient is its covariance, shrunk by alpha over the column's variance."""
    masks = np.array([[a, b] for a in (False, True) for b in (False, True)] * 25)
    scores = 1.0 - 0.6 * masks[:, 0] - 0.002 * masks[:, 1]
    effect = fit_paper_lasso(one_score_a_mask(masks, scores), {}).effect
    spread = scores.std()
    # alpha = 0.01 on standardised scores, and a column's variance is 1/4.
    assert effect[0] == pytest.approx(-0.6 + 0.01 * spread / 0.25, rel=1e-3)
    assert effect[1] == 0


def test_scores_that_do_not_vary_say_nothing():
    masks = designs.stratified(10, 20, rate=0.2, seed=0)
    estimate = fit_paper_lasso(one_score_a_mask(masks, np.ones(20)), {})
    assert (estimate.effect == 0).all()
    assert np.isnan(estimate.r2_held_out)
    assert estimate.needed(5) == []


def test_held_out_fit_is_high_for_additive_scores_and_low_for_noise():
    masks = designs.stratified(20, 300, rate=0.2, seed=0)
    random = np.random.default_rng(0)
    additive = 1 - 0.3 * masks[:, 2] - 0.2 * masks[:, 7] + 0.01 * random.normal(size=300)
    assert fit_paper_lasso(one_score_a_mask(masks, additive), {}).r2_held_out > 0.95
    noise = one_score_a_mask(masks, random.normal(size=300))
    assert fit_paper_lasso(noise, {}).r2_held_out < 0.1
