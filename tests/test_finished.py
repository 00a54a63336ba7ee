"""A finished run opened again asks what the run asked."""

import json
from dataclasses import asdict

import pytest

from caploc.declaration import ModelOptions, Study
from caploc.errors import FolderTaken, UserError
from caploc.evaluation import curve
from caploc.finished import FinishedRun, restored
from caploc.options import Settings, TaskOptions
from caploc.studies.running import finished
from caploc.study import run_study
from doubles import count_rows, least_result, planted_study
from worlds import DEMO
from worlds.planted import Planted, write_planted


def study(**options):
    return Study(
        ModelOptions(DEMO, device="cpu"),
        "demo/addition",
        "css",
        settings=Settings(masks=7, top=2),
        options=TaskOptions(**options),
        other_tasks=("demo/sentences",),
        controls=3,
    )


def test_a_study_comes_back_from_its_file():
    written = study(fewshot=2, outcome="logprob")
    assert restored(asdict(written)) == written


def test_the_task_is_asked_as_the_run_did_and_judged_by_its_metric(tmp_path):
    shots = FinishedRun(tmp_path, study(fewshot=2, outcome="logprob"), {}, {})
    plain = FinishedRun(tmp_path, study(), {}, {})
    (task, other), (bare, same) = shots.tasks().values(), plain.tasks().values()
    assert task.metric.kind == "metric" and task.metric == bare.metric
    assert len(task.requests(0)[0].prompt) > 2 * len(bare.requests(0)[0].prompt)
    assert other.requests(0) == same.requests(0)


def test_a_folder_without_a_finished_run_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"holds no result\.json"):
        FinishedRun.read(tmp_path)


def test_a_run_of_another_version_is_refused_in_a_sentence(tmp_path):
    (tmp_path / "result.json").write_text(json.dumps(least_result()))
    (tmp_path / "run.json").write_text('{"study": {"model": {"name": "demo"}, "depth": 3}}')
    with pytest.raises(UserError, match="was written by another version of caploc"):
        FinishedRun.read(tmp_path)


def test_a_run_opened_again_asks_the_examples_that_it_asked(tmp_path):
    """Copies of questions are left out as they were, and nothing new is measured."""
    plan = Planted(2, 4, needed=2, strengths=(0.4, 0.2), examples=100, seed=1)
    write_planted(tmp_path / "model", plan)
    data = tmp_path / "model" / "planted.jsonl"
    lines = data.read_text().splitlines(keepends=True)
    data.write_text("".join([*lines[:20], *lines]))
    found = run_study(planted_study(tmp_path / "model", controls=2), tmp_path / "run").result
    before = found.cost.rows
    with FinishedRun.read(tmp_path / "run").opened() as (meters, tasks):
        assert {task.size for task in tasks.values()} == {100} and meters.grid.size == 8
    written = (tmp_path / "run" / "curve.json").read_text()
    curve(tmp_path / "run", most=len(found.top))
    assert (tmp_path / "run" / "curve.json").read_text() == written
    assert count_rows(tmp_path / "run") == before
    study = FinishedRun.read(tmp_path / "run").study
    assert finished(tmp_path / "run", study)
    data.write_text("".join(lines[:90]))
    assert finished(tmp_path / "run", study) is None
    with pytest.raises(FolderTaken, match="are not those that"):
        curve(tmp_path / "run")
