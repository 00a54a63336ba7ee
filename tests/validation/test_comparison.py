"""The change of outcomes, its interval and its verdict."""

import math

import numpy as np
import pytest
from scipy import stats

from caploc.store import Row
from caploc.validation import MARGIN, judge_change, measure_change


def rows(outcomes):
    """Rows of examples 0, 1, 2, ... with these outcomes."""
    return [
        Row(b"", str(number), number, value, value, "[]", 1.0, 1, 0.0)
        for number, value in enumerate(outcomes)
    ]


def test_the_interval_is_that_of_the_paired_t_test():
    random = np.random.default_rng(0)
    before, after = random.normal(size=(2, 80))
    found = measure_change(rows(before), rows(after))
    test = stats.ttest_rel(after, before)
    low, high = test.confidence_interval(0.95)
    assert found.outcome == pytest.approx(np.mean(after - before))
    assert found.stderr == pytest.approx(stats.sem(after - before))
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.examples == 80
    assert found.margin is None and found.verdict == "open"


def test_examples_are_paired_and_those_scored_once_are_left_out():
    nan = float("nan")
    found = measure_change(rows([1.0, nan, 0.0, 1.0, 1.0]), rows([0.0, 1.0, 0.0, nan, 0.0]))
    assert found.examples == 3 and found.outcome == pytest.approx(-2 / 3)
    assert measure_change(rows([nan]), rows([1.0])) is None


def test_a_single_example_has_no_interval_and_proves_nothing():
    found = measure_change(rows([1.0]), rows([0.0]))
    assert (found.stderr, found.low, found.high) == (None, None, None)
    assert found.verdict == "open"


def accuracy(right_before, right_after, examples):
    """The change of an accuracy by so many examples going wrong."""
    before = [float(number < right_before) for number in range(examples)]
    after = [float(number < right_after) for number in range(examples)]
    return measure_change(rows(before), rows(after))


@pytest.mark.parametrize(
    ("right_after", "examples", "said"),
    [
        (50, 100, "changed"),
        (80, 100, "changed"),
        (97, 100, "open"),  # from below the margin to above 0
        (99, 100, "open"),
        (100, 100, "unchanged"),
        (129, 130, "open"),  # the interval alone would say unchanged, too often where it is not so
        (975, 1000, "changed"),  # by less than the margin, but it may be more
        (990, 1000, "unchanged"),  # for sure, and by less than the margin
    ],
)
def test_a_change_of_an_accuracy_is_judged_against_the_margin(right_after, examples, said):
    found = accuracy(examples, right_after, examples)
    assert found.margin == MARGIN
    assert found.verdict == said


def test_the_interval_of_an_accuracy_has_half_a_pair_more_of_each_kind():
    losses, gains, count = 20, 5, 100
    before = [1.0] * 60 + [0.0] * 40
    after = [0.0] * losses + [1.0] * 40 + [1.0] * gains + [0.0] * 35
    found = measure_change(rows(before), rows(after))
    larger = count + 2
    mean = (gains - losses) / larger
    error = np.sqrt(((gains + 0.5) + (losses + 0.5) - larger * mean**2) / larger**2)
    half = stats.t.ppf(0.975, count - 1) * error
    assert (found.low, found.high) == pytest.approx((mean - half, mean + half))
    plain = stats.ttest_rel(after, before).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx(tuple(plain), abs=0.01)


@pytest.mark.parametrize("examples", [2, 5, 20, 60])
def test_few_examples_without_a_change_do_not_prove_that_there_is_none(examples):
    """The rule of three: what happens in 3 of n examples is missed once in 20."""
    found = accuracy(examples, examples, examples)
    assert found.outcome == 0 and found.verdict == "open"
    assert found.low == -found.high
    assert stats.binom.pmf(0, examples, found.high) == pytest.approx(0.05)


@pytest.mark.parametrize(("examples", "said"), [(2, "open"), (30, "changed")])
def test_examples_that_all_break_leave_room_for_one_that_does_not(examples, said):
    found = accuracy(examples, 0, examples)
    assert found.low == found.outcome == -1 < found.high
    assert found.verdict == said


def test_outcomes_that_are_no_accuracy_have_no_margin():
    same = measure_change(rows([-1.25, -2.5]), rows([-1.25, -2.5]))
    assert (same.low, same.high, same.verdict) == (0.0, 0.0, "unchanged")
    worse = measure_change(rows([-1.0, -2.0, -1.5]), rows([-2.0, -3.1, -2.4]))
    assert worse.margin is None and worse.verdict == "changed"


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [(-0.5, -0.1, "changed"), (0.1, 0.2, "changed"), (-0.02, -0.01, "unchanged"),
     (-0.02, 0.02, "unchanged"), (-0.05, 0.01, "open"), (math.nan, math.nan, "open")],
)  # fmt: skip
def test_a_verdict_is_what_the_whole_interval_says(low, high, said):
    assert judge_change(low, high, MARGIN) == said
