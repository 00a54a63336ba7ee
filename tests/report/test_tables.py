"""The tables that commands print."""

import pytest

from caploc.contents import TaskScores
from caploc.result import SCHEMA, RunCost, Score, TaskComparison
from caploc.tables import INTERVAL, join_intervals, tell_losses


def test_an_interval_stands_behind_its_effect_and_none_where_there_is_none():
    headings, rows = join_intervals(
        ["head", "alone", INTERVAL, "q"],
        [["L1H2", "−5.0\u00a0points", "−9.0 to −1.0", "0.01"], ["L0H1", "–", "–", "–"]],
    )
    assert headings == ["head", "alone (95 %)", "q"]
    assert rows == [["L1H2", "−5.0 (−9.0 to −1.0)", "0.01"], ["L0H1", "–", "–"]]


@pytest.mark.parametrize(("score", "told"), [(0.0, True), (0.1, False)])
def test_a_task_of_which_no_answer_is_right_is_told_so(score, told):
    intact = Score(score=score, stderr=0.0, examples=20)
    row = TaskComparison(name="own", metric="acc", higher_is_better=True, intact=intact)
    found = TaskScores(
        schema=SCHEMA, model="demo", heads=[], tasks=[row], engines=[], cost=RunCost(), versions={}
    )
    assert ("own: no answer is right to begin with" in " ".join(tell_losses(found))) is told
