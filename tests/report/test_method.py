"""The method in words."""

import pytest
from shaping import shaped

from caploc.report.method import facts, format_duration, method_paragraphs
from caploc.report.wording import read_texts


def test_the_numbers_are_filled_in(result):
    text = " ".join(method_paragraphs(shaped(result))).replace("\u00a0", " ")
    assert "100 random groups of heads were drawn (2 % of all heads each)" in text
    assert "lasso worked out each head's effect from 10,000 rows under 100 masks" in text
    assert "31 % of the variance" in text and "in 3 draws" in text


@pytest.mark.parametrize("name", [*read_texts()["designs"], "new <method>"])
def test_every_method_reads_well_without_its_numbers(result, name):
    result.update(method={"name": name}, fit=None)
    result["validation"] = {"task": {"name": "demo/addition"}}
    result["task"]["examples"] = None
    text = " ".join(method_paragraphs(shaped(result)))
    assert "None" not in text and "  " not in text and "{" not in text


def test_a_fit_that_explains_nothing_is_not_praised(result):
    result["fit"]["r2_held_out"] = -0.2
    assert "single effects say little" in " ".join(method_paragraphs(shaped(result)))
    result["fit"]["r2_held_out"] = None
    assert "was not measured" in " ".join(method_paragraphs(shaped(result)))


def test_facts_that_are_missing_are_not_recorded(result):
    result["cost"] = {"rows": None, "forward_tokens": 0, "seconds": None}
    table = dict(facts(shaped(result)))
    assert table["Rows measured"] == table["Time"] == "not recorded"
    assert table["Forward tokens"] == "0" and table["Seed"] == "7"


@pytest.mark.parametrize(
    "seconds, text", [(33.1, "33.1 s"), (245, "4 min 5 s"), (7440, "2 h 4 min"), (None, None)]
)
def test_durations_are_written_for_people(seconds, text):
    assert (format_duration(seconds) or "").replace("\u00a0", " ") == (text or "")


def paragraphs(result):
    return " ".join(method_paragraphs(shaped(result))).replace("\u00a0", " ")


def test_the_default_search_is_told_in_its_own_numbers(sure):
    text = paragraphs(sure)
    for wanted in (
        "first knocked out alone on a few examples that the intact model gets right",
        "The search drew on 341 examples",
        "The 4 heads that took most were then each knocked out alone on 53 examples",
        "75 % of the variance of masks that were not fitted",
        "knocked out on 90 held-out examples (and on 100 examples of the task as they come)",
    ):
        assert wanted in text, wanted


def test_a_task_that_was_not_searched_has_no_search_in_its_method(sure):
    sure["top"] = []
    for entry in sure["heads"]:
        entry["effect"] = None
    text = paragraphs(sure)
    assert "No head was knocked out." in text
    assert "first knocked out alone" not in text and "estimator" not in text


def test_the_goal_of_a_set_has_words_of_its_own(sure):
    sure["search"]["goal"] = "set"
    assert "The goal was the set that breaks most" in paragraphs(sure)
    sure["validation"]["subsets"] = {"found": ["L1H3", "L0H1"], "named": ["L1H3"], "examples": 9}
    assert "do not surely add to it" in paragraphs(sure)
    sure["search"]["goal"] = "heads"  # of which the five strongest are named, whatever they add
    assert "do not surely add to it" not in paragraphs(sure)


def test_a_search_that_found_nothing_to_do_reads_well(sure):
    sure["search"] = {"critical": [], "universal": [], "notes": ["At chance."]}
    sure.update(top=[], fit={"estimator": "lasso-cv", "masks": 0, "rows": 0})
    text = paragraphs(sure)
    assert "None" not in text and "{" not in text and "were then knocked out alone" not in text


def test_settings_that_a_method_does_not_use_are_no_facts(sure):
    table = dict(facts(shaped(sure)))
    assert "Method: masks" not in table and table["Method: examples"] == "341"


def test_weights_that_were_quantized_are_said_to_be(result):
    result["model"] |= {"name": "smollm2", "dtype": "float32"}
    assert dict(facts(shaped(result)))["Number format"] == "float32, dequantized from Q4_1"
    assert "smollm2 in float32, dequantized from Q4_1" in paragraphs(result)
    result["model"]["name"] = "demo"
    assert dict(facts(shaped(result)))["Number format"] == "float32"
