"""Names that a command is given: what is read of them, and that a mistake is told at once."""

import os
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


def imported_by(*words: str, fails: bool = False, **env: str) -> set[str]:
    """Modules that a process has imported which was called by these words, when it ends."""
    code = "import sys; from caploc.__main__ import main\ntry: main()\n"
    code += "except SystemExit: print(*sys.modules, file=sys.stderr)"
    call = {"env": os.environ | env, "capture_output": True, "text": True, "check": True}
    ended = subprocess.run([sys.executable, "-c", code, *words], **call)
    assert bool(ended.stdout) is not fails
    return set(ended.stderr.split())


def of_commands(modules: set[str]) -> set[str]:
    return {name.rpartition(".")[2] for name in modules if name.startswith("caploc.cli.")}


LIBRARIES = {"torch", "lm_eval", "scipy", "numpy", "pydantic"}


def test_the_version_waits_for_no_library_and_no_command():
    modules = imported_by("--version")
    assert not modules & LIBRARIES and not of_commands(modules)


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", DEMO, "--task", "demo/addition", "--heads", "L0X1"),
        ("evaluate", "smolm2", "--task", "words/past"),
        ("locate", DEMO, "--task", "demo/addition", "--goal", "specfic"),
        ("locate", DEMO, "--task", "demo/addition", "--goal", "specific"),
        ("locate", DEMO, "--task", "demo/addition", "--spare", "demo/sentences"),
        ("locate", DEMO, "--task", "demo/addition", "--method", "css", "--rate", "1.5"),
        ("export", "nowhere", "--to", "cut"),
        ("locate", DEMO, "--task", "demo/addition", "--device", "gpu"),
        ("locate", DEMO, "--task", "demo/addition", "--data", "test=nowhere.jsonl"),
        ("chat", "nowhere"),
        ("curve", "nowhere"),
    ],
)
def test_a_mistake_is_told_before_anything_is_loaded(words):
    assert not imported_by(*words, fails=True) & {"torch", "lm_eval", "transformers"}


def test_a_device_that_is_not_here_is_told_with_torch_alone():
    words = ("locate", DEMO, "--task", "demo/addition", "--device", "cuda:99")
    assert not imported_by(*words, fails=True) & {"lm_eval", "transformers"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_is_shown(shell, monkeypatch):
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    shown = CliRunner().invoke(app, ["--show-completion", shell], prog_name="caploc")
    assert "_CAPLOC_COMPLETE" in shown.output
