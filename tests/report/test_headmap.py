"""The map of all heads."""

from shaping import shaped

from caploc.report.colours import STEPS
from caploc.report.headtable import head_map


def cell(result, name):
    cells = [cell for layer in head_map(shaped(result)).layers for cell in layer]
    return next(cell for cell in cells if str(cell.head) == name)


def test_a_needed_head_has_the_strongest_orange_and_tells_all(result):
    found = cell(result, "L0H1")
    assert (found.shade, found.text, found.standing.marks) == (f"n{STEPS}", "−41", " t")
    assert found.note.replace("\u00a0", " ").split("\n") == [
        "L0H1: −41",
        "95 % interval (−46 to −36)",
        "named",
        "key-value group 0 (H0–H1)",
    ]


def test_below_zero_marks_the_needed_head_also_where_a_lower_score_is_better(result):
    result["task"].update(metric="word_perplexity", higher_is_better=False)
    result["heads"][0]["effect"] = -3.0
    assert cell(result, "L0H1").shade == f"n{STEPS}"
    assert (head_map(shaped(result)).needed_end, head_map(shaped(result)).helped_end) == (
        "−3.00 nats",
        "+3.00 nats",
    )


def test_an_unmeasured_head_is_not_a_head_without_effect(result):
    assert (cell(result, "L0H3").shade, cell(result, "L0H3").text) == ("u", "")
    assert "not measured" in cell(result, "L0H3").note
    assert (cell(result, "L0H2").shade, cell(result, "L0H2").text) == ("o", "")
    assert head_map(shaped(result)).unmeasured == 3  # two more are not among the result's heads


def test_a_head_whose_interval_holds_zero_is_grey_however_large_its_effect(result):
    """And it sets no scale: a head that was tried on three examples may seem to do anything."""
    first, second, *_ = result["heads"]
    second.update(effect=0.9, low=-0.1, high=1.0)
    drawn = head_map(shaped(result))
    assert cell(result, second["head"]).shade == "o"
    assert drawn.limit == abs(first["effect"]) and drawn.open >= 1
    named = next(head for head in result["heads"] if head["head"] in result["top"])
    named.update(effect=-0.1, low=-0.3, high=0.1)  # its number stands in the map
    assert head_map(shaped(result)).open == drawn.open


def test_uneven_layers_and_layers_without_heads_keep_their_place(result):
    result["grid"] = {"layers": 3, "heads": [4, 0, 2], "group_sizes": [4, 1, 1]}
    result["heads"] = [head for head in result["heads"] if head["layer"] == 0]
    result["top"] = ["L0H1"]
    drawn = head_map(shaped(result))
    assert [len(layer) for layer in drawn.layers] == [4, 0, 2]
    assert drawn.uneven and drawn.columns == 4


def test_groups_are_set_apart(result):
    starts = [cell.starts_group for cell in head_map(shaped(result)).layers[0]]
    assert starts == [False, False, True, False]


def test_no_effect_at_all_leaves_the_scale_out(result):
    for head in result["heads"]:
        head["effect"] = None
    drawn = head_map(shaped(result))
    assert drawn.limit == 0 and drawn.needed_end == ""
    assert {cell.shade for layer in drawn.layers for cell in layer} == {"u"}


def test_a_cell_tells_what_the_search_says_of_its_head(sure):
    assert cell(sure, "L1H3").note.replace("\u00a0", " ").split("\n")[2:4] == [
        "belongs to the top 3 with a chance of 90 %",
        "named, breaks the task alone",
    ]
    assert "left out: breaks another task too" in cell(sure, "L1H0").note


def test_critical_and_universal_heads_and_candidates_are_marked(sure):
    marks = {
        name: cell(sure, name).standing.marks for name in ("L0H1", "L1H3", "L0H0", "L1H0", "L0H2")
    }
    assert marks == {"L0H1": " t", "L1H3": " t c", "L0H0": " d", "L1H0": " d c x", "L0H2": ""}
    assert head_map(shaped(sure)).marks == {
        "named",
        "breaks the task alone",
        "breaks another task too",
        "tried alone",
    }


def test_a_map_without_a_search_has_no_such_marks(result):
    assert head_map(shaped(result)).marks == {"named"}


def test_a_scanned_head_shows_what_the_scan_saw_and_no_effect(result):
    entry = result["heads"][0]
    entry |= {"effect": None, "scanned": 4, "broken": 1, "lost": 0.31}
    drawn = head_map(shaped(result))
    cell = next(c for layer in drawn.layers for c in layer if str(c.head) == entry["head"])
    assert (cell.shade, cell.text, drawn.scanned) == ("q3", "", 1)
    said = "scanned; 3 of 4 right answers stayed, 31 % of their probability lost"
    assert cell.note.startswith(f"{entry['head']}: {said}")
