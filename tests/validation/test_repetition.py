"""Phrases repeated to the end of a text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caploc.validation.categories import LEAST_LENGTH, end_periods, repeated_end, repetition

LETTERS = st.characters(categories=["L"])
WORDS = st.lists(st.text(LETTERS, min_size=1, max_size=8), min_size=1, max_size=5)


def root(text):
    """The shortest phrase whose repeats are the text: where it first occurs in itself twice."""
    return text[: (text + text).index(text, 1)]


def turns(phrase):
    """The phrase begun at each of its characters."""
    return {phrase[place:] + phrase[:place] for place in range(len(phrase))}


@given(st.text("ab ", max_size=14))
def test_periods_are_those_of_the_definition(text):
    expected = []
    for length in range(1, len(text) + 1):
        end = text[-length:]
        expected.append(next(p for p in range(1, length + 1) if end[p:] == end[: length - p]))
    assert end_periods(text) == expected


@given(WORDS, st.integers(4, 9))
def test_any_phrase_said_again_and_again_is_found_in_its_shortest_form(words, times):
    phrase = " ".join(words)
    text = " ".join([phrase] * times)
    found = repetition(text)
    if len(text) < LEAST_LENGTH:
        assert found is None or len(text) + 1 >= LEAST_LENGTH
        return
    shortest = root(phrase + " ")
    assert found.phrase in turns(shortest) or found.phrase in turns(root(phrase))
    assert found.share == 1
    assert found.times == pytest.approx(len(text) / len(found.phrase), abs=1.01 / len(found.phrase))


@given(WORDS, st.integers(4, 9), st.integers(0, 30))
def test_a_loop_that_the_limit_cuts_short_is_the_same_loop(words, times, cut):
    phrase = " ".join(words) + " "
    text = phrase * times + (phrase * 2)[: cut % len(phrase)]
    found = repetition(text)
    if len(text) > LEAST_LENGTH:
        # Spaces at the end are dropped, and a phrase of one letter doubles within its neighbour.
        assert len(found.phrase) <= len(root(phrase)) and found.share == 1


@given(st.lists(st.permutations("abcdef").map("".join), unique=True, max_size=40))
def test_a_text_whose_words_are_all_different_repeats_nothing(words):
    """No letter comes twice in a word, and no word twice in the text."""
    assert repetition(" ".join(words)) is None


@given(st.text(max_size=60))
def test_what_is_found_is_there(text):
    found = repetition(text)
    if found is not None:
        plain = " ".join(text.split())
        # A closing mark, or the space after the last repeat, may stand outside.
        said = found.phrase * int(found.times)
        assert said.rstrip() in plain and found.times >= 3 and 0 < found.share <= 1


@pytest.mark.parametrize(
    ("text", "phrase", "single"),
    [
        ("```" * 8, "`", True),
        (" balalalalalala", "al", True),
        ("A=A=A=A=A=A=A=A ", "A=", True),
        ("so the the the the the the", " the", True),
        (" haelenenenenen.", "en", True),
        ("I am sure. I am sure. I am sure.", "I am sure. ", False),
        ("He has 3. So he has 5. So he has 5. So he has 5. So he h", " has 5. So he", False),
        ("我们去公园。" * 4, "我们去公园。", True),
        ("🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂", "🙂", True),
        ("abcdefghijklmnopqrstuvwxyz" * 3, "abcdefghijklmnopqrstuvwxyz", False),
    ],
)
def test_loops_as_models_write_them(text, phrase, single):
    found = repetition(text)
    assert found.phrase in turns(phrase)
    assert found.single is single


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n ",
        "124",
        "1111",
        "===",
        "0.3333333333333333333",  # a number
        "no, no, no",  # speech
        "never never never",
        "It was, it was, and so it went on as before.",
        " x = x * 2\n x = x * 2\n x = x * 2\n return x\n",  # it goes on
        "One long answer that explains all of it in some detail, and says ha ha ha ha",
    ],
)
def test_what_people_and_programs_write_is_no_loop(text):
    assert repetition(text) is None


def test_a_refrain_must_make_up_a_third_of_the_answer():
    verse = "Twenty-five letters stand here, all different words. "
    assert repetition(verse + "go on now. " * 3).phrase in turns("go on now. ")
    assert repetition(verse * 2 + "go on now. " * 3) is None


def test_the_text_is_taken_as_it_stands():
    assert repeated_end("ab ab ab ab ab").phrase == " ab"
    assert repeated_end("ab ab ab ab ab!") is None
