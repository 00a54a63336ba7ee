"""What is filled in where nothing was said."""

from pathlib import Path

import pytest

from caploc.errors import BadOption, UnknownName
from caploc.naming import are_twins, check_tasks, default_folder, default_others, placed
from caploc.tasks.catalog import load_task, own_names
from doubles import write_task_file
from worlds import TASKS


def test_a_folder_is_named_after_the_run_and_stays_below_runs():
    assert default_folder("org/model", "css", "a b/c:d") == Path("runs/org-model-css-a-b-c-d")
    for hostile in ("../../etc", "..x", "/etc/passwd", "a" * 500, "~root"):
        found = default_folder(hostile)
        assert found.parent == Path("runs") and len(found.name) <= 80
        assert found.name not in ("", ".", "..")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("words/pst", "There is no task 'words/pst'. Did you mean 'words/past'?"),
        ("gone.csv", "There is no file 'gone.csv' here"),
        ("gone.parquet", "There is no file 'gone.parquet' here"),
        ("gone.yaml", "There is no task file 'gone.yaml' here"),
    ],
)
def test_a_task_that_is_not_there_is_told(name, said, monkeypatch):
    monkeypatch.delenv("CAPLOC_TASKS", raising=False)
    with pytest.raises(UnknownName) as refused:
        check_tasks(["words/past", name])
    assert said in str(refused.value)


def test_tasks_are_compared_with_copying_unless_others_are_named():
    assert default_others("words/past") == ["words/copy"]
    assert default_others("words/copy") == default_others("words/copy_twin") == []
    assert default_others("gsm8k") == default_others("/home/me/mine.yaml") == ["words/copy"]


def test_what_is_a_path_is_made_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.yaml").write_text("")
    assert placed("task.yaml") == str(tmp_path / "task.yaml")
    assert placed("org/model") == "org/model"


def test_tasks_of_the_users_folders_have_names_like_any_other(tmp_path, monkeypatch):
    write_task_file(tmp_path, [{"q": "1+1=", "a": "2"}], "sums", task="mine/sums")
    monkeypatch.setenv("CAPLOC_TASKS", f"{tmp_path}:{TASKS}")
    assert load_task("mine/sums").requests(0)[0].prompt == "1+1="
    assert {"mine/sums", "demo/addition", "words/past"} <= set(own_names())


def test_a_folder_of_tasks_that_is_not_there_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("CAPLOC_TASKS", str(tmp_path / "gone"))
    with pytest.raises(BadOption, match="CAPLOC_TASKS names .*gone, which is no folder"):
        load_task("mine/sums")


@pytest.mark.parametrize(
    ("one", "other", "twins"),
    [
        ("words/past", "words/past_twin", True),
        ("words/past_zero_shot", "words/past_twin", True),
        ("words/past", "words/plural", False),
        ("/a/pairs.yaml", "/a/pairs_twin.yaml", True),
        ("pairs.csv", "pairs_twin.csv", True),
        ("/a/past/pairs.yaml", "/a/plural/pairs.yaml", False),
    ],
)
def test_twins_are_told_by_the_ends_of_their_names(one, other, twins):
    assert are_twins(one, other) == are_twins(other, one) == twins and are_twins(one, one)
