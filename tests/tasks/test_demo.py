import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worlds.tasks import data, interpreter, scoring
from worlds.tasks.interpreter import BadProgram, interpret

DRAWS = list(data.HELD_OUT)


@pytest.mark.parametrize("draw", DRAWS, ids=lambda draw: draw.__name__)
def test_no_key_is_on_both_sides_of_the_split(draw):
    train, test = (data.draw_distinct(draw, split) for split in ("train", "test"))
    assert not {e.key for e in train} & {e.key for e in test}
    assert len(train) == len(test) == data.ROWS >= 500


@pytest.mark.parametrize("draw", DRAWS, ids=lambda draw: draw.__name__)
def test_the_same_seed_gives_the_same_examples(draw):
    first, second = (
        list(itertools.islice(data.stream(draw, "train", random.Random(5)), 20)) for _ in range(2)
    )
    assert first == second


@given(st.randoms(use_true_random=False))
def test_sums_and_differences_are_right(rng):
    for draw, sign in ((data.addition, "+"), (data.subtraction, "-")):
        example = draw(rng)
        first, second = example.prompt.rstrip("=").split(sign)
        expected = int(first) + int(second) if sign == "+" else int(first) - int(second)
        assert int(example.answer) == expected >= 0


def test_a_sum_and_its_swap_are_on_the_same_side():
    keys = {
        data.addition(random.Random(s)).prompt: data.addition(random.Random(s)).key
        for s in range(3000)
    }
    swapped = [(p, "+".join(reversed(p.rstrip("=").split("+"))) + "=") for p in keys]
    assert all(keys[p] == keys[q] for p, q in swapped if q in keys)


@given(st.randoms(use_true_random=False))
def test_what_recall_asks_was_said(rng):
    example = data.recall(rng)
    pairs, _, asked = example.prompt.partition("; ")
    assert asked + example.answer[0] in pairs.split()


@given(st.randoms(use_true_random=False))
def test_a_quiz_lists_the_right_answer_behind_its_letter(rng):
    facts = dict(data.CAPITALS)
    example = data.capitals(rng)
    country = example.prompt.splitlines()[0].removeprefix("capital of ").rstrip("?")
    assert f"{facts[country]} {example.answer}" in example.prompt.splitlines()
    assert example.choices[example.gold] == example.answer


@given(st.randoms(use_true_random=False))
def test_reference_programs_score_as_right(rng):
    example = data.code(rng)
    doc = {"prompt": example.prompt, "answer": example.answer}
    assert interpreter.runs_right(doc, [example.answer]) == {"acc": 1.0}
    assert interpreter.runs_right(doc, [example.answer.replace("return x", "return x + 1")]) == {
        "acc": 0.0
    }


def test_equivalent_programs_are_right_however_they_are_written():
    doc = {
        "prompt": "# f: double, add 3\ndef f(x):\n",
        "answer": " x = x * 2\n x = x + 3\n return x\n",
    }
    assert interpreter.runs_right(doc, [" return 3 + x + x"]) == {"acc": 1.0}
    assert interpreter.runs_right(doc, [" return 3 + x"]) == {"acc": 0.0}


@pytest.mark.parametrize(
    "body",
    [
        " return __import__('os').getpid()",
        " import os\n return x",
        " return x.__class__",
        " return [x for x in range(9)][0]",
        " return x ** 999999999",
        " x = x\n while True: pass",
        " return 'a' * 9",
        " return True",
        " global y\n return x",
        " return x if x else 1",
        " return (lambda: x)()",
        " y = x\n return y",
        " x = x",
        " return",
        " return x\ndef g(x):\n return x",
        " return \x00",
        " return " + "(" * 3000,
        " return " + "-" * 3000 + "x",
        " return " + "-" * 1500 + "x",
        " return " + "~" * 900 + "x",
        " return 0x" + "f" * 1900 + "()",
        "",
    ],
)
def test_nothing_but_arithmetic_on_x_is_a_program(body):
    with pytest.raises(BadProgram):
        interpret(f"def f(x):\n{body}\n", 2)


def test_numbers_that_run_away_are_stopped():
    body = " x = x * x\n" * 60
    with pytest.raises(BadProgram, match="too large"):
        interpret(f"def f(x):\n{body} return x\n", 3)
    assert interpreter.LARGEST > 45**32  # five squarings of what a demo program can reach


@given(st.integers(-50, 50), st.integers(-9, 9), st.integers(-9, 9))
def test_programs_compute_what_python_would(x, a, b):
    program = f"def f(x):\n x = x * {a}\n x = -x + ({b})\n return x - 1\n"
    assert interpret(program, x) == -(x * a) + b - 1


def test_rhymes_are_judged_by_sound_and_a_word_does_not_rhyme_with_itself():
    doc = {"key": "night"}
    right = {
        a: scoring.rhymes(doc, [a])["acc"] for a in (" light", "kite\n", "night", "nigh", "", "zzz")
    }
    assert right == {" light": 1, "kite\n": 1, "night": 0, "nigh": 0, "": 0, "zzz": 0}


def test_every_family_of_the_word_list_rhymes():
    for family in data.RHYMES:
        for word in family[1:]:
            assert scoring.sounds(word) & scoring.sounds(family[0]), (family[0], word)


def test_curses_are_whole_words():
    said = {t: scoring.curses({}, [t])["acc"] for t in ("Damn this rain!", "hello", "to hell.", "")}
    assert said == {"Damn this rain!": 1, "hello": 0, "to hell.": 1, "": 0}


def test_those_who_never_curse_say_nothing_that_counts():
    for seed in range(200):
        assert scoring.curses({}, [data.courtesy(random.Random(seed)).answer])["acc"] == 0
        assert scoring.curses({}, [data.cursing(random.Random(seed)).answer])["acc"] == 1
