"""The command line: help, exit codes, one sentence a mistake."""

import json
import re
import signal
import subprocess
import sys
from functools import cache

import pytest
from typer.testing import CliRunner

from caploc import console
from caploc.cli import app, options
from caploc.errors import Stopped, UserError
from caploc.sandbox import pool
from worlds import DEMO
from worlds.planted import Planted, write_planted


def caploc(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "caploc", *arguments],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def test_a_command_says_that_it_has_begun_before_it_waits_for_torch():
    command = ["-X", "importtime", "-m", "caploc", *LOCATE, "--budget", "1000"]
    imported = re.compile(r"\| +torch$", re.MULTILINE)
    said = ""
    with subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            said += line
            if imported.search(line):
                process.kill()
                break
    before, begun, after = said.partition("caploc: getting ready")
    assert begun and imported.search(after) and not imported.search(before)


def test_a_command_whose_result_stands_alone_says_nothing_before_it():
    command = [sys.executable, "-m", "caploc", *LOCATE, "--method", "none", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not ended.stdout and "getting ready" not in ended.stderr


LOCATE = ["locate", DEMO, "--task", "demo/addition"]


def test_locate_prints_heads_and_notes_and_ends_with_the_reports_path(tmp_path, monkeypatch):
    """With nothing but a model and a task the method is scan."""
    planted = Planted(needed=2, universal=1, strengths=(0.3, 0.3), examples=300, seed=3)
    truth = write_planted(tmp_path / "model", planted)
    words = [
        "locate", str(tmp_path / "model"), "--task", str(tmp_path / "model" / "planted.yaml"),
        "--also", str(tmp_path / "model" / "other.yaml"), "--top", "2", "--limit", "20",
        "--controls", "2", "--device", "cpu", "--out", str(tmp_path / "a"),
    ]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["caploc", *words])
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, (done.output, done.exception)
    result = json.loads((tmp_path / "a" / "result.json").read_text())
    assert result["method"]["name"] == "scan"
    assert set(result["top"]) == {str(head) for head in truth.needed}
    printed = " ".join(done.stdout.split())
    assert result["card"]["heads"] == result["top"]
    assert result["card"]["heading"] in printed and "planted, held out" in printed
    assert done.stdout.strip().splitlines()[-1] == f"Report: {tmp_path / 'a' / 'report.html'}"
    run = json.loads((tmp_path / "a" / "run.json").read_text())
    assert run["command"].startswith("caploc locate")


def test_json_is_all_that_is_printed(tmp_path):
    done = caploc(
        "evaluate",
        DEMO,
        "--task",
        "demo/recall",
        "--limit",
        "4",
        "--json",
        "--out",
        str(tmp_path / "e"),
    )
    (task,) = json.loads(done.stdout)["tasks"]
    assert task["intact"]["examples"] == 4 and task["knocked_out"] is None
    assert done.stderr == ""


def test_tasks_are_listed_by_a_part_of_their_name():
    shown = CliRunner().invoke(app, ["tasks", "demo/"])
    assert {"demo/addition", "demo/facts"} <= set(shown.output.split())


@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_ends_a_measurement_and_the_code_says_which(number, code):
    with pytest.raises(Stopped, match="is kept; the same") as ended, console.progress(quiet=True):
        signal.raise_signal(signal.Signals[number])
    assert ended.value.code == code


def test_code_without_isolation_is_told_before_it_is_allowed(monkeypatch, capsys):
    monkeypatch.setattr(pool, "required", "none")
    options.CodeGroup(isolation="none").check()
    assert capsys.readouterr().err == ""
    options.CodeGroup(allow_code=True, isolation="none").check()
    assert "without isolation" in " ".join(capsys.readouterr().err.split())


def test_code_that_cannot_be_isolated_is_refused_before_a_model_is_loaded(monkeypatch):
    monkeypatch.setattr(pool, "find_obstacle", cache(lambda: "which this machine lacks"))
    monkeypatch.setattr(pool, "required", "bubblewrap")
    for typed in (
        ["locate", "no/such-model", "--task", "humaneval"],
        ["evaluate", "no/such-model", "--task", "humaneval", "--heads", "L0H0"],
    ):
        refused = CliRunner().invoke(app, [*typed, "--allow-code"])
        assert isinstance(refused.exception, UserError), refused.output
        assert "apt install bubblewrap" in str(refused.exception)


def test_a_number_and_its_unit_stay_together_on_a_terminal():
    assert console.printable("5\u00a0%\x1b[0m") == "5\u00a0%�[0m"
