"""What the model said before and after."""

import pytest
from shaping import shaped_answers

from caploc.report.page import LONGEST, Status, answer_rows, status_of
from caploc.report.wording import ScoreKind, Unit, inline, visible
from caploc.result import AnswerPair

SHARE = Unit(ScoreKind.SHARE, "acc")


@pytest.mark.parametrize(
    "before, after, status",
    [((1.0, "a"), (0.0, "b"), Status.LOST), ((0.0, "a"), (1.0, "b"), Status.GAINED),
     ((1.0, "a"), (1.0, "b"), Status.REWORDED), ((1.0, "a"), (1.0, "a"), Status.UNCHANGED),
     ((1.0, "a"), (None, None), Status.UNKNOWN), ((1.0, "a"), (0.0, "a"), Status.LOST),
     ((1.0, None), (0.0, None), Status.LOST), ((None, "a"), (None, "b"), Status.REWORDED)],
)  # fmt: skip
def test_an_answer_is_judged_by_its_outcomes_then_by_its_text(before, after, status):
    answer = {"intact_outcome": before[0], "intact": before[1],
              "knocked_out_outcome": after[0], "knocked_out": after[1]}  # fmt: skip
    assert status_of(AnswerPair(**answer), SHARE) is status


def test_a_log_probability_that_moves_under_the_same_text_is_no_change():
    answer = {"intact": "B", "knocked_out": "B", "intact_outcome": -1.0,
              "knocked_out_outcome": -1.1}  # fmt: skip
    assert status_of(AnswerPair(**answer), Unit(ScoreKind.NATS, "acc")) is Status.UNCHANGED


@pytest.mark.parametrize("after, status", [(1.0, Status.UNCHANGED), (0.0, Status.LOST)])
def test_an_answer_that_is_a_log_probability_was_not_put_in_other_words(after, status):
    pair = AnswerPair(intact="log-probability -0.26 (its first choice)", intact_outcome=1.0,
                      knocked_out="log-probability -0.31", knocked_out_outcome=after)  # fmt: skip
    assert status_of(pair, SHARE) is status


def test_answers_that_differ_come_first(answers):
    rows = answer_rows(shaped_answers(answers), SHARE)
    assert [(row.example, row.status) for row in rows] == [
        ("17", Status.LOST), ("3", Status.UNCHANGED),
    ]  # fmt: skip
    assert (rows[0].intact, rows[0].knocked_out) == (["8", "5"], ["8", "↵\n"])
    assert rows[0].outcomes == "1 → 0"


def test_a_long_answer_keeps_the_place_where_it_departs(answers):
    answers[0].update(intact="x" * 9000, knocked_out="x" * 8999 + "yes", prompt="a" * 9000 + "?")
    row = answer_rows(shaped_answers(answers[:1]), SHARE)[0]
    assert row.knocked_out[1] == "yes" and row.intact[1] == "x"
    assert row.prompt.endswith("?") and "characters left out" in row.prompt
    assert len("".join(row.knocked_out)) < LONGEST + 100


def test_missing_texts_stay_missing(answers):
    answers[0].update(gold=None, intact=None, knocked_out=None)
    row = answer_rows(shaped_answers(answers[:1]), SHARE)[0]
    assert (row.gold, row.intact, row.knocked_out) == (None, None, None)


def test_unseen_characters_are_drawn():
    assert visible("a\x00b\x1b[31m\r\x7f") == "a␀b␛[31m␍␡"
    assert visible("\u202egnp.exe \ud800") == "⟨U+202E⟩gnp.exe ⟨U+D800⟩"
    assert visible("two\nlines\tand 👩‍🔬") == "two\nlines\tand 👩‍🔬"
    assert inline("two\nlines") == "two␊lines"
