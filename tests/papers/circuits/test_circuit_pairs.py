"""Corrupted prompts: another subject of as many tokens, and the token its answer begins with."""

import pytest

from papers.cnl.circuits import find_pair, others_of
from papers.cnl.facts import FactPrompt
from papers.cnl.prompts import Encoder
from worlds.facts import demo_counterparts
from worlds.tasks.data import CAPITALS


def stated(country, capital, other=None):
    return FactPrompt(f"capital of {country} is ", country, capital, other)


@pytest.fixture(scope="module")
def wording(demo):
    return Encoder(demo)


def text(wording, tokens):
    return wording.tokenizer.decode(tokens, skip_special_tokens=True)


@pytest.mark.parametrize("country, capital", CAPITALS[:12])
def test_a_demo_fact_is_held_against_another_of_equal_length(wording, country, capital):
    pair = find_pair(wording, stated(country, capital), demo_counterparts)
    assert len(pair.clean) == len(pair.corrupted)
    answers = dict(CAPITALS)
    _, _, other, *_ = text(wording, pair.corrupted).split(" ")
    assert other != country and len(other) == len(country)
    # the prompts end where the answers part
    clean, corrupted = (text(wording, each) for each in (pair.clean, pair.corrupted))
    gold, wrong = (text(wording, [each]) for each in (pair.gold, pair.other))
    assert f"capital of {country} is {capital}".startswith(clean + gold)
    assert f"capital of {other} is {answers[other]}".startswith(corrupted + wrong)
    assert gold != wrong


def test_what_both_answers_begin_with_joins_the_prompts(wording):
    pair = find_pair(wording, stated("Spain", "Madrid"), lambda _: [("Italy", "Malta")])
    assert text(wording, pair.clean) == "capital of Spain is Ma"
    assert text(wording, pair.corrupted) == "capital of Italy is Ma"
    assert (text(wording, [pair.gold]), text(wording, [pair.other])) == ("d", "l")


@pytest.mark.parametrize(
    "counterpart",
    [
        ("Portugal", "Lisbon"),  # of another length
        ("Italy", "Madrid"),  # the same answer
        ("Italy", "Mad"),  # no token in which the answers differ
    ],
)
def test_where_no_counterpart_fits_there_is_no_pair(wording, counterpart):
    assert find_pair(wording, stated("Spain", "Madrid"), lambda _: [counterpart]) is None
    subjectless = FactPrompt("capital of Spain is ", None, "Madrid")
    assert find_pair(wording, subjectless, demo_counterparts) is None


def test_a_counterpart_with_the_false_answer_goes_first(wording):
    for seed in range(5):
        prompt = stated("Peru", "Lima", other="Baghdad")
        pair = find_pair(wording, prompt, demo_counterparts, seed=seed)
        assert text(wording, pair.corrupted) == "capital of Iraq is "


def test_counterparts_come_from_prompts_of_the_same_words():
    prompts = [
        stated("Peru", "Lima"),
        stated("Iraq", "Baghdad"),
        FactPrompt("the river of Iraq is ", "Iraq", "Tigris"),
        FactPrompt("capital of Chad is ", None, "N'Djamena"),
    ]
    counterparts = others_of(prompts)
    assert counterparts(prompts[0]) == [("Iraq", "Baghdad")]
    assert counterparts(prompts[2]) == []
    assert counterparts(prompts[3]) == []
