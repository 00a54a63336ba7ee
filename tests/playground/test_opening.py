"""Opening a playground: what is refused before the model is loaded, and where it listens."""

import json
import socket
from dataclasses import asdict, replace

import pytest

from caploc.declaration import ModelOptions, Study
from caploc.errors import BadOption, UnknownName, UserError
from caploc.finished import FinishedRun
from caploc.options import TaskOptions
from caploc.playground.playground import DrawnExample
from caploc.playground.serving import address, describe_exposure, listen
from caploc.playground.setting import make_setting, open_runs
from caploc.tasks.catalog import load_task
from caploc.tasks.task import Generated
from worlds import DEMO

MODEL = ModelOptions(DEMO)


def written(folder, task="demo/addition", fingerprint="f", **options):
    """The two files that make a folder a finished run's."""
    folder.mkdir(parents=True, exist_ok=True)
    study = Study(MODEL, task, other_tasks=("demo/sentences",), options=TaskOptions(**options))
    (folder / "run.json").write_text(json.dumps({"study": asdict(study), "command": ""}))
    score = {"score": 1.0, "stderr": None, "examples": 1}
    result = {
        "schema": 1,
        "model": {"name": DEMO, "fingerprint": fingerprint},
        "task": {"name": task},
        "method": {"name": "css"},
        "grid": {"layers": 1, "heads": [2]},
        "estimand": {"heads": "alone", "top": "alone"},
        "heads": [{"head": "L0H1", "layer": 0, "index": 1, "effect": -0.5}],
        "top": ["L0H1"],
        "validation": {"task": {"name": task, "intact": score, "knocked_out": score}},
    }
    (folder / "result.json").write_text(json.dumps(result))
    return folder


def test_a_run_brings_its_model_and_tasks(tmp_path):
    runs = open_runs(written(tmp_path, fewshot=2))
    setting = make_setting(runs, None, MODEL, ["demo/code"], TaskOptions())
    assert setting.model == MODEL
    assert list(setting.tasks) == ["demo/addition", "demo/sentences", "demo/code"]
    assert setting.tasks["demo/addition"].fewshot == 2
    assert setting.tasks["demo/sentences"].fewshot is None


def test_a_folder_of_runs_brings_them_all(tmp_path):
    for task in ("demo/addition", "demo/code"):
        written(tmp_path / task.replace("/", "-"), task)
    runs = open_runs(tmp_path)
    assert [run.study.task for run in runs] == ["demo/addition", "demo/code"]
    written(tmp_path / "other", fingerprint="g")
    with pytest.raises(UserError, match="are of 2 models"):
        open_runs(tmp_path)


@pytest.mark.parametrize(
    ("name", "said"), [("gone", "There is no folder"), ("", "holds no result")]
)
def test_a_folder_without_a_run_is_refused(tmp_path, name, said):
    with pytest.raises(UserError, match=said):
        open_runs(tmp_path / name)


@pytest.mark.parametrize(
    ("model", "loading", "said"),
    [
        ("gpt2", ModelOptions("gpt2"), "is of '.*/demo', not of 'gpt2'"),
        (None, replace(MODEL, dtype="bfloat16"), "is loaded as the run did"),
    ],
)
def test_another_model_than_the_runs_is_refused(tmp_path, model, loading, said):
    run = FinishedRun(tmp_path, Study(MODEL, "demo/addition"), {}, {})
    with pytest.raises(BadOption, match=said):
        make_setting((run,), model, loading, [], TaskOptions())
    assert make_setting((run,), None, replace(MODEL, device="cpu"), [], TaskOptions()).model.device


def test_a_task_that_does_not_exist_is_refused_before_the_model_is_loaded():
    with pytest.raises(UnknownName, match="Did you mean 'demo/addition'"):
        make_setting((), None, MODEL, ["demo/additon"], TaskOptions()).check()
    with pytest.raises(BadOption, match="--data is for a task"):
        make_setting((), None, MODEL, [], TaskOptions(data={"test": "x.jsonl"}))


def test_programs_are_shown_and_never_run_unless_allowed(monkeypatch):
    task = load_task("demo/addition")
    monkeypatch.setattr(task, "executes_code", True)
    monkeypatch.setattr(task, "item", lambda *_: pytest.fail("the program was run"))
    answers = {"intact": [Generated("x")], "knocked_out": [Generated("y")]}
    verdict = DrawnExample(task, 0).verdict(answers)
    assert verdict["gold"] == "124" and "start with --allow-code" in verdict["withheld"]
    with pytest.raises(pytest.fail.Exception, match="was run"):
        DrawnExample(task, 0, judges_code=True).verdict(answers)


def test_a_port_that_is_taken_is_refused_in_a_sentence():
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        assert address("127.0.0.1", first) == f"http://127.0.0.1:{port}"
        with pytest.raises(
            BadOption, match=rf"Port {port} of 127.0.0.1 cannot .* --port {port + 1}"
        ):
            listen("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "port", "said"),
    [("127.0.0.1", 70000, "0 to 65535"), ("nowhere.invalid", 8750, "no address of this machine")],
)
def test_a_place_that_is_none_is_refused(host, port, said):
    with pytest.raises(BadOption, match=said):
        listen(host, port)


def test_only_addresses_that_others_reach_are_warned_of():
    for host in ("127.0.0.1", "localhost", "::1"):
        assert describe_exposure(host) == ""
    for host in ("0.0.0.0", "192.168.1.5", "::", "mybox"):
        assert "no password" in describe_exposure(host)


def test_the_default_is_out_of_reach_of_other_machines():
    with listen("127.0.0.1", 0) as found:
        assert found.family is socket.AF_INET and found.getsockname()[0] == "127.0.0.1"
