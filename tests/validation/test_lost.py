"""Lost answers, and what stands in their place."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caploc.result import AnswerPair, Score, Status
from caploc.store import Row
from caploc.tasks.task import Example, Generate, Generated, Metric, Scored, Task, responses_json
from caploc.validation import Comparison
from caploc.validation.lost import find_lost, is_loop
from caploc.verdict import both_said

READ_OFF = "log-probability -0.26 (its first choice)"


@pytest.mark.parametrize(
    "before, after, status",
    [((1.0, "a"), (0.0, "b"), Status.LOST), ((0.0, "a"), (1.0, "b"), Status.GAINED),
     ((1.0, "a"), (1.0, "b"), Status.REWORDED), ((1.0, "a"), (1.0, "a"), Status.UNCHANGED),
     ((1.0, "a"), (None, None), Status.UNKNOWN), ((1.0, "a"), (0.0, "a"), Status.LOST),
     ((1.0, None), (0.0, None), Status.LOST), ((None, "a"), (None, "b"), Status.REWORDED),
     ((-1.0, "B"), (-1.1, "B"), Status.UNCHANGED),
     ((-0.2, READ_OFF), (-0.3, READ_OFF), Status.UNCHANGED),
     ((1.0, READ_OFF), (0.0, READ_OFF), Status.LOST)],
)  # fmt: skip
def test_an_answer_is_judged_by_its_outcomes_then_by_its_text(before, after, status):
    pair = AnswerPair(
        intact_outcome=before[0],
        intact=before[1],
        knocked_out_outcome=after[0],
        knocked_out=after[1],
    )
    assert pair.status is status


class Words(Task):
    """A task that asks for a word."""

    name = version = "words"
    metric = Metric("exact_match")
    size = 1

    def requests(self, example):
        return [Generate("cold -> warm\n\nwet ->", "{}")]

    def example(self, example):
        return Example("wet ->", "dry")


def compared(*pairs):
    """Compare responses before and after; right is an outcome of 1."""
    sides = [
        [Row(b"", str(n), n, outcome, outcome, responses_json(said), 1.0, 1, 0.0)
         for n, (outcome, said) in enumerate(side)]
        for side in zip(*pairs, strict=True)
    ]  # fmt: skip
    return Comparison(Words(), Score(), Score(), *sides)


def wrote(text, end="\n"):
    return (Generated(text, said=(0,), end=end),)


@pytest.mark.parametrize(
    ("after", "kind"),
    [
        (wrote(" \n"), "empty"),
        (wrote("the the the the", end=None), "loops"),
        (wrote("it is so and then", end=None), "cut off"),
        (wrote("wet"), "repeats the word"),
        (wrote("et"), "other answer"),  # part of a word
        (wrote("cold"), "other answer"),
        (wrote("humid"), "other answer"),
        ((Scored(-9.0, False, 1), Scored(-8.0, False, 1)), "no likely choice"),
        ((Scored(-3.0, False, 1), Scored(-1.0, False, 1)), "other answer"),
    ],
)
def test_what_stands_in_the_place_of_an_answer_is_told(after, kind):
    scored = isinstance(after[0], Scored)
    before = (Scored(-0.1, True, 1), Scored(-6.0, False, 1)) if scored else wrote("dry")
    lost = find_lost(compared(((1.0, before), (0.0, after))))
    assert lost.kinds == {kind: 1} and lost.samples[0].kind == kind


@pytest.mark.parametrize(
    ("said", "kind"),
    [(" dry", "other white space"), (" dr", "other white space"), (" d", "other answer"),
     ("dr", "other answer"), (" wet", "other answer"), ("", "other answer")],
)  # fmt: skip
def test_a_right_answer_with_other_white_space_is_told_from_another_one(said, kind):
    before, after = Scored(-0.1, True, 1), Scored(-4.0, False, 1, instead=said)
    lost = find_lost(compared(((1.0, (before,)), (0.0, (after,)))))
    assert lost.kinds == {kind: 1}


def test_answers_that_differ_in_white_space_alone_are_shown_with_it():
    said = "log-probability -4.00 (its first choice is 'dry')"
    pair = AnswerPair(gold=" dry", intact=READ_OFF, knocked_out=said)
    assert both_said(pair) == ("' dry'", "'dry'")
    other = pair.model_copy(update={"knocked_out": said.replace("dry", " wet")})
    assert both_said(other) == ("dry", "wet")


def test_lost_answers_are_counted_and_the_most_frequent_shown():
    right, wrong = (
        (1.0, wrote("dry")),
        [(0.0, wrote(text)) for text in ("wet", "damp", "fog", "x")],
    )
    unscored = (np.nan, wrote("dry"))
    lost = find_lost(
        compared(
            (right, wrong[0]),
            *[(right, each) for each in wrong[1:]],
            (right, right),
            (wrong[0], right),
            (right, unscored),
        )  # fmt: skip
    )
    assert (lost.count, lost.examples) == (4, 7)
    assert list(lost.kinds.items()) == [("other answer", 3), ("repeats the word", 1)]
    assert [pair.knocked_out for pair in lost.samples] == ["damp", "fog", "x"]


@pytest.mark.parametrize(
    "text",
    ["`" * 24, " balalalalalala", "A=A=A=A=A=A=A=A ", "so the the the the the the",
     " haelenenenenen.", "I am sure. " * 4, "我们去公园。" * 4, "🙂" * 10,
     "He has 3. So he has 5. So he has 5. So he has 5. So he h"],
)  # fmt: skip
def test_loops_as_models_write_them(text):
    assert is_loop(text)


@pytest.mark.parametrize(
    "text",
    ["", " \n ", "124", "1111", "===", "0.3333333333333333333", "no, no, no", "never never never",
     "It was, it was, and so it went on as before.",
     " x = x * 2\n x = x * 2\n x = x * 2\n return x\n",
     "One long answer that explains all of it in some detail, and says ha ha ha ha"],
)  # fmt: skip
def test_what_people_and_programs_write_is_no_loop(text):
    assert not is_loop(text)


@given(st.lists(st.permutations("abcdef").map("".join), unique=True, max_size=40))
def test_a_text_whose_words_are_all_different_is_no_loop(words):
    assert not is_loop(" ".join(words))
