"""What the model said before and after."""

import pytest

from caploc.report.answers import Fate, Status, fate_of, status_of, sum_up_lost
from caploc.result import AnswerPair
from caploc.wording import ScoreKind, Unit, inline, visible

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


@pytest.mark.parametrize(
    ("without", "kind", "fate"),
    [
        (" \n", "empty", Fate.EMPTY),
        ("the the the", "stuck", Fate.LOOPS),
        ("a b a b", "loop", Fate.LOOPS),
        ("dry and then", "runs on", Fate.CUT_OFF),
        ("wet", "wrong content", Fate.REPEATS),
        ("cold", "wrong content", Fate.OTHER),
        ("e", "wrong content", Fate.OTHER),  # part of a word
    ],
)
def test_what_stands_in_the_place_of_an_answer_is_told(without, kind, fate):
    pair = AnswerPair(prompt="cold -> warm\n\n\nwet ->", knocked_out=without, kind=kind)
    assert fate_of(pair) is fate


def test_lost_answers_are_counted_and_the_most_frequent_shown():
    def pair(without, outcome):
        texts = {"prompt": "wet ->", "intact": "dry", "knocked_out": without}
        return AnswerPair(**texts, intact_outcome=1.0, knocked_out_outcome=outcome)

    pairs = [pair("cold", 0.0), pair("wet", 0.0), pair("dry", 1.0), pair("wet", 0.0)]
    lost = sum_up_lost(pairs, SHARE, 2)
    assert (lost.count, lost.of) == (3, 4)
    assert lost.fates == [(Fate.REPEATS, 2), (Fate.OTHER, 1)]
    assert [each.knocked_out for each in lost.shown] == ["wet", "wet"]


def test_unseen_characters_are_drawn():
    assert visible("a\x00b\x1b[31m\r\x7f") == "a␀b␛[31m␍␡"
    assert visible("\u202egnp.exe \ud800") == "⟨U+202E⟩gnp.exe ⟨U+D800⟩"
    assert visible("two\nlines\tand 👩‍🔬") == "two\nlines\tand 👩‍🔬"
    assert inline("two\nlines") == "two␊lines"
