"""The tables that commands print."""

import pytest

from caploc.contents import TaskScores
from caploc.result import SCHEMA, RunCost, Score, TaskComparison
from caploc.tables import tell_losses


@pytest.mark.parametrize(("score", "told"), [(0.0, True), (0.1, False)])
def test_a_task_of_which_no_answer_is_right_is_told_so(score, told):
    intact = Score(score=score, stderr=0.0, examples=20)
    row = TaskComparison(name="own", metric="acc", higher_is_better=True, intact=intact)
    found = TaskScores(
        schema=SCHEMA, model="demo", heads=[], tasks=[row], engines=[], cost=RunCost(), versions={}
    )
    assert ("own: no answer is right to begin with" in " ".join(tell_losses(found))) is told
