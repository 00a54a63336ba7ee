"""Scores before and after."""

from shaping import shaped

from caploc.report.scores import comparisons, describe_verdict, format_interval
from caploc.report.wording import ScoreKind, Unit
from caploc.result import Change


def test_the_task_random_heads_and_other_tasks_are_compared(result):
    rows = comparisons(shaped(result))
    assert [row.name for row in rows] == [
        "demo/addition", "demo/addition, random heads instead", "demo/sentences",
    ]  # fmt: skip
    texts = [(row.intact, row.knocked_out, row.change) for row in rows]
    assert [tuple(text.replace("\u00a0", " ") for text in row) for row in texts] == [
        ("99 % ± 1", "12 % ± 1", "−87.0 points"),
        ("99 %", "95 % ± 3.6", "−4.0 points"),
        ("98 % ± 1", "97 % ± 1", "−1.0 points"),
    ]
    assert rows[1].draws == (0.9, 0.98, 0.97) and rows[0].draws == ()
    assert [(point.score, point.stderr) for point in rows[0].points] == [(0.99, 0.01), (0.12, 0.01)]


def test_missing_scores_draw_nothing_and_say_so(result):
    result["validation"]["task"]["knocked_out"] = {"score": None, "stderr": None, "examples": None}
    row = comparisons(shaped(result))[0]
    assert row.knocked_out == row.change == "not measured"
    assert row.points[1].score is None


def test_held_out_examples_come_first_and_the_whole_task_after_the_random_heads(sure):
    rows = comparisons(shaped(sure))
    assert [row.name for row in rows] == [
        "demo/addition, held-out examples", "demo/addition, random heads instead",
        "demo/addition, other heads of the same groups", "demo/addition", "demo/sentences",
    ]  # fmt: skip
    assert [row.short for row in rows] == [
        "held-out examples", "random heads", "same groups", "all 100 examples", "demo/sentences",
    ]  # fmt: skip
    assert "that no search saw" in rows[0].detail
    assert "those of the search among them" in rows[3].detail
    assert [row.knocked_out.replace("\u00a0", " ") for row in rows] == [
        "22 %", "95 % ± 3.6", "91 %", "12 % ± 1", "97 % ± 1",
    ]  # fmt: skip
    assert {row.intact[:5] for row in rows[:3]} == {"100\u00a0%"}


def test_examples_of_the_search_are_not_called_held_out(sure):
    sure["validation"]["held_out"]["fresh"] = False
    row = comparisons(shaped(sure))[0]
    assert "held-out" not in row.name and "that the heads were found on" in row.detail


def test_without_a_head_nothing_was_knocked_out(sure):
    sure["top"] = []
    rows = comparisons(shaped(sure))
    assert [row.name for row in rows] == ["demo/addition", "demo/sentences"]
    assert {row.knocked_out for row in rows} == {row.change for row in rows} == {"not measured"}
    assert {row.interval + row.verdict for row in rows} == {""}


def test_changes_have_their_interval_and_verdict(sure):
    rows = {row.name: row for row in comparisons(shaped(sure))}
    held_out, other = rows["demo/addition, held-out examples"], rows["demo/sentences"]
    assert (held_out.interval, held_out.verdict) == ("−86.0 to −70.0", "changed")
    assert (other.interval, other.verdict) == ("−4.0 to +2.0", "may be chance")
    assert rows["demo/addition"].interval == rows["demo/addition"].verdict == ""


def test_a_change_within_the_margin_says_the_margin():
    said = describe_verdict(Change(verdict="unchanged", margin=0.03))
    assert said.replace("\u00a0", " ") == "unchanged within 3 points"
    assert describe_verdict(Change(verdict="<b>")) == describe_verdict(None) == ""


def test_the_change_of_a_perplexity_is_in_nats():
    perplexity = Unit(ScoreKind.PLAIN, "word_perplexity", higher_is_better=False)
    assert format_interval(Change(low=-0.5, high=-0.1), perplexity) == "−0.500 to −0.100\u00a0nats"
    assert format_interval(Change(high=-0.1), perplexity) == ""
