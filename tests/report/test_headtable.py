"""The table of named heads and candidates."""

from shaping import shaped

from caploc.report.headtable import HEADS_LISTED, explain_standings, head_map, head_table


def rows(result):
    return {row.head: row for row in head_table(shaped(result)).rows}


def test_top_and_selected_heads_are_listed_with_what_is_known(result):
    table = head_table(shaped(result))
    assert [row.head for row in table.rows] == ["L0H1", "L1H3"]
    assert table.columns == {"intervals"}
    assert table.rows[0].interval == "−46.0 to −36.0"
    assert table.title == "Named heads and candidates"


def test_without_a_choice_the_most_needed_are_listed(result):
    result["top"] = []
    for head in result["heads"]:
        head["selected"] = None
    table = head_table(shaped(result))
    assert [row.head for row in table.rows][:2] == ["L0H1", "L1H3"]
    assert all(not row.standing.words for row in table.rows)
    assert "none of them named" in table.title


def test_a_selected_head_beyond_the_top_says_so(result):
    result["top"] = ["L0H1"]
    assert rows(result)["L1H3"].standing.words == ["selected"]


def test_why_a_head_of_a_larger_effect_is_not_named_is_said(result):
    assert explain_standings(shaped(result)) == ""
    result["top"] = ["L1H3"]
    told = explain_standings(shaped(result))
    assert told.startswith("Not named, though of larger effect than a named head: L0H1. How sure")
    result["heads"][0].update(low=-0.9, high=0.1)
    assert "L0H1. An interval that holds 0" in explain_standings(shaped(result))


def test_named_heads_that_the_check_leaves_in_doubt_are_told(result):
    alone = {"effect": -0.2, "low": -0.378, "high": 0.015}
    sure = {"effect": -0.4, "low": -0.5, "high": -0.3}
    heads = [{"head": "L0H1", "alone": alone, "within": sure}]
    heads += [{"head": "L1H3", "alone": sure, "within": alone}]
    result["validation"]["members"] = {"fresh": True, "examples": 25, "heads": heads}
    assert explain_standings(shaped(result)).replace("\u00a0", " ") == (
        "The check does not confirm L0H1 −20.0 points (−37.8 to +1.5) alone: on its 25 examples "
        "its interval holds 0."
    )
    result["validation"]["members"]["fresh"] = False  # then it has seen what the search saw
    assert explain_standings(shaped(result)) == ""


def test_a_small_q_beside_an_interval_that_holds_zero_is_explained(result):
    result["heads"][1].update(low=-0.4, high=0.1, q=0.01)
    assert explain_standings(shaped(result)).startswith("q of L1H3 is below 0.05 though")
    result["heads"][1].update(q=0.2)
    assert explain_standings(shaped(result)) == ""


def test_what_is_needed_beside_a_set_is_said_and_marked(result):
    """A set of one head does not mean that the task needs no other."""
    result["estimand"] = {"heads": "alone", "top": "within the set"}
    result["top"] = ["L0H1"]
    assert explain_standings(shaped(result)) == ""  # L1H3 does less than half as much
    result["heads"][1].update(effect=-0.3, low=-0.4, high=-0.2)
    result["heads"][2].update(effect=-0.4, low=-0.9, high=0.1)
    told = explain_standings(shaped(result)).replace("\u00a0", " ")
    assert told == (
        "Not in the set, though alone these take much, as tried or estimated: L1H3 −30.0 points "
        "(−40.0 to −20.0). "
        "Not in it, with estimates that are large and not sure: L0H0 −40.0 points (−90.0 to "
        "+10.0). An effect here is of one head knocked out alone, by this run's rows; the set was "
        "chosen for what heads do together."
    )
    drawn = head_map(shaped(result))
    marked = [str(cell.head) for row in drawn.layers for cell in row if cell.text == "?"]
    assert marked == ["L0H0"] and drawn.unsure == 1
    result["heads"][3].update(effect=-0.19, low=-0.3, high=-0.1)  # less than half of the largest
    assert str(result["heads"][3]["head"]) not in explain_standings(shaped(result))
    result["heads"][1]["universal"] = True  # which is why it is left out
    told = explain_standings(shaped(result)).replace("\u00a0", " ")
    assert "Left out, for other tasks break too: L1H3 −30.0 points." in told
    assert "not in the set, though" not in told.lower()


def test_the_named_come_first_in_their_order_then_candidates_and_those_left_out(sure):
    sure["top"] = ["L1H3", "L0H1"]
    table = head_table(shaped(sure))
    assert [(row.rank, row.head) for row in table.rows] == [
        ("1", "L1H3"), ("2", "L0H1"), ("–", "L0H0"), ("–", "L1H0"),
    ]  # fmt: skip
    assert [row.standing.words for row in table.rows] == [
        ["named", "critical"], ["named"], ["candidate"],
        ["left out: breaks another task too"],
    ]  # fmt: skip
    assert {"chances", "alone"} <= table.columns and table.place == "the top 3"
    sure["search"]["goal"] = "set"
    table = head_table(shaped(sure))
    assert "chances" not in table.columns and not any(row.standing.chance for row in table.rows)


def test_chances_are_not_rounded_to_certainty_and_a_head_left_out_has_none(sure):
    sure["heads"][0]["top_chance"], sure["heads"][1]["top_chance"] = 0.997, 0.004
    found = rows(sure)
    texts = [found[name].standing.chance for name in ("L0H1", "L1H3", "L0H0", "L1H0")]
    assert [text.replace("\u00a0", " ") for text in texts] == ["> 99 %", "< 1 %", "30 %", ""]


def test_what_was_tried_alone_says_on_how_many_examples(sure):
    assert rows(sure)["L0H0"].standing.alone == "53"
    sure["search"]["tried"] = ["L0H1"]
    assert rows(sure)["L1H3"].standing.alone == "no"


def test_the_script_gets_every_head_once_and_those_that_count_first(sure):
    data = head_table(shaped(sure)).as_data()
    names = [row[1] for row in data["rows"]]
    assert data["count"] == 4 and names[:4] == ["L0H1", "L1H3", "L0H0", "L1H0"]
    assert sorted(names) == sorted(head["head"] for head in sure["heads"])
    assert [row[-1] for row in data["rows"]] == list(range(1, len(names) + 1))
    numbers = {row[1]: row[8:-1] for row in data["rows"]}
    assert numbers["L0H1"] == [-0.41, 0.997, None]
    assert numbers["L0H3"] == [None, 0.0, None]


def test_effects_found_by_log_probability_are_nats(result):
    result["task"]["outcome"] = "logprob"
    assert rows(result)["L0H1"].effect == "−0.410\u00a0nats"


def test_a_long_list_is_cut_and_says_by_how_much(result):
    result["grid"] = {"layers": 1, "heads": [HEADS_LISTED + 3]}
    result["top"] = ["L0H0"]
    result["heads"] = [
        {**result["heads"][0], "head": f"L0H{index}", "index": index, "selected": True}
        for index in range(HEADS_LISTED + 3)
    ]
    table = head_table(shaped(result))
    assert table.count - len(table.rows) == 3
