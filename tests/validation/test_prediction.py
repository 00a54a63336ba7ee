"""R² of held-out masks and its noise ceiling."""

import numpy as np
import pytest

from caploc.validation import EXAMPLES, MASKS, draw_masks, predicted

EFFECTS = {0: -0.35, 1: -0.25, 5: -0.15, 9: -0.1, 12: 0.08, 3: -0.05, 7: 0.04, 14: -0.02}


def linear(mask, example):
    """The sum of the effects, and what is the example's own."""
    return 1 + sum(value for head, value in EFFECTS.items() if mask[head]) + 0.01 * example


def test_effects_that_are_true_explain_everything(checking, found):
    told = predicted(checking(linear).check, found([0, 1], EFFECTS), 0.15)
    assert told.r2 == pytest.approx(1) and told.slope == pytest.approx(1)
    assert told.ceiling == pytest.approx(1)
    assert (told.masks, told.examples) == (MASKS, EXAMPLES)


def test_effects_of_the_wrong_heads_explain_little(checking, found):
    wrong = {15 - head: value for head, value in EFFECTS.items()}
    told = predicted(checking(linear).check, found([15, 14], wrong), 0.15)
    assert told.r2 < 0.5


def test_effects_turned_around_have_a_slope_below_zero(checking, found):
    turned = {head: -value for head, value in EFFECTS.items()}
    told = predicted(checking(linear).check, found([0, 1], turned), 0.15)
    assert told.slope == pytest.approx(-1)


def test_noise_lowers_the_ceiling_and_no_truth_goes_far_beyond_it(checking, found):
    random = np.random.default_rng(0)

    def noisy(mask, example):
        return linear(mask, 0) + random.normal(scale=0.8)

    told = predicted(checking(noisy).check, found([0, 1], EFFECTS), 0.15)
    assert 0.2 < told.ceiling < 0.9
    assert told.r2 < told.ceiling + 0.2


@pytest.mark.parametrize(
    ("outcome", "effects"),
    [
        (lambda mask, example: 1.0, EFFECTS),  # nothing changes
        (linear, {0: 0.0}),  # nothing is predicted
        (lambda mask, example: None, EFFECTS),  # nothing can be scored
        (linear, {0: -0.2}),  # only two predictions
    ],
)
def test_what_says_nothing_is_not_measured(checking, found, outcome, effects):
    assert predicted(checking(outcome).check, found([0], effects), 0.15) is None


def test_masks_leave_critical_heads_alone_and_half_of_them_hold_a_chosen_head(checking, found):
    what = found([0, 1, 4], EFFECTS, critical=[4, 8])
    masks = draw_masks(checking(linear).check, what, 0.2)
    assert len(masks) == MASKS and not masks[:, [4, 8]].any()
    assert masks[: MASKS // 2, [0, 1]].any(axis=1).all()
    assert np.array_equal(masks, draw_masks(checking(linear).check, what, 0.2))


def test_where_every_head_breaks_the_task_alone_no_mask_is_left_to_predict(checking, found):
    every = found([0, 1], EFFECTS, critical=range(16))
    assert predicted(checking(linear).check, every, 0.15) is None
