"""The tables that commands print."""

import pytest
from shaping import shaped

from caploc.contents import TaskScores
from caploc.declaration import held_back
from caploc.result import SCHEMA, RunCost, Score, TaskComparison
from caploc.tables import INTERVAL, heads_table, join_intervals, others_table, tell_losses


def test_an_interval_stands_behind_its_effect_and_none_where_there_is_none():
    headings, rows = join_intervals(
        ["head", "alone", INTERVAL, "q"],
        [["L1H2", "−5.0\u00a0points", "−9.0 to −1.0", "0.01"], ["L0H1", "–", "–", "–"]],
    )
    assert headings == ["head", "alone (95 %)", "q"]
    assert rows == [["L1H2", "−5.0 (−9.0 to −1.0)", "0.01"], ["L0H1", "–", "–"]]


def test_every_other_task_has_a_line_with_its_change(result):
    change = {"outcome": -0.01, "low": -0.03, "high": 0.01}
    result["validation"]["other_tasks"][0] |= {"change": change, "twin": True}
    headings, rows, title = others_table(shaped(result))
    assert headings == ["task", "intact", "knocked out", "change (95 %)"]
    assert rows[0][0] == "demo/sentences, in other words"
    assert rows[0][-1] == "−1.0 (−3.0 to +1.0)"
    assert title.endswith(" ".join(shaped(result).top))


@pytest.mark.parametrize(
    ("outcome", "heading", "title"),
    [
        ("metric", "alone (95 %)", ", percentage points: "),
        ("logprob", "alone, percentage points (95 %)", ": "),
    ],
)
def test_checks_are_in_points_also_where_the_search_went_by_nats(result, outcome, heading, title):
    change = {"effect": -0.25, "low": -0.375, "high": -0.125}
    head = result["top"][0]
    result["task"]["outcome"] = outcome
    result["validation"]["members"] = {
        "examples": 40,
        "fresh": True,
        "heads": [{"head": head, "alone": change, "within": change}],
    }
    headings, rows, said = heads_table(shaped(result))
    assert headings[2] == heading and rows[0][1:3] == [head, "−25.0 (−37.5 to −12.5)"]
    assert ("nats" in rows[0][-2]) == (outcome == "logprob")
    assert said.startswith(f"{result['task']['name']}{title}the named head")


@pytest.mark.parametrize(("score", "told"), [(0.0, True), (0.1, False)])
def test_a_task_of_which_no_answer_is_right_is_told_so(score, told):
    intact = Score(score=score, stderr=0.0, examples=20)
    row = TaskComparison(name="own", metric="acc", higher_is_better=True, intact=intact)
    found = TaskScores(
        schema=SCHEMA, model="demo", heads=[], tasks=[row], engines=[], cost=RunCost(), versions={}
    )
    assert ("own: no answer is right to begin with" in " ".join(tell_losses(found))) is told


@pytest.mark.parametrize("kept, held", [(0, 0), (20, 20), (30, 20), (60, 30), (600, 100)])
def test_of_few_examples_kept_for_the_checks_no_search_sees_twenty(kept, held):
    assert held_back(list(range(kept))) == list(range(held))
