"""Whether the strongest head leads alone, on models where it is known what each head breaks."""

import pytest

from caploc.options import Settings
from caploc.result import Verdict
from caploc.study import run_study
from caploc.verdict import make_card
from doubles import planted_study
from worlds.planted import Planted, write_planted


def find(folder, **planted):
    """Search a planted model; return its needed heads, the strongest first, and the result."""
    plan = Planted(2, 4, needed=len(planted["strengths"]), examples=200, seed=1, **planted)
    truth = write_planted(folder / "model", plan)
    settings = Settings(top=plan.needed, budget=400)
    study = planted_study(folder / "model", "other", settings=settings, quick=True, controls=20)
    order = sorted(truth.needed, key=lambda head: -truth.needed[head])
    return [str(head) for head in order], truth, run_study(study, folder / "run").result


def test_the_strongest_leads_where_the_others_break_another_task_too(tmp_path):
    (first, second), truth, result = find(tmp_path, strengths=(0.4, 0.2), common=1)
    checked = result.validation
    assert result.top == [first] and checked.costly == [second] and not checked.unconfirmed
    assert [row.head for row in result.heads if row.selected] == [first]
    assert checked.strongest.head == first and checked.strongest.task.change == checked.task.change
    assert checked.task.knocked_out.score == pytest.approx(truth.accuracy([first]))
    assert [each.knocked_out.score for each in checked.other_tasks] == [1.0]
    assert [member.head for member in checked.members.heads] == [first]
    assert make_card(result).verdict is Verdict.SPECIFIC


@pytest.mark.parametrize(
    ("strengths", "common", "left_elsewhere"),
    [
        ((0.2, 0.4), 1, 0.75),  # it is the strongest that breaks the other task
        ((0.24, 0.2, 0.16), 1, 0.75),  # alone it takes less than half
        ((0.4, 0.2), 0, 1.0),  # nothing else is broken
    ],
    ids=["not clean", "too weak", "all clean"],
)
def test_it_does_not_lead_elsewhere(tmp_path, strengths, common, left_elsewhere):
    heads, truth, result = find(tmp_path, strengths=strengths, common=common)
    checked = result.validation
    assert {*result.top} == {*heads} and not checked.costly and not checked.unconfirmed
    assert checked.strongest.head == heads[0]
    assert checked.task.knocked_out.score == pytest.approx(truth.accuracy(heads))
    assert [each.knocked_out.score for each in checked.other_tasks] == [left_elsewhere]
    verdict = Verdict.SHARED if common else Verdict.SPECIFIC
    assert make_card(result).verdict is verdict
