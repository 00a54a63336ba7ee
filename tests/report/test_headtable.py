"""The table of named heads and those that came next."""

from shaping import shaped

from caploc.report.headtable import LISTED, list_heads

EFFECT = {"effect": -0.5, "low": -0.6, "high": -0.4}


def names(result):
    return [row.standing.entry.head for row in list_heads(shaped(result))]


def test_the_named_come_first_in_their_order_then_those_with_a_standing(sure):
    sure["top"] = ["L1H3", "L0H1"]
    assert names(sure)[:4] == ["L1H3", "L0H1", "L0H0", "L1H0"]
    assert [row.standing.words for row in list_heads(shaped(sure))][:4] == [
        ["named", "breaks the task alone"],
        ["named"],
        ["tried alone"],
        ["left out: breaks another task too"],
    ]


def test_without_a_choice_the_most_needed_are_listed(result):
    result["top"] = []
    for head in result["heads"]:
        head["selected"] = None
    assert names(result)[:2] == ["L0H1", "L1H3"]


def test_a_named_head_comes_with_what_the_check_says_of_it(result):
    members = {"heads": [{"head": "L1H3", "alone": EFFECT, "within": EFFECT}]}
    result["validation"]["members"] = members
    rows = list_heads(shaped(result))
    assert [row.member is not None for row in rows[:2]] == [False, True]
    assert rows[1].member.alone.effect == -0.5


def test_a_long_list_is_cut_and_never_those_named(result):
    count = LISTED + 3
    result["grid"] = {"layers": 1, "heads": [count]}
    result["heads"] = [
        {**result["heads"][0], "head": f"L0H{index}", "index": index} for index in range(count)
    ]
    result["top"] = ["L0H0"]
    assert len(names(result)) == LISTED
    result["top"] = [f"L0H{index}" for index in range(count)]
    assert len(names(result)) == count
