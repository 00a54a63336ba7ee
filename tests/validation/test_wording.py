"""What answers usually look like."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caploc.validation.categories import Habits, is_program, normalised, shape

WORDS = "the cat dog sat ran on under mat table and then slept woke".split()
PROMPTS = [f"Tell of number {number}:" for number in range(40)]


def sentences(count, new=0):
    """Sentences of a few words, with so many in each that no other sentence has."""
    letters = "bcdfghjklm"
    return [
        " ".join(
            [WORDS[(number + step) % len(WORDS)] for step in range(6)]
            + [
                f"q{letters[number % 10]}{letters[number // 10]}{place * 'z'}"
                for place in range(new)
            ]
        )
        for number in range(count)
    ]


def habits(intact, golds=None):
    golds = golds or [""] * len(intact)
    return Habits(golds, intact, PROMPTS)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("124", "0"),
        (" -3.5\n", "0"),
        ("1,000", "0"),
        ("B", "x"),
        ("(b)", "(x)"),
        ("Paris", "w"),
        ("brüssel", "w"),
        ("10i", "0x"),
        ("The answer is 42.", "w w w 0."),
        ("東京", "w"),
        ("", ""),
    ],
)
def test_shapes(text, kind):
    assert shape(text) == kind


def test_answers_of_one_shape_make_another_a_mistake_of_form():
    numbers = habits([str(number) for number in range(20)])
    assert not numbers.is_misshapen("-7") and not numbers.is_misshapen("12.5")
    assert numbers.is_misshapen("ten") and numbers.is_misshapen("1 0") and numbers.is_misshapen("")


def test_shapes_of_gold_answers_are_allowed_too():
    assert not habits(["yes"] * 20, ["no idea"] * 20).is_misshapen("who knows")


@pytest.mark.parametrize("intact", [[], ["4"], ["4", "four"], ["4"] * 9 + ["four"]])
def test_varied_or_few_answers_have_no_shape(intact):
    assert not habits(intact).is_misshapen("((((")


def test_nonsense_is_known_by_words_that_nobody_uses():
    usual = habits(sentences(40))
    assert usual.is_gibberish("blarg fnord quux")
    assert usual.is_gibberish("THE BLARG fnord cat")
    assert not usual.is_gibberish("the dog sat under the table")
    assert not usual.is_gibberish("Tell of number")  # the prompts' words
    assert not usual.is_gibberish("the cat sat on the blarg")  # one may be a name
    assert not usual.is_gibberish("blarg")
    assert not usual.is_gibberish("12 13 14 15") and not usual.is_gibberish("")


def test_where_new_words_are_usual_more_of_them_are_needed():
    """One in seven is new in every answer: a third and twice a seventh must be strange."""
    usual = habits(sentences(40, new=1))
    assert not usual.is_gibberish("the cat sat blarg fnord quux")
    assert usual.is_gibberish("the cat blarg fnord quux zmeer")
    assert habits(sentences(40)).is_gibberish("the cat sat on blarg fnord")


def test_where_every_answer_is_new_nothing_is_gibberish():
    cities = ["Paris", "Rome", "Oslo", "Bern", "Riga", "Kyiv"]
    assert not habits(cities).is_gibberish("blarg fnord quux")
    assert not habits([]).is_gibberish("blarg fnord quux")


@pytest.mark.parametrize(
    ("first", "second"),
    [("Yes.", " yes\n"), ("“No”".strip("“”"), "NO!"), ("ｆｉｖｅ", "five"), ("a  b", "A b")],
)
def test_ways_of_writing_one_answer_are_one(first, second):
    assert normalised(first) == normalised(second)


@given(st.text())
def test_normalising_twice_changes_nothing_of_a_text_of_letters(text):
    once = normalised(text)
    assert normalised(once) == once or not once.isascii()


def test_an_answer_of_marks_alone_stays():
    assert normalised(" ``` ") == "```" and normalised("") == ""


@pytest.mark.parametrize(
    ("answer", "prompt"),
    [
        ("def f(x):\n    return x\n", "Write f."),
        ("    return x + 1\n", "Complete f."),
        ("    return x + 1\n", "def f(x):\n"),
        ("x + 1\n", "def f(x):\n    return "),
        ("    y = x\n    return y", "# f\ndef f(x):\n"),
        ("Here it is:\n```python\nimport os\n```\nDone.", "Write it."),
        ("import os\n```\nThat imports os (it is", "Write it:\n```python\n"),
        ("for n in range(3):\n  print('\\d')", ""),  # warns when it is compiled
    ],
)
def test_programs_are_known(answer, prompt):
    assert is_program(answer, prompt)


@pytest.mark.parametrize(
    "answer",
    [
        *("", "42", "cake", "f(x)", "# nothing", "x = = 2", "the cake", "return return", "\x00"),
        *("(" * 500, "-" * 100_000 + "1", "x = 1\n" * 100_000, "```", "``````"),
    ],
)
def test_what_does_nothing_or_is_not_python_is_no_program(answer):
    assert not is_program(answer, "Write it.")
