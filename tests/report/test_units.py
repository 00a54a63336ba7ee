"""How numbers are written."""

import pytest
from shaping import shaped

from caploc.report.figures import mark_row
from caploc.result import CardRow, Effect, RowKind, Said, Score, TaskComparison
from caploc.wording import Unit, called, unit_of, unit_of_task

SHARE, PLAIN, NATS = Unit("%", "acc"), Unit("", "ter", higher_is_better=False), Unit("nats")
NBSP = "\u00a0"


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [(SHARE, 0.99, "99 %"), (SHARE, 0.0, "0 %"), (SHARE, 1.0, "100 %"), (SHARE, None, "–"),
     (PLAIN, 12.14, "12.1"), (PLAIN, 1234.5, "1,234"), (PLAIN, -0.5, "−0.500"),
     (PLAIN, 3e8, "3.00e+08"), (NATS, -1.234, "−1.23")],
)  # fmt: skip
def test_shares_are_percentages_and_other_scores_keep_three_digits(unit, value, text):
    assert unit.score(value).replace(NBSP, " ") == text


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [(SHARE, -0.41, "−41"), (SHARE, 0.0123, "+1"), (SHARE, -0.0003, "0"), (SHARE, None, "–"),
     (NATS, 0.5, "+0.500 nats"), (PLAIN, 3.2, "+3.20")],
)  # fmt: skip
def test_a_change_has_its_sign(unit, value, text):
    assert unit.change(value).replace(NBSP, " ") == text


def test_an_interval_has_both_ends_or_is_empty():
    assert SHARE.interval(Effect(effect=-0.4, low=-0.5, high=0.01)) == "(−50 to +1)"
    assert SHARE.interval(Effect(effect=-0.4, low=-0.5)) == SHARE.interval(None) == ""


@pytest.mark.parametrize(
    "metric, sign",
    [
        ("exact_match,strict-match", "%"),
        ("acc_norm", "%"),
        ("pass@1", "%"),
        ("word_perplexity", ""),
        ("mcc", ""),
    ],
)
def test_only_known_shares_become_percentages(result, metric, sign):
    result["task"]["metric"] = metric
    assert unit_of(shaped(result)).sign == sign


def test_an_accuracy_in_hundredths_is_not_multiplied_again(result):
    result["intact"]["score"] = 57.0
    assert unit_of(shaped(result)).sign == ""


def test_another_task_may_have_another_kind_of_score():
    def sign_of(intact, knocked_out, **more):
        scores = {"intact": Score(score=intact), "knocked_out": Score(score=knocked_out)}
        return unit_of_task(TaskComparison(name="x", **scores, **more)).sign

    assert sign_of(0.98, 0.97, metric="acc") == "%"
    assert sign_of(12.0, 13.0, metric="acc") == sign_of(0.98, 0.97) == ""
    assert sign_of(0.5, 0.4, metric="mcc") == ""


def test_a_task_of_a_yaml_is_called_by_its_file():
    assert called("/home/me/sums.yaml") == "sums" and called("words/past") == "words/past"
    assert called("/home/me/model/") == "model"


@pytest.mark.parametrize(("without", "low", "high"), [(0.2, 0.0, 45.0), (0.9, 75.0, 100.0)])
def test_an_interval_is_drawn_beside_the_score_that_it_belongs_to(without, low, high):
    """Of a score that is better when lower a loss makes the score larger."""
    row = CardRow(
        label="past", kind=RowKind.HELD_OUT, unit="%", change_unit="%", intact=0.6, without=without,
        change=-0.4, low=-0.6, high=-0.15, said=Said.LOST, examples=60,
    )  # fmt: skip
    drawn = mark_row(row, "past")
    assert (drawn["low"], drawn["high"]) == (pytest.approx(low), pytest.approx(high))
