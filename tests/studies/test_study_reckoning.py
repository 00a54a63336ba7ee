"""Plans: rows are counted as a run would ask for them, shared ones once."""

import sqlite3
from dataclasses import replace

import pytest

from caploc.search import Settings
from caploc.studies import planned, run_studies
from caploc.study import Study
from caploc.workbench import ModelOptions

CSS = Study(
    model=ModelOptions("demo"),
    task="demo/recall",
    method="css",
    settings=Settings(masks=4, rate=0.05, top=2),
    examples=5,
    controls=0,
    limit=5,
)


def counted(plan, name):
    """Rows of a study: to be measured, stored, shared."""
    (study,) = [each for each in plan.studies if each.study == name]
    return study.rows, study.stored, study.shared


def test_rows_are_those_that_the_method_asks_for(tmp_path):
    """Masks on the examples, the whole task's first ones before and after, and the check's."""
    plan = planned({"a": CSS}, tmp_path, seconds=None)
    rows, stored, shared = counted(plan, "a")
    search, final, check = 5 + 4 * 5, 2 * 5, 5 * (2 + 2)
    assert search < rows <= search + final + check
    assert (stored, shared) == (0, 0)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_what_two_studies_need_is_counted_once(tmp_path):
    twin = replace(CSS, method="one-shot")
    alone = planned({"b": twin}, tmp_path, seconds=None)
    both = planned({"a": CSS, "b": twin}, tmp_path, seconds=None)
    rows, _, shared = counted(both, "b")
    assert rows + shared == counted(alone, "b")[0]
    assert shared >= 10  # the intact rows of search and check
    same = planned({"a": CSS, "b": CSS}, tmp_path, seconds=None)
    assert counted(same, "b")[0] == 0 and counted(same, "b")[2] == counted(same, "a")[0]
    assert both.total()["rows"] == counted(both, "a")[0] + rows


@pytest.mark.slow
def test_an_adaptive_search_is_reckoned_to_the_end_of_its_budget(tmp_path):
    study = replace(CSS, method="adaptive", settings=Settings(budget=400), examples=60)
    rows, _, _ = counted(planned({"a": study}, tmp_path, seconds=None), "a")
    # the budget, the intact rows, and the checks on examples of which 5 heads are named
    assert 400 + 60 <= rows <= 400 + 60 + 5 * (2 + 5) + 600


@pytest.mark.slow
def test_a_study_that_cannot_be_is_told_with_its_reason_and_the_others_are_planned(tmp_path):
    plan = planned({"a": replace(CSS, examples=9999), "b": CSS}, tmp_path, seconds=None)
    assert "between 1 and" in plan.studies[0].failure
    assert plan.studies[1].failure is None and plan.studies[1].rows > 0


@pytest.mark.slow
def test_a_plan_is_kept_by_the_run_and_a_finished_run_leaves_nothing_to_plan(tmp_path):
    studies = {"a": CSS, "b": replace(CSS, method="one-shot"), "c": replace(CSS, task="demo/code")}
    studies["d"] = replace(CSS, method="adaptive", settings=Settings(budget=400), examples=60)
    plan = planned(studies, tmp_path, seconds=0.5)
    assert not list(tmp_path.iterdir())
    ran = run_studies(studies, tmp_path, command="caploc run many.toml")
    assert not ran.failed
    with sqlite3.connect(tmp_path / "rows.sqlite") as database:
        (stored,) = database.execute("SELECT count(*) FROM rows").fetchone()
    expected = plan.total()
    assert 0.5 * expected["rows"] < stored <= expected["rows"]
    used = sum(outcome.result["cost"]["rows"] for outcome in ran.outcomes)
    assert used > stored  # rows that several studies need
    assert expected["tokens"] > 0 and expected["seconds"] > 0 and expected["memory"] > 2**27
    again = planned(studies, tmp_path, seconds=0.5)
    assert all(study.finished for study in again.studies)
    assert again.total()["rows"] == 0


@pytest.mark.slow
def test_rows_that_lie_there_are_not_planned_again(tmp_path):
    run_studies({"a": CSS}, tmp_path, command="caploc run many.toml")
    (tmp_path / "a" / "result.json").unlink()
    rows, stored, _ = counted(planned({"a": CSS}, tmp_path, seconds=None), "a")
    assert rows == 0 and stored > 25
