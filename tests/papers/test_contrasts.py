import re
from collections import Counter

import pytest

from caploc.errors import BadOption
from papers.cnl.contrasts import (
    ARMS,
    ATTITUDES,
    OPERATIONS,
    OPPOSITES,
    WORDINGS,
    arithmetic,
    distinct,
    kept,
    sentiment,
)
from worlds.contrasts import quizzes, sums
from worlds.tasks.data import CAPITALS, ELEMENTS


def capitals(items=1000, *, seed=0):
    return quizzes(CAPITALS, "capital of", items, seed=seed)


def elements(items=1000, *, seed=0):
    return quizzes(ELEMENTS, "symbol of", items, seed=seed)


def widest(contrasts, part, length=len):
    """By arm, how far a partner's prompt or answer is longer or shorter than the base's."""
    return {
        arm: max(
            abs(length(getattr(each.partners[arm], part)) - length(getattr(each.base, part)))
            for each in contrasts
        )
        for arm in ARMS
    }


GENERATORS = [arithmetic, sentiment, sums, capitals, elements]
every_generator = pytest.mark.parametrize("draw", GENERATORS, ids=lambda draw: draw.__name__)


@every_generator
def test_the_arms_differ_in_what_they_should_and_in_nothing_else(draw):
    contrasts = draw(300)
    assert len(contrasts) == 300
    for each in contrasts:
        base, partners = each.base, each.partners
        same = {
            arm: (
                item.commonality == base.commonality,
                item.content == base.content,
                item.wording == base.wording,
            )
            for arm, item in partners.items()
        }
        assert same == {
            "SS": (True, True, False),
            "SC": (True, False, True),
            "CD": (False, True, True),
            "DD": (False, False, True),
        }
        assert partners["DD"].commonality == partners["CD"].commonality
        assert partners["DD"].content == partners["SC"].content
        assert base.answer == partners["SS"].answer
        assert len({item.prompt for item in each.items}) == 5


@every_generator
def test_answers_are_equally_long_and_prompts_nearly(draw):
    contrasts = draw(300)
    assert not any(widest(contrasts, "answer").values())
    prompts = widest(contrasts, "prompt")
    assert prompts["SC"] == 0
    assert prompts["SS"] <= 1
    if draw in (arithmetic, sentiment, sums):
        assert max(prompts.values()) <= 1


@every_generator
def test_base_items_differ_and_more_begin_with_the_same(draw):
    contrasts = draw()  # 1,000 by default
    assert len({each.base.prompt for each in contrasts}) == 1000
    assert draw(100) == contrasts[:100]
    assert draw(100, seed=1) != contrasts[:100]


def calculated(prompt, operation):
    """The answer, read off the prompt's numbers."""
    first, second = map(int, re.findall(r"\d+", prompt))
    return {
        "addition": first + second,
        "subtraction": first - second,
        "multiplication": first * second,
        "division": first / second,
    }[operation]


def test_arithmetic_is_right_in_every_wording():
    contrasts = arithmetic(400)
    for each in contrasts:
        for item in each.items:
            assert item.answer == f" {calculated(item.prompt, item.commonality):g}"
    asked = Counter((each.base.commonality, each.partners["DD"].commonality) for each in contrasts)
    assert len(asked) == 12
    assert {each.base.wording for each in contrasts} == set(WORDINGS)
    assert set(OPERATIONS) == {each.base.commonality for each in contrasts}


def test_no_operand_and_no_answer_ties_contents_of_arithmetic_together():
    for each in arithmetic(400):
        operands = [set(item.content.split(", ")) for item in (each.base, each.partners["DD"])]
        assert not operands[0] & operands[1]
        assert len({item.answer for item in each.partners.values()}) == 4


def test_sums_are_right_and_swapped():
    for each in sums(400):
        for item in each.items:
            assert int(item.answer) == calculated(item.prompt, item.commonality) or (
                item is each.partners["SS"]
            )
        first, second = re.findall(r"\d+", each.base.prompt)
        assert each.partners["SS"].prompt == f"{second}+{first}="
        assert int(each.base.answer) == int(first) + int(second)


@pytest.mark.parametrize(("draw", "facts"), [(capitals, CAPITALS), (elements, ELEMENTS)])
def test_quizzes_have_the_right_letter_in_the_demo_models_own_form(draw, facts):
    answers = dict(facts)
    for each in draw(300):
        for item in each.items:
            question, *options, last = item.prompt.split("\n")
            letters = dict(reversed(option.split()) for option in options)
            assert (list(letters), last) == (list("ABCD"), "=")
            kind, _, subject = question.removesuffix("?").rpartition(" ")
            wanted = subject if kind == "pick" else answers[subject]
            assert letters[item.answer] == wanted
            assert kind == item.commonality
        assert len({item.answer for item in each.items}) == 1
        asked = [set(item.prompt.split("\n")[1:5]) for item in (each.base, each.partners["SS"])]
        assert asked[0] != asked[1]


def test_reviews_say_what_their_attitude_is():
    words = {word: ATTITUDES[place] for pair in OPPOSITES for place, word in enumerate(pair)}
    assert len(words) == 2 * len(OPPOSITES)
    contrasts = sentiment()
    for each in contrasts:
        for item in each.items:
            said = [words[word] for word in re.findall(r"\w+", item.prompt) if word in words]
            assert [f" {attitude}" for attitude in said] == [item.answer]
            assert item.content in item.prompt
        said = [set(re.findall(r"\w+", item.prompt)) & set(words) for item in each.items[:2]]
        assert said[0] != said[1]
    assert {each.base.commonality for each in contrasts} == set(ATTITUDES)


def test_only_contrasts_answered_rightly_throughout_are_kept():
    contrasts = arithmetic(200)
    found = kept(contrasts, lambda item: item.commonality != "division")
    assert 0 < len(found) < 200
    for each in contrasts:
        divides = any(item.commonality == "division" for item in each.items)
        assert (each not in found) == divides


def test_operands_stay_below_the_limit():
    for each in arithmetic(200):
        for item in each.items:
            assert all(2 <= int(part) <= 99 for part in item.content.split(", "))


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(BadOption, match="1 or more; got 0"):
        sums(0)
    three = sums(3)
    assert len(distinct(lambda random: random.choice(three), 3, 0)) == 3
    with pytest.raises(BadOption, match="about 3 different base items"):
        distinct(lambda random: random.choice(three), 4, 0)
    with pytest.raises(BadOption, match="at least 8 facts; got 3"):
        quizzes(CAPITALS[:3], "capital of", 5)
    with pytest.raises(BadOption, match="about 0 different"):
        distinct(lambda _: None, 3, 0)
