"""The section that says how sure the finding is."""

import pytest
from shaping import shaped

from caploc.report.sureness import questions

MORE = "Would more rows change the answer?"


def signs(result):
    """Every sign by its name: figure and reading."""
    return {
        sign.name: (sign.figure.replace("\u00a0", " "), sign.reading.replace("\u00a0", " "))
        for question in questions(shaped(result))
        for sign in question.signs
    }


def test_a_method_without_intervals_says_what_is_not_known(result):
    for head in result["heads"]:
        head.update(low=None, high=None)
    for search in (None, {"critical": [], "universal": [], "notes": []}):
        result["search"] = search
        assert [question.title for question in questions(shaped(result))] == [MORE]
        assert signs(result)["Run again"][0] == "not known"


def test_a_method_with_intervals_says_what_another_run_would_name(result):
    result["heads"] = [head for head in result["heads"] if head["effect"] is not None]
    figure, reading = signs(result)["Run again"]
    # 0.19 - 0.003 lies 10 standard errors of a difference of two runs apart.
    assert figure == "100 % the same" and "2.0 with as many and 2.0 with four times" in reading
    assert "hardly change the answer" in reading and "an upper figure" in reading
    for head in result["heads"]:
        head.update(low=head["effect"] - 0.6, high=head["effect"] + 0.6)
    figure, reading = signs(result)["Run again"]
    assert figure != "100 % the same"


def test_where_nothing_was_found_more_rows_are_not_discussed(result):
    result["top"] = []
    assert questions(shaped(result)) == []


def test_what_another_search_for_a_set_would_name_is_not_known(sure):
    sure["search"]["goal"] = "set"
    assert signs(sure)["Run again"][0] == "not known"
    assert "With more rows" not in signs(sure)


def test_every_question_is_answered(sure):
    assert [question.title for question in questions(shaped(sure))] == [
        "Are these the right heads?", MORE, "Does it hold on other examples?",
        "Do the effects add up?", "What else breaks?",
    ]  # fmt: skip


def test_the_search_says_what_it_tried_and_whether_that_is_stable(sure):
    said = signs(sure)
    assert said["Heads tried alone"][0] == "4 heads on 53"
    assert said["Stability"][0] == "0.62" and "Unstable" in said["Stability"][1]
    assert said["Rows of the search"][0] == "1,996 of 2,000"
    sure["search"].update(jaccard=0.9, budget=None)
    assert "Unstable" not in signs(sure)["Stability"][1]
    assert signs(sure)["Rows of the search"][0] == "1,996"


def test_the_check_has_its_interval_and_how_many_random_draws_do_as_much(sure):
    said = signs(sure)
    assert said["Held-out examples"] == (
        "100 % → 22 %",
        "On 90 examples that the search for candidates never used, the change is −78.0 points "
        "(95 % interval −86.0 to −70.0): chance alone would seldom do so.",
    )
    assert said["Random heads"][0] == "none of 3 draws"
    assert "3 draws leave a score of 95 % ± 3.6" in said["Random heads"][1]
    assert said["Neighbours in the groups"][0] == "none of 1 draw"
    assert "1 draw of 2 heads leaves a score of 91 %" in said["Neighbours in the groups"][1]


def test_a_check_on_used_examples_says_so(sure):
    sure["validation"]["held_out"].update(fresh=False, change=None)
    name, reading = "Examples of the search", "The task has too few left over, so on 90 examples"
    assert signs(sure)[name][1].startswith(reading)
    assert signs(sure)[name][1].endswith("the change was not measured.")


def test_controls_without_single_draws_or_without_any_are_said(sure):
    sure["validation"]["controls"].update(scores=[], sd=None, same_groups=None)
    assert signs(sure)["Random heads"][0] == "95 %"
    sure["validation"]["controls"] = None
    assert signs(sure)["Random heads"][0] == "not measured"


def test_without_heads_nothing_is_said_of_their_check(sure):
    sure["top"] = []
    sure["validation"]["held_out"].update(together=None)
    assert [question.title for question in questions(shaped(sure))] == [
        "Are these the right heads?", MORE, "Do the effects add up?",
    ]  # fmt: skip
    assert not {"Expected recall", "With more rows"} & set(signs(sure))  # of no heads


def test_a_high_r2_is_shown_beside_its_ceiling_and_proves_nothing(sure):
    figure, reading = signs(sure)["R² on held-out masks"]
    assert figure == "0.75, ceiling 0.90"
    assert "explains 75 % of the variance of 30 held-out masks, on 20 examples each" in reading
    assert "A high R² cannot prove that effects add up" in reading
    sure["validation"]["held_out"]["prediction"].update(ceiling=None, slope=-1.0)
    figure, reading = signs(sure)["R² on held-out masks"]
    assert figure == "0.75" and "not measured" in reading and "predict nothing" in reading


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [(2.1, 4.4, "the heads may stand in for each other"), (0.2, 0.8, "losses overlap"),
     (0.8, 1.3, "this does not tell whether losses add up"),
     (None, None, "Alone they take nothing")],
)  # fmt: skip
def test_the_drop_together_is_read_by_its_interval(sure, low, high, words):
    ratio = None if low is None else (low + high) / 2
    sure["validation"]["held_out"]["together"].update(ratio=ratio, low=low, high=high)
    figure, reading = signs(sure)["Drop together over drops alone"]
    assert words in reading and "Together −78.0 points, one at a time −27.0 points" in reading
    assert "Below 1, heads do the same work or little is left to lose; above 1" in reading
    assert (figure == "not measured") == (ratio is None)


def test_a_ratio_of_losses_that_are_next_to_nothing_alone_is_not_told(sure):
    sure["validation"]["held_out"]["together"] |= {"sum_of_drops": 0.045, "ratio": 20, "high": 22}
    figure, reading = signs(sure)["Drop together over drops alone"]
    assert figure == "not told" and "next to nothing" in reading


def test_losses_that_sum_to_more_than_there_is_are_not_said_to_add_up(sure):
    held_out = sure["validation"]["held_out"]
    held_out["together"] |= {"sum_of_drops": 1.2, "ratio": 0.65, "low": 0.5, "high": 1.0}
    held_out["intact"] = 1.0
    assert "their losses must overlap" in signs(sure)["Drop together over drops alone"][1]


@pytest.mark.parametrize(
    ("verdict", "figure", "words"),
    [("open", "may be chance", "too few examples"),
     ("changed", "changed", "chance alone would seldom"),
     ("unchanged", "unchanged within 3 points", "unchanged within 3 points."),
     (None, "not measured", "the change is −1.0 points")],
)  # fmt: skip
def test_what_else_breaks_has_a_verdict_for_each_task(sure, verdict, figure, words):
    sure["validation"]["other_tasks"][0]["change"]["verdict"] = verdict
    said = signs(sure)["demo/sentences"]
    assert said[0] == figure and words in said[1]


def test_a_head_that_finds_nothing_left_to_lose_is_told_from_one_that_does_nothing(sure):
    sure["validation"]["subsets"] = {
        "found": [*sure["top"], "L1H0"],
        "named": [*sure["top"], "L1H0"],
    }
    held_out = sure["validation"]["held_out"]
    for left, told in ((0.1, True), (0.4, False)):
        held_out |= {"intact": 1.0, "knocked_out": left}
        reading = signs(sure)["Most damaging part"][1]
        assert "L1H0 adds nothing beyond doubt" in reading
        assert ("leaves too little to lose" in reading) is told
