"""Experiment trackers: the real ones where they are installed, and what happens when they fail."""

import importlib
import json
import logging
import sqlite3
import sys
from importlib.util import find_spec

import pytest

from caploc.errors import BadOption, UnknownName
from caploc.progress import Silent
from caploc.result import Change, Fit, Result, RunCost, Score, TaskComparison, Validation
from caploc.tracking import TRACKERS, Tracked, check_tracker, figures_of, tracked

# of SQLAlchemy, about MLflow's use of it
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")
RESULT = Result.model_construct(
    validation=Validation(
        task=TaskComparison(
            name="addition",
            intact=Score(score=0.9),
            knocked_out=Score(score=0.25),
            change=Change(outcome=-0.65),
        )
    ),
    top=["L0H1", "L2H3"],
    fit=Fit(),
    cost=RunCost(rows=120, forward_tokens=900, plain_tokens=1000, seconds=1.5),
)
STUDY = {"task": "demo/addition", "settings": {"budget": 2000}, "model": {"name": "demo"}}


def told(where, folder):
    """A short run told to a tracker."""
    page = folder / "report.html"
    page.write_text("<p>found</p>")
    with tracked(where, "addition", STUDY, Silent()) as watched:
        watched.start("masks", 120)
        watched.advance(60, 450)
        watched.last = 0.0  # as if seconds had passed
        watched.advance(60, 450)
        watched.found(RESULT, [page, folder / "missing.html"])
    assert watched.trouble == []


def test_figures_are_those_known():
    figures = figures_of(RESULT)
    assert figures["intact"] == 0.9 and figures["knocked_out"] == 0.25
    assert figures["change_of_outcome"] == -0.65 and figures["heads_chosen"] == 2
    assert figures["cost_rows"] == 120 and "r2_held_out" not in figures


def test_without_a_tracker_only_progress_is_told():
    class Counting(Silent):
        rows = 0

        def advance(self, rows, tokens):
            self.rows += rows

    counted = Counting()
    with tracked(None, "addition", STUDY, counted) as watched:
        watched.advance(7, 1.0)
        watched.found(RESULT, [])
    assert counted.rows == 7 and watched.tracker is None and watched.trouble == []


@pytest.mark.parametrize(
    ("where", "error", "sentence"),
    [
        ("mlfow", UnknownName, "Did you mean 'mlflow'"),
        ("wandb:", BadOption, "names no project"),
    ],
)
def test_a_tracker_that_there_is_not_is_refused(where, error, sentence):
    with pytest.raises(error, match=sentence):
        check_tracker(where)


@pytest.mark.parametrize("name", TRACKERS)
def test_a_package_that_is_missing_is_named(name, monkeypatch):
    monkeypatch.setattr("caploc.tracking.find_spec", lambda name: None)
    with pytest.raises(BadOption, match=f"pip install 'caploc\\[{name}\\]'"):
        check_tracker(name)


def test_a_tracker_that_fails_does_not_stop_the_run():
    class Failing:
        told = []

        def log(self, figures, step):
            self.told.append("log")
            raise ConnectionError("the server is gone")

        def keep(self, files):
            self.told.append("keep")

        def end(self, failed):
            self.told.append(("end", failed))

    watched = Tracked(Failing, Silent())
    watched.point({"rows": 1})
    watched.found(RESULT, [])
    watched.end(failed=False)
    watched.end(failed=False)
    assert watched.trouble == ["ConnectionError: the server is gone"]
    assert Failing.told == ["log", ("end", False)]


class OneAtATime:
    """MLflow's rule: no run begins while another is open."""

    def __init__(self):
        self.open, self.ended, self.broken = None, [], ""

    def set_experiment(self, project):
        pass

    def start_run(self, run_name):
        if self.open is not None:
            raise RuntimeError(f"Run {self.open} is already active.")
        self.open = run_name

    def end_run(self, status):
        self.ended.append((self.open, status))
        self.open = None

    def __getattr__(self, name):
        if name not in ("log_params", "log_metrics", "log_artifact"):
            raise AttributeError(name)
        return lambda *given, **more: self.written(name)

    def written(self, name):
        if name == self.broken:
            raise ConnectionError("the server is gone")


@pytest.fixture
def server(monkeypatch):
    """A package with MLflow's rule in MLflow's place."""
    made = OneAtATime()
    monkeypatch.setitem(sys.modules, "mlflow", made)
    monkeypatch.setattr("caploc.tracking.find_spec", lambda name: True)
    return made


@pytest.mark.parametrize(
    ("broken", "status"),
    [("log_metrics", "FINISHED"), ("log_artifact", "FINISHED"), ("log_params", "FAILED")],
)
def test_a_run_that_had_trouble_is_closed_and_the_next_one_begins(
    server, tmp_path, caplog, broken, status
):
    page = tmp_path / "report.html"
    page.write_text("<p>found</p>")
    server.broken = broken
    with tracked("mlflow", "first", STUDY, Silent()) as watched:
        watched.found(RESULT, [page])
    assert watched.trouble == ["ConnectionError: the server is gone"]
    assert len(caplog.records) == 1
    server.broken = ""
    with tracked("mlflow", "second", STUDY, Silent()) as watched:
        watched.found(RESULT, [page])
    assert watched.trouble == [] and server.open is None
    assert server.ended == [("first", status), ("second", "FINISHED")]


def test_a_run_of_the_users_own_is_left_open(server):
    server.start_run("mine")
    with tracked("mlflow", "first", STUDY, Silent()) as watched:
        pass
    assert watched.trouble == ["RuntimeError: Run mine is already active."]
    assert server.open == "mine" and server.ended == []


def test_one_that_cannot_begin_does_not_either():
    watched = Tracked(lambda: 1 / 0, Silent())
    watched.advance(1, 1.0)
    assert watched.trouble == ["ZeroDivisionError: division by zero"]


def needs(name):
    return pytest.mark.skipif(find_spec(name) is None, reason=f"{name}: `make test-trackers`")


@pytest.mark.trackers
@needs("mlflow")
def test_mlflow_keeps_settings_curves_and_files(tmp_path, monkeypatch):
    import mlflow

    monkeypatch.chdir(tmp_path)  # where it puts artifacts

    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    told("mlflow:heads", tmp_path)
    (run,) = mlflow.search_runs(experiment_names=["heads"], output_format="list")
    assert run.info.status == "FINISHED" and run.info.run_name == "addition"
    assert run.data.params["settings.budget"] == "2000"
    assert run.data.metrics["knocked_out"] == 0.25 and run.data.metrics["rows"] == 120
    names = [item.path for item in mlflow.artifacts.list_artifacts(run_id=run.info.run_id)]
    assert names == ["report.html"]


@pytest.mark.trackers
@needs("mlflow")
def test_a_run_that_fails_is_marked(tmp_path, monkeypatch):
    import mlflow

    monkeypatch.chdir(tmp_path)

    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    with pytest.raises(RuntimeError), tracked("mlflow", "addition", STUDY, Silent()):
        raise RuntimeError
    (run,) = mlflow.search_runs(experiment_names=["caploc"], output_format="list")
    assert run.info.status == "FAILED"


@pytest.mark.trackers
@needs("mlflow")
@pytest.mark.parametrize("broken", ["log_params", "log_metrics"])
def test_mlflow_begins_the_next_run_after_one_with_trouble(tmp_path, monkeypatch, broken):
    import mlflow

    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    with monkeypatch.context() as broke:
        broke.setattr(mlflow, broken, lambda *given, **more: 1 / 0)
        with tracked("mlflow", "first", STUDY, Silent()) as watched:
            watched.found(RESULT, [])
    assert watched.trouble == ["ZeroDivisionError: division by zero"]
    told("mlflow", tmp_path)
    runs = mlflow.search_runs(experiment_names=["caploc"], output_format="list")
    status = {run.info.run_name: run.info.status for run in runs}
    first = "FAILED" if broken == "log_params" else "FINISHED"
    assert status == {"first": first, "addition": "FINISHED"}


@pytest.mark.trackers
@needs("wandb")
def test_wandb_keeps_them_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    told("wandb", tmp_path)
    importlib.import_module("wandb").teardown()  # writes what its helper process still holds
    (written,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    content = written.read_bytes()
    assert b"knocked_out" in content and b"settings.budget" in content


@pytest.mark.trackers
@needs("trackio")
def test_trackio_keeps_them_in_a_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "kept"))
    told("trackio", tmp_path)
    (database,) = (tmp_path / "kept").rglob("caploc*.db")
    with sqlite3.connect(database) as kept:
        rows = [json.loads(row) for (row,) in kept.execute("SELECT metrics FROM metrics")]
    assert any(row.get("knocked_out") == 0.25 for row in rows)
    logging.shutdown()


@pytest.mark.trackers
@needs("mlflow")
def test_a_run_of_caploc_is_told_whole(tmp_path, monkeypatch):
    import mlflow

    from caploc import locate

    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    small = {"method": "css", "masks": 10, "rate": 0.05, "examples": 8, "limit": 8, "controls": 0}
    found = locate("demo", "demo/addition", **small, track="mlflow", out="run", quiet=True)
    (run,) = mlflow.search_runs(experiment_names=["caploc"], output_format="list")
    assert run.data.params["task"] == "demo/addition" and run.data.params["settings.masks"] == "10"
    assert run.data.metrics["intact"] == found.result.validation.task.intact.score
    assert run.data.metrics["cost_rows"] == found.result.cost.rows
    names = {item.path for item in mlflow.artifacts.list_artifacts(run_id=run.info.run_id)}
    assert names == {"report.html", "result.json"}
