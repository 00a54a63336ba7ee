"""The picture of sets: what each takes of the task over what it costs elsewhere."""

from shaping import shaped

from caploc.report.headtable import count_frontier_examples, tabulate_frontier
from caploc.report.plots import draw_frontier


def with_sets(result, *sets):
    result["validation"]["frontier"] = {
        "price": 0.02,
        "sets": [
            {
                "heads": heads,
                "damage": {"effect": -0.5, "low": -0.6, "high": -0.4},
                "spared": [
                    {"task": "a", "effect": {"effect": lost, "low": lost - 0.01, "high": 0.01}},
                    {"task": "b", "effect": {"effect": 0.0, "low": -0.01, "high": 0.01}},
                ],
                "within": within,
            }
            for heads, lost, within in sets
        ],
    }
    return shaped(result)


def test_a_single_set_is_no_picture(result):
    assert draw_frontier(shaped(result)) is None
    assert draw_frontier(with_sets(result, (["L0H1"], -0.1, True))) is None


def test_every_set_has_its_mark_and_says_what_it_costs_the_task_that_loses_most(result):
    named = result["top"]
    drawn = draw_frontier(with_sets(result, (["L0H1"], -0.1, False), (named, -0.01, True)))
    assert drawn.summary.startswith("2 sets of heads")
    for said in ("L0H1: takes 50, and costs 10 elsewhere", f"{' '.join(named)}: takes 50"):
        assert said in drawn.wide and said in drawn.narrow
    for kind in ("named", "within the price", "not surely within"):
        assert kind in drawn.wide


def test_a_set_that_does_not_spare_says_from_which_price_on_it_would(result):
    result.setdefault("search", {})["goal"] = "specific"
    with_sets(result, (["L0H1"], -0.005, True), (["L0H2"], -0.1, False), (["L0H3"], -0.1, False))
    sets = result["validation"]["frontier"]["sets"]
    sets[0]["keeps"], sets[2]["keeps"] = 0.011, 0.068
    headings, rows = tabulate_frontier(shaped(result))
    assert [row[-1] for row in rows] == ["yes", "not surely", "from 6.8\u00a0points"]
    assert headings[-1] == "spares"
    assert "in other words" not in headings and len(headings) == len(rows[0])
    result["search"]["goal"] = "heads"  # nothing was to be spared
    headings, rows = tabulate_frontier(shaped(result))
    assert headings[-1] == "in" and len(headings) == len(rows[0])


def test_a_table_of_sets_tells_of_every_spared_task_where_there_is_room(result):
    shown = with_sets(result, (["L0H1"], -0.1, False))
    assert tabulate_frontier(shown)[1][0][-1] == "a"
    assert tabulate_frontier(shown, others=True)[1][0][-1] == "a; b 0\u00a0points"


def test_a_table_of_sets_says_on_how_many_examples(result):
    shown = with_sets(result, (["L0H1"], -0.005, True))
    assert count_frontier_examples(shown).startswith("fresh examples of the task")
    frontier = result["validation"]["frontier"] | {"examples": 50}
    for each, count in zip(frontier["sets"][0]["spared"], (110, 240), strict=True):
        each["examples"] = count
    result["validation"]["frontier"] = frontier
    said = count_frontier_examples(shaped(result))
    assert said == "50 fresh examples of the task, and on 110 to 240 of each other task"
