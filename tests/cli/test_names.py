"""Names that a command is given: what is read of them, and that a mistake is told at once."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from caploc import naming as task_names
from caploc.cli import app, options
from caploc.cli.options import split_names
from caploc.errors import BadData, BadOption, UnknownName
from worlds import DEMO


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """A cache of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def test_names_come_one_by_one_or_with_commas_and_files_whole(tmp_path):
    odd = tmp_path / "a,b.yaml"
    odd.touch()
    assert split_names(["a, b,", str(odd), "c"]) == ["a", "b", str(odd), "c"]
    assert split_names(None) == split_names([""]) == []


def keep(*names: str) -> None:
    """Names of lm-eval's tasks, as if they were read before."""
    task_names.cache_file().parent.mkdir(parents=True)
    task_names.cache_file().write_text("\n".join(names))


def test_yaml_files_name_tasks_groups_and_tags(tmp_path):
    (tmp_path / "one.yaml").write_text("task: one\ntag:\n  - many\n  - all\nmetadata: {task: no}\n")
    (tmp_path / "two.yaml").write_text('"task": "two"\ndoc_to_text: x\n')
    (tmp_path / "both.yml").write_text("group: both\ntask:\n  - one\n  - two\ntag: few\n")
    (tmp_path / "_shared").write_text("tag:\n  - base\ntask: no\n")  # what others include
    (tmp_path / "read.me").write_text("tag: no\n")
    named = {"one", "two", "both", "many", "all", "few", "base"}
    assert set(task_names.named_in(tmp_path)) == named


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
        ("locate", DEMO, "--task", "demo/additon"),
        ("locate", DEMO, "--task", "demo/addition", "--also", "hellasvag"),
        ("evaluate", DEMO, "--task", "demo/addition", "--heads", "L0X1"),
        ("evaluate", "smolm2", "--task", "words/past"),
        ("locate", DEMO, "--task", "demo/addition", "--goal", "specfic"),
        ("locate", DEMO, "--task", "demo/addition", "--goal", "specific"),
        ("locate", DEMO, "--task", "demo/addition", "--spare", "demo/sentences"),
        ("locate", DEMO, "--task", "demo/addition", "--method", "css", "--rate", "1.5"),
        ("export", "nowhere", "--to", "cut"),
        ("locate", DEMO, "--task", "demo/addition", "--device", "gpu"),
        ("locate", DEMO, "--task", "nowhere.yaml"),
        ("locate", DEMO, "--task", "demo/addition", "--data", "test=nowhere.jsonl"),
        ("chat", "nowhere"),
        ("curve", "nowhere"),
    ],
)
def test_a_mistake_is_told_before_anything_is_loaded(words):
    keep("gsm8k", "hellaswag")
    assert not imported_by(*words, fails=True) & {"torch", "lm_eval", "transformers"}


def test_a_device_that_is_not_here_is_told_with_torch_alone():
    words = ("locate", DEMO, "--task", "demo/addition", "--device", "cuda:99")
    assert not imported_by(*words, fails=True) & {"lm_eval", "transformers"}


def test_a_yaml_whose_examples_are_not_there_is_told_before_it_is_loaded(tmp_path):
    path = tmp_path / "mine.yaml"
    files = {"one": "gone.jsonl", "all": "[here.csv, gone.jsonl]", "split": "{test: gone.jsonl}"}
    for given in files.values():
        kwargs = f"dataset_kwargs:\n  data_files: {given}\n"
        path.write_text(f"task: mine\ndoc_to_text: !function mine.text\n{kwargs}")
        with pytest.raises(BadData, match=r"mine.yaml reads its examples from '.*', and there is "):
            task_names.check_examples([str(path)])
    assert not imported_by("locate", DEMO, "--task", str(path), fails=True) & {"torch", "lm_eval"}
    for given in ("hf://a/b.json", "data-*.json", str(path)):
        path.write_text(f"task: mine\ndataset_kwargs: {{data_files: '{given}'}}\n")
        task_names.check_examples([str(path), "gsm8k", str(tmp_path / "none.yaml")])
    path.write_text("task: [")  # what is wrong here is said where it is read
    task_names.check_examples([str(path)])


def test_names_files_and_what_lm_eval_has_are_let_through(tmp_path):
    keep("gsm8k")
    (tmp_path / "of-mine").write_text("task: mine\n")
    (tmp_path / "b.yaml").write_text("task: b\n")
    names = ["words/past,gsm8k", "none", str(tmp_path / "b.yaml"), str(tmp_path / "of-mine")]
    assert options.check_tasks(names) == names
    with pytest.raises(UnknownName, match="Did you mean 'gsm8k'"):
        options.check_tasks(["gsm8"])
    for wrong in ("words/pats", "past", "Words/Past"):
        with pytest.raises(UnknownName, match="Did you mean 'words/past'"):
            options.check_tasks([wrong])
    (tmp_path / "pairs.parquet").write_text("{}")
    with pytest.raises(BadOption, match="pairs.parquet holds examples"):
        options.check_tasks([str(tmp_path / "pairs.parquet")])


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_is_shown(shell, monkeypatch):
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    shown = CliRunner().invoke(app, ["--show-completion", shell], prog_name="caploc")
    assert "_CAPLOC_COMPLETE" in shown.output


@pytest.mark.slow
def test_names_read_are_those_that_lm_eval_registers():
    from caploc.tasks.catalog import harness_manager, own_names

    assert set(task_names.own_tasks()) == set(own_names())
    registered = set(harness_manager().all_tasks)
    read = task_names.harness_tasks()
    assert read == set(task_names.cache_file().read_text().split())
    assert registered <= read
    assert len(read - registered) < 0.001 * len(read)
