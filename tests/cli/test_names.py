"""Names that a command is given: what is read of them, and that a mistake is told at once."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from caploc.cli import app
from caploc.cli.options import split_names
from worlds import DEMO


def test_names_come_one_by_one_or_with_commas_and_files_whole(tmp_path):
    odd = tmp_path / "a,b.yaml"
    odd.touch()
    assert split_names(["a, b,", str(odd), "c"]) == ["a", "b", str(odd), "c"]
    assert split_names(None) == split_names([""]) == []


LARGE = {"torch", "lm_eval", "transformers"}
CALLS = """
import json, sys
from caploc.__main__ import main
for words in json.loads(sys.argv[1]):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as ended:
        print(json.dumps([ended.code, [*sys.modules]]))
"""


def called(*commands):
    """The exit codes of commands that one process runs, and what it has imported after each."""
    call = [sys.executable, "-c", CALLS, json.dumps(commands)]
    ended = subprocess.run(call, capture_output=True, text=True, check=True)
    found = map(json.loads, (line for line in ended.stdout.splitlines() if line.startswith("[")))
    return [(code, set(modules)) for code, modules in found]


def test_the_version_waits_for_no_library_and_an_unknown_task_for_none_that_is_large(monkeypatch):
    monkeypatch.delenv("CAPLOC_TASKS")  # lm-eval reads the tasks of one's own folders
    unknown = ["locate", "smollm2", "--task", "words/pst"]
    (code, modules), (refused, more) = called(["--version"], unknown)
    assert code == 0 and not modules & {"torch", "lm_eval", "scipy", "numpy", "pydantic"}
    assert not [name for name in modules if name.startswith("caploc.cli.")]
    assert refused == 2 and not more & LARGE


ADDITION = ["locate", DEMO, "--task", "demo/addition"]
MISTAKES = [
    ["evaluate", DEMO, "--task", "demo/addition", "--heads", "L0X1"],
    ["evaluate", "smolm2", "--task", "words/past"],
    [*ADDITION, "--goal", "specfic"],
    [*ADDITION, "--goal", "specific"],
    [*ADDITION, "--spare", "demo/sentences"],
    [*ADDITION, "--method", "css", "--rate", "1.5"],
    ["export", "nowhere", "--to", "cut"],
    [*ADDITION, "--device", "gpu"],
    [*ADDITION, "--data", "test=nowhere.jsonl"],
    ["chat", "nowhere"],
    ["curve", "nowhere"],
    *(["locate", "smollm2", "--task", f"gone.{kind}"] for kind in ("csv", "parquet", "yaml")),
]


def test_a_mistake_is_told_before_anything_is_loaded():
    for words, (code, modules) in zip(MISTAKES, called(*MISTAKES), strict=True):
        assert code == 2 and not modules & LARGE, words


def test_a_device_that_is_not_here_is_told_with_torch_alone():
    ((code, modules),) = called([*ADDITION, "--device", "cuda:99"])
    assert code == 2 and not modules & {"lm_eval", "transformers"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_is_shown(shell, monkeypatch):
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    shown = CliRunner().invoke(app, ["--show-completion", shell], prog_name="caploc")
    assert "_CAPLOC_COMPLETE" in shown.output
