import numpy as np
import pytest

from caploc.errors import BadOption, UnknownName, UserError
from caploc.search import Plan, Problem, Settings, column_mask
from caploc.search.plan import intact_plan


def test_a_crossed_plan_asks_every_mask_on_every_example():
    masks = np.eye(3, dtype=bool)[:2]
    plan = Plan.crossed("past", masks, [7, 4, 9], "both")
    asked = list(zip(plan.mask.tolist(), plan.example.tolist(), strict=True))
    assert asked == [(0, 7), (0, 4), (0, 9), (1, 7), (1, 4), (1, 9)]
    assert plan.masks is masks and plan.probe == "past" and plan.what == "both"


@pytest.mark.parametrize(("rows", "masks"), [(7, 7), (7, 3), (12, 4), (0, 0), (5, 1)])
def test_a_scattered_plan_uses_each_mask_for_a_run_of_rows_about_as_long_as_any(rows, masks):
    plan = Plan.scattered("past", np.zeros((masks, 3), dtype=bool), np.arange(rows), "some")
    assert (np.diff(plan.mask) >= 0).all() and plan.example.tolist() == list(range(rows))
    runs = np.bincount(plan.mask, minlength=masks)
    assert len(runs) == masks and np.ptp(runs) <= 1 if masks else not len(plan.mask)


def test_the_intact_plan_knocks_out_nothing():
    plan = intact_plan(Problem(4, range(3), Settings()), "plural", [5, 6])
    assert not plan.masks.any() and plan.masks.shape == (1, 4)
    assert plan.example.tolist() == [5, 6] and plan.probe == "plural"


def test_a_column_mask_cuts_these_heads_and_no_other():
    assert np.flatnonzero(column_mask(6, [4, 1])).tolist() == [1, 4]
    assert not column_mask(6, []).any()


WRONG = [
    ({"rate": 0.0}, "--rate is the share of heads in a mask, between 0 and 1; got 0."),
    ({"rate": 2.0}, "--rate is the share of heads in a mask, between 0 and 1; got 2."),
    ({"masks": 0}, "--masks must be 1 or more; got 0."),
    ({"top": -2}, "--top must be 1 or more; got -2."),
    ({"seed": -1}, "--seed must be 0 or more; got -1."),
    ({"price": 0.0}, "--price must lie above 0 and at most at 1; .05 is 5 points; got 0."),
    ({"goal": "all"}, "There is no --goal 'all'. Known: heads, set, specific."),
]


@pytest.mark.parametrize(("given", "said"), WRONG, ids=[said for _, said in WRONG])
def test_settings_that_mean_nothing_are_refused_with_what_is_allowed(given, said):
    with pytest.raises(UserError) as refused:
        Settings(**given).check()
    assert str(refused.value) == said


def test_an_estimator_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(UnknownName, match="no estimator 'laso'.*'lasso'.*paired"):
        Settings(estimator="laso").check()


def test_settings_that_mean_something_pass():
    for given in ({}, {"price": 1.0}, {"goal": "set"}, {"estimator": "logistic"}):
        Settings(**given).check()


def test_a_budget_that_does_not_pay_for_the_scan_and_a_small_trial_is_refused():
    with pytest.raises(BadOption) as refused:
        Settings(budget=187).check_budget(64)
    assert "187 is too small: 188 rows or more" in str(refused.value)
    Settings(budget=188).check_budget(64)
    Settings().check_budget(64)
