"""What MLflow is told of a run, and what becomes of the run when MLflow fails."""

import sys
from contextlib import contextmanager
from importlib import import_module

import pytest

import caploc
from caploc.errors import BadOption
from caploc.result import Change, Fit, Result, RunCost, Score, TaskComparison, Validation
from caploc.tracking import check_tracking, figures_of, log_run
from worlds import DEMO

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
SMALL = {"method": "css", "masks": 10, "rate": 0.05, "examples": 8, "limit": 8, "controls": 0}


class StandIn:
    """The part of MLflow that is used, which notes what it is told."""

    def __init__(self):
        self.told, self.broken = {}, False

    def set_experiment(self, name):
        if self.broken:
            raise ConnectionError("the server is gone")
        self.told["experiment"] = name

    @contextmanager
    def start_run(self, run_name, nested):
        self.told["run"] = run_name
        yield

    def log_params(self, settings):
        self.told["params"] = settings

    def log_metrics(self, figures):
        self.told["metrics"] = figures

    def log_artifact(self, path):
        self.told.setdefault("files", []).append(path)


@pytest.fixture
def mlflow(monkeypatch):
    made = StandIn()
    import_module("accelerate")  # which looks for the true one when it is imported
    monkeypatch.setitem(sys.modules, "mlflow", made)
    monkeypatch.setattr("caploc.tracking.find_spec", lambda name: True)
    return made


def test_figures_are_those_known():
    figures = figures_of(RESULT)
    assert figures["intact"] == 0.9 and figures["knocked_out"] == 0.25
    assert figures["change_of_outcome"] == -0.65 and figures["heads_chosen"] == 2
    assert figures["cost_rows"] == 120 and "r2_held_out" not in figures


def test_where_mlflow_is_missing_it_is_said_before_anything_runs(monkeypatch):
    monkeypatch.setattr("caploc.tracking.find_spec", lambda name: None)
    check_tracking(None)
    with pytest.raises(BadOption, match=r"pip install 'caploc\[mlflow\]'"):
        check_tracking("heads")


def test_a_run_is_logged_whole(mlflow, tmp_path):
    found = caploc.locate(DEMO, "demo/addition", **SMALL, track="heads", out=tmp_path, quiet=True)
    told = mlflow.told
    assert told["experiment"] == "heads" and told["run"] == "demo/addition css"
    assert told["params"]["task"] == "demo/addition" and told["params"]["settings.masks"] == "10"
    assert told["metrics"]["intact"] == found.result.validation.task.intact.score
    assert told["metrics"]["cost_rows"] == found.result.cost.rows
    assert told["files"] == [str(tmp_path / name) for name in ("report.html", "result.json")]


def test_trouble_with_mlflow_is_a_line_and_no_more(mlflow, caplog):
    mlflow.broken = True
    log_run("heads", "addition", STUDY, RESULT, [])
    (record,) = caplog.records
    assert "not logged to MLflow (ConnectionError: the server is gone)" in record.getMessage()
