"""The answer in a sentence: every wording case."""

import pytest
from shaping import shaped

from caploc.report.advice import next_steps
from caploc.report.sentence import headline, second_sentence, surviving_twin

NBSP = "\u00a0"


def said(result):
    return headline(shaped(result)).replace(NBSP, " ")


def scores(result, intact, knocked_out):
    result["intact"]["score"] = intact
    result["validation"]["task"]["intact"]["score"] = intact
    result["validation"]["task"]["knocked_out"]["score"] = knocked_out


def other(result, intact, knocked_out, verdict, **more):
    """Change what the task beside it scores, and what that is said to be."""
    entry = result["validation"]["other_tasks"][0]
    entry["intact"]["score"], entry["knocked_out"]["score"] = intact, knocked_out
    entry["change"] = {"outcome": knocked_out - intact, "verdict": verdict}
    entry |= more


def test_heads_without_which_nothing_else_loses_for_sure_are_specific(result):
    other(result, 0.98, 0.97, "unchanged")
    assert said(result) == (
        "L0H1 and L1H3, two of 8 heads, are specific to demo/addition among the 2 tasks "
        "scored: with them knocked out, its score falls from 99 % to 12 %, while demo/sentences "
        "goes from 98 % to 97 %."
    )


def test_what_else_loses_makes_heads_shared(result):
    other(result, 0.98, 0.8, "changed")
    assert said(result).startswith(
        "L0H1 and L1H3, two of 8 heads, are needed for demo/addition, and not for it "
    )
    assert said(result).endswith("while demo/sentences goes from 98 % to 80 %.")


def test_what_loses_as_much_is_needed_by_everything(result):
    other(result, 0.98, 0.48, "changed")
    assert said(result).startswith(
        "L0H1 and L1H3, two of 8 heads, are needed for demo/addition, and not for it "
    )
    first = result["validation"]["other_tasks"][0]
    result["validation"]["other_tasks"].append({**first, "name": "demo/prose"})
    assert said(result) == (
        "L0H1 and L1H3, two of 8 heads, are needed by every task that was scored: with them "
        "knocked out, demo/addition's score falls from 99 % to 12 %, while demo/sentences goes "
        "from 98 % to 48 % and demo/prose goes from 98 % to 48 %."
    )


def test_a_gain_elsewhere_leaves_heads_specific(result):
    other(result, 0.98, 1.0, "changed")
    assert "are specific to demo/addition" in said(result)


def test_what_may_be_lost_elsewhere_is_not_called_specific(result):
    """A few examples prove nothing; nor does a score whose error is unknown."""
    unsure = "are needed for demo/addition, and not surely for the other task scored: with"
    assert unsure in said(result)
    other(result, 0.98, 0.8, "open")
    assert unsure in said(result) and said(result).endswith("98 % to 80 %, which may be chance.")


def test_what_may_be_chance_is_said_of_neighbours_once(result):
    other(result, 0.98, 0.8, "open")
    more = dict(result["validation"]["other_tasks"][-1], name="demo/prose")
    result["validation"]["other_tasks"].append(more)
    assert said(result).count("may be chance") == 1
    assert said(result).endswith("demo/prose goes from 98 % to 80 %, both of which may be chance.")


def test_a_twin_is_said_first_and_is_nothing_else(result):
    other(result, 0.98, 0.1, "changed", twin=True)
    assert said(result).endswith("Whether other tasks need them was not measured.")
    result["validation"]["other_tasks"].append(
        {"name": "demo/prose", "intact": {"score": 0.9}, "knocked_out": {"score": 0.9}}
    )
    assert "and not surely for the other task scored" in said(result)
    told = "while in other words (demo/sentences) it goes from 98 % to 10 % and demo/prose stays at"
    assert told in (said(result))


def test_of_several_twins_the_one_that_loses_least_is_told(result):
    other(result, 0.98, 0.1, "changed", twin=True)
    first = result["validation"]["other_tasks"][0]
    change = {**first["change"], "outcome": 0.0, "verdict": "unchanged"}
    kept = {**first, "name": "demo/kept", "knocked_out": {"score": 0.98}, "change": change}
    prose = {"name": "demo/prose", "intact": {"score": 0.9}, "knocked_out": {"score": 0.9}}
    result["validation"]["other_tasks"] += [kept, prose]
    told = said(result)
    assert "in other words (demo/kept, which loses least) it stays at 98 % and demo/prose" in told
    assert "in other words (demo/sentences) it goes from 98 % to 10 %" in told
    assert "as this prompt asks it, not surely by all its other wordings" in told


@pytest.mark.parametrize("verdict", ["open", "unchanged"])
def test_heads_without_which_a_twin_survives_are_this_prompts(result, verdict):
    other(result, 0.98, 0.97, verdict, twin=True)
    result["validation"]["other_tasks"].append(
        {"name": "demo/prose", "intact": {"score": 0.9}, "knocked_out": {"score": 0.9}}
    )
    assert said(result).startswith(
        "L0H1 and L1H3, two of 8 heads, are needed for demo/addition as this prompt asks it, "
        "not surely in other words, and not surely for the other task scored: with"
    )
    first = next_steps(shaped(result), None, "runs/a")[0].why
    assert "in other words (demo/sentences) it may survive" in first
    assert surviving_twin(shaped(result)).name == "demo/sentences"
    result["validation"]["other_tasks"][0]["change"] |= {"outcome": -0.9, "verdict": "changed"}
    assert surviving_twin(shaped(result)) is None  # and yet it loses 1 point of 98
    assert "as this prompt asks it, less so in other words, and not surely" in said(result)
    result["validation"]["other_tasks"][0]["knocked_out"]["score"] = 0.08
    assert "as this prompt" not in said(result)


def test_the_tasks_that_lose_most_are_said(result):
    tasks = result["validation"]["other_tasks"]
    for place, score in enumerate((0.5, 0.9, 0.7)):
        change = {"outcome": score - 1, "verdict": "changed"}
        tasks.append({"name": f"demo/{place}", "intact": {"score": 1.0},
                      "knocked_out": {"score": score}, "change": change})  # fmt: skip
    assert said(result).endswith(
        "demo/0 goes from 100 % to 50 %, demo/2 goes from 100 % to 70 % and 1 more task loses too."
    )


def test_one_head_takes_the_singular(result):
    result["top"] = ["L0H1"]
    assert said(result).startswith(
        "L0H1, one of 8 heads, is needed for demo/addition, and not surely"
    )
    assert "With a random head knocked out instead" in second_sentence(shaped(result))


def test_without_another_task_it_is_open_what_else_needs_them(result):
    result["validation"]["other_tasks"] = []
    assert said(result).startswith(
        "L0H1 and L1H3, two of 8 heads, are needed for demo/addition: with"
    )
    assert said(result).endswith(
        "its score falls from 99 % to 12 %. Whether other tasks need them was not measured."
    )

    result["top"] = ["L0H1"]
    assert said(result).endswith("Whether other tasks need it was not measured.")


def test_another_task_without_scores_is_not_mentioned(result):
    result["validation"]["other_tasks"][0]["knocked_out"] = None
    assert "demo/sentences" not in said(result)


def test_another_task_that_reads_the_same_stays(result):
    result["validation"]["other_tasks"][0]["knocked_out"]["score"] = 0.98
    assert said(result).endswith("while demo/sentences stays at 98 %.")


def test_log_probabilities_are_nats_and_not_percentages(result):
    result["task"]["metric"] = "logprob"
    result["validation"]["controls"] = None
    scores(result, -1.2, -5.61)
    assert "its mean log-probability falls from −1.20 nats to −5.61 nats" in said(result)


def test_perplexity_rises_when_it_gets_worse(result):
    result["task"].update(metric="word_perplexity", higher_is_better=False)
    result["validation"]["controls"] = None
    scores(result, 12.1, 45.6)
    assert "its word_perplexity rises from 12.1 to 45.6 (lower is better)" in said(result)
    assert "are needed for" in said(result)


@pytest.mark.parametrize("knocked_out, moves", [(0.995, "rises from 99 % to 99.5 %"),
                                                (0.99, "stays at 99 %")])  # fmt: skip
def test_a_score_that_does_not_fall_is_said_plainly(result, knocked_out, moves):
    scores(result, 0.99, knocked_out)
    assert said(result) == (
        "Knocking out two of 8 heads, L0H1 and L1H3, does not hurt demo/addition: "
        f"its score {moves}."
    )


def test_a_lower_perplexity_does_not_hurt(result):
    result["task"].update(metric="word_perplexity", higher_is_better=False)
    scores(result, 12.1, 11.9)
    assert "does not hurt" in said(result)


def test_a_fall_within_the_sampling_error_is_not_called_a_find(result):
    scores(result, 0.99, 0.97)
    assert "hardly touches demo/addition" in said(result)
    assert "falls from 99 % to 97 %, which is within the sampling error" in said(result)


def test_a_fall_that_random_heads_cause_too_is_not_called_a_find(result):
    result["validation"]["controls"].update(scores=[0.05, 0.9], mean=0.475)
    assert "no more than some random heads do. Its score falls from 99 % to 12 %" in said(result)


def test_missing_scores_are_not_measured_and_never_zero(result):
    scores(result, None, None)
    assert said(result) == (
        "Two of 8 heads look most needed for demo/addition: L0H1 and L1H3. "
        "What knocking them out together does was not measured."
    )
    assert second_sentence(shaped(result)) == ""


def test_a_missing_intact_score_alone_is_said(result):
    scores(result, None, 0.12)
    assert "the score is 12 %; the intact score was not measured" in said(result)


def test_an_intact_score_missing_in_the_check_is_taken_from_the_search(result):
    result["validation"]["task"]["intact"] = None
    assert "falls from 99 % to 12 %" in said(result)


def test_no_head_found_is_said(result):
    result["top"] = []
    assert said(result) == "None of 8 heads was found that demo/addition needs (intact: 99 %)."


def test_where_a_set_was_sought_none_that_was_found_is_told(result):
    result["top"], result["search"] = [], {"goal": "set"}
    assert said(result) == (
        "No set among 8 heads was found that surely breaks demo/addition (intact: 99 %)."
    )
    result["search"] = {"goal": "specific"}
    assert said(result) == (
        "No set of heads was tried that may break demo/addition (intact: 99 %) and spare others: "
        "none came into question."
    )


def test_a_task_that_was_not_searched_is_not_told_as_one_that_needs_no_head(result):
    result["top"] = []
    for entry in result["heads"]:
        entry["effect"] = None
    assert said(result) == (
        "No head was sought for demo/addition (intact: 99 %): its loss could not have been told."
    )


@pytest.mark.parametrize(("effect", "told"), [(-0.7, True), (-0.3, False)])
def test_a_head_left_out_for_other_tasks_is_told_where_it_takes_half_as_much(sure, effect, told):
    entry = next(each for each in sure["heads"] if each["head"] == "L1H0")
    sure["search"]["breaks"] = {"L1H0": "words/copy"}
    entry |= {"universal": True, "effect": effect, "low": effect - 0.1, "high": effect + 0.1}
    left_out = "Left out is L1H0 (alone −70.0 points, by the search): it breaks words/copy too."
    assert (left_out in said(sure)) is told


def test_where_no_set_keeps_its_price_the_gentlest_that_breaks_the_task_is_told(result):
    def loss(effect):
        return {"effect": effect, "low": effect - 0.1, "high": effect + 0.1}

    def found(heads, damage, cost):
        spared = [{"task": "words/plural", "effect": loss(cost)}]
        return {"heads": heads, "damage": loss(damage), "spared": spared}

    result["top"] = []
    idle, gentle, harsh = (
        (["L0H1"], 0.0, 0.0),
        (["L0H2", "L0H3"], -0.4, -0.2),
        (["L0H4"], -0.9, -0.8),
    )
    sets = [found(*each) for each in (idle, harsh, gentle)]
    result["validation"]["frontier"] = {"price": 0.05, "sets": sets}
    assert said(result) == (
        "No set of heads was found that breaks demo/addition (intact: 99 %) and surely costs every "
        "spared task 5 points at most: the gentlest that breaks it, L0H2 and L0H3, takes 40 points "
        "from it and 20 from words/plural."
    )
    result["validation"]["frontier"]["sets"] = sets[:1]
    assert said(result).endswith("costs every spared task 5 points at most.")


def test_many_heads_are_cut_short(result):
    result["top"] = [f"L0H{index}" for index in range(20)]
    result["grid"], result["heads"] = {"layers": 1, "heads": [5000], "group_sizes": [1]}, []
    assert said(result).startswith(
        "L0H0, L0H1, L0H2, L0H3, L0H4, L0H5 and 14 more, 20 of 5,000 heads, are needed"
    )


def test_random_heads_are_compared_or_their_absence_is_said(result):
    assert second_sentence(shaped(result)).replace(NBSP, " ") == (
        "With two random heads knocked out instead (as many in each layer, 3 draws), "
        "demo/addition's score is 95 % on average, and each of the 3 draws hurts less than the "
        "named heads."
    )
    result["validation"]["controls"] = None
    assert "were not tried" in second_sentence(shaped(result))


def test_held_out_examples_carry_the_verdict_where_there_are_any(sure):
    assert said(sure) == (
        "L0H1 and L1H3, two of 8 heads, are needed for demo/addition, and not surely for the "
        "other task scored: with them knocked out, its score on 90 held-out examples falls from "
        "100 % to 22 %, while demo/sentences goes from 98 % to 97 %, which may be chance."
    )
    assert second_sentence(shaped(sure)).replace(NBSP, " ") == (
        "With two random heads knocked out instead (as many in each layer, 3 draws), "
        "demo/addition's score is 95 % on average, and each of the 3 draws hurts less than the "
        "named heads."
    )


def test_where_the_effect_is_weak_it_is_said_what_that_means_beside_random_heads(sure):
    sure["validation"]["held_out"]["change"].update(low=-0.2, high=0.1)
    text = second_sentence(shaped(sure)).replace(NBSP, " ")
    assert (
        "and none of 3 draws hurts as much as the named heads: the change itself may be chance, so "
        "that they matter is not shown." in text
    )
    sure["validation"]["controls"]["scores"] = [0.1, 0.9, 0.95]
    text = second_sentence(shaped(sure)).replace(NBSP, " ")
    assert "1 of 3 draws hurts as much as the named heads: chance alone may make such a" in text


def test_a_head_that_does_most_of_it_alone_is_named_with_its_own_figure(sure):
    """No set is said to be needed together where one of it would do."""
    sure["search"]["goal"] = "set"
    assert said(sure).startswith(
        "L0H1 and L1H3, two of 8 heads, together are needed for demo/addition"
    )
    sure["validation"]["held_out"]["change"]["outcome"] = -0.78

    def member(head, effect):
        interval = {"effect": effect, "low": effect - 0.1, "high": effect + 0.1}
        return {"head": head, "alone": interval, "within": interval}

    sure["validation"]["members"] = {"heads": [member("L0H1", -0.1), member("L1H3", -0.51)]}
    assert "together are needed" in said(sure)
    sure["validation"]["members"] = {"heads": [member("L0H1", -0.1), member("L1H3", -0.7)]}
    assert said(sure).startswith(
        "L0H1 and L1H3, two of 8 heads, most of all L1H3, are needed for demo/addition"
    )
    assert "falls from 100 % to 22 % (L1H3 alone −70.0 points), while" in said(sure)
    assert (
        "Knocked out alone, L1H3 changes it by −70.0 points (95 % interval −80.0 to −60.0): most "
        "of what all do." in second_sentence(shaped(sure)).replace(NBSP, " ")
    )
    sure["validation"]["members"] = {"heads": [member("L0H1", -0.6), member("L1H3", -0.7)]}
    assert said(sure).startswith(
        "L0H1 and L1H3, two of 8 heads, each alone most of the way, are needed for"
    )
    assert "(L1H3 alone −70.0 points and L0H1 alone −60.0 points)" in said(sure)
    sure["validation"]["members"]["heads"][0]["alone"]["high"] = 0.02  # it may do nothing
    assert "two of 8 heads, most of all L1H3, are needed" in said(sure)


@pytest.mark.parametrize(("high", "told"), [(0.02, True), (-0.1, False)])
def test_heads_of_which_none_adds_to_the_others_are_said_to_do_the_same(sure, high, told):
    within = [{"effect": -0.2, "low": -0.4, "high": each} for each in (0.05, high)]
    sure["validation"]["members"] = {
        "heads": [
            {"head": head, "alone": {"effect": -0.3}, "within": each}
            for head, each in zip(("L0H1", "L1H3"), within, strict=True)
        ]
    }
    assert ("but not surely all of them" in said(sure)) is told
    none = "None of them surely adds to what the others take: fewer may do as much."
    some = "L0H1 does not surely add to what the others take."
    assert second_sentence(shaped(sure)).endswith(none if told else some)


@pytest.mark.parametrize(("mean", "told"), [(0.5, True), (0.9, False)])
def test_neighbours_that_do_much_of_it_are_told(sure, mean, told):
    sure["validation"]["controls"]["same_groups"] = {"draws": 3, "scores": [mean], "mean": mean}
    said_of_them = "With others of the same key-value groups it is 50 %."
    assert (said_of_them in second_sentence(shaped(sure)).replace(NBSP, " ")) is told


def test_without_held_out_examples_the_drop_may_be_overstated(sure):
    sure["validation"]["held_out"]["fresh"] = False
    assert "falls from 99 % to 12 %" in said(sure) and "held-out" not in said(sure)
    assert said(sure).endswith("found on some of these examples: the drop may be overstated.")
    text = second_sentence(shaped(sure)).replace(NBSP, " ")
    assert (
        "demo/addition's score is 95 % on average, where it is 22 % without the named heads."
        in text
    )


@pytest.mark.parametrize(
    ("high", "verdict", "words"),
    [(0.01, "open", "which is within the sampling error"),
     (-0.005, "unchanged", "surely by less than 3 points")],
)  # fmt: skip
def test_an_interval_decides_what_is_noise_and_what_is_slight(sure, high, verdict, words):
    held_out = sure["validation"]["held_out"]
    held_out["knocked_out"] = 0.99
    held_out["change"].update(outcome=-0.01, low=-0.02, high=high, verdict=verdict)
    assert "hardly touches demo/addition" in said(sure) and words in said(sure)


def test_random_heads_are_compared_on_their_own_examples(sure):
    """The whole task's drop is larger than the controls', and theirs is of other examples."""
    sure["validation"]["held_out"]["fresh"] = False
    sure["validation"]["controls"]["scores"] = [0.2, 0.98]
    assert "no more than some random heads do" in said(sure)


def test_a_path_is_called_by_its_last_part(sure):
    sure["task"]["name"] = "/home/someone/tasks/sums.yaml"
    assert "are needed for sums.yaml, and not surely for the other task" in said(sure)
