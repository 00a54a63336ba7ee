"""Scores before and after, and the table of heads."""

import pytest

from caploc.report.strips import MARGIN, Axis, comparisons, head_table


def test_an_axis_keeps_its_marks_inside():
    axis = Axis(0.0, 1.0)
    assert axis.place(0.0) == MARGIN and axis.place(1.0) == 100 - MARGIN
    assert axis.place(0.5) == 50 and axis.place(7.0) == 100 - MARGIN
    assert axis.place(None) is None and axis.place(float("inf")) is None
    assert Axis(0.0, 0.0).place(0.0) == 50


def test_the_task_random_heads_and_other_tasks_are_compared(result):
    rows = comparisons(result)
    assert [row.name for row in rows] == [
        "demo/addition", "demo/addition, random heads instead", "demo/sentences",
    ]  # fmt: skip
    texts = [(row.intact, row.knocked_out, row.change) for row in rows]
    assert [tuple(text.replace("\u00a0", " ") for text in row) for row in texts] == [
        ("99 % ± 1", "12 % ± 1", "−87.0 points"),
        ("99 %", "95 % ± 3.6", "−4.0 points"),
        ("98 % ± 1", "97 % ± 1", "−1.0 points"),
    ]
    assert len(rows[1].draws) == 3


def test_zero_is_on_the_axis_of_scores_that_are_no_shares(result):
    result["task"]["metric"] = "logprob"
    result["validation"]["task"]["intact"]["score"] = -1.0
    result["validation"]["task"]["knocked_out"]["score"] = -1.1
    result["validation"]["controls"] = None
    bars = comparisons(result)[0].bars
    assert bars[0].value - bars[1].value == pytest.approx((100 - 2 * MARGIN) * 0.1 / 1.1, abs=0.1)


def test_missing_scores_draw_nothing_and_say_so(result):
    result["validation"]["task"]["knocked_out"] = {"score": None, "stderr": None, "examples": None}
    row = comparisons(result)[0]
    assert row.knocked_out == row.change == "not measured"
    assert row.bars[1].value is None


def test_top_and_selected_heads_are_listed_with_what_is_known(result):
    table = head_table(result)
    assert [row.head for row in table.rows] == ["L0H1", "L1H3"]
    assert table.intervals and not table.q and not table.universal
    assert table.rows[0].interval == "−46.0 to −36.0"


def test_without_a_choice_the_most_needed_are_listed(result):
    result["top"] = []
    for head in result["heads"]:
        head["selected"] = None
    assert [row.head for row in head_table(result).rows][:2] == ["L0H1", "L1H3"]
    assert all(row.selected is None for row in head_table(result).rows)
