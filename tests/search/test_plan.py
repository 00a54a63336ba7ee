import numpy as np
import pytest

from caploc.errors import BadOption
from caploc.options import Settings
from caploc.search import Plan, Problem, column_mask
from caploc.search.plan import intact_plan
from caploc.search.settings import check_budget


def test_a_crossed_plan_asks_every_mask_on_every_example():
    masks = np.eye(3, dtype=bool)[:2]
    plan = Plan.crossed("past", masks, [7, 4, 9], "both")
    asked = list(zip(plan.mask.tolist(), plan.example.tolist(), strict=True))
    assert asked == [(0, 7), (0, 4), (0, 9), (1, 7), (1, 4), (1, 9)]
    assert plan.masks is masks and plan.probe == "past" and plan.what == "both"


def test_the_intact_plan_knocks_out_nothing():
    plan = intact_plan(Problem(4, range(3), Settings()), "plural", [5, 6])
    assert not plan.masks.any() and plan.masks.shape == (1, 4)
    assert plan.example.tolist() == [5, 6] and plan.probe == "plural"


def test_a_column_mask_cuts_these_heads_and_no_other():
    assert np.flatnonzero(column_mask(6, [4, 1])).tolist() == [1, 4]
    assert not column_mask(6, []).any()


def test_a_budget_that_does_not_pay_for_the_scan_and_a_small_trial_is_refused():
    with pytest.raises(BadOption) as refused:
        check_budget(Settings(budget=427), 64)
    assert "427 is too small: 428 rows or more" in str(refused.value)
    check_budget(Settings(budget=428), 64)
    check_budget(Settings(), 64)
