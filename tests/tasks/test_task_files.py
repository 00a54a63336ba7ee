"""Task files as lm-eval reads them, and the sentence for one that it cannot."""

import json

import pytest

from caploc.errors import BadData
from caploc.options import TaskOptions
from caploc.tasks.catalog import load_task


def test_a_file_may_include_another(tmp_path, task_file):
    base = json.loads(task_file("base").read_text())
    (tmp_path / "base.yaml").write_text(json.dumps(base | {"task": "base"}))
    (tmp_path / "mine.yml").write_text(
        "include: base.yaml\ntask: mine\ndoc_to_text: 'Sum: {{q}}'\n"
    )
    task = load_task(str(tmp_path / "mine.yml"))
    assert task.leaves[0].name == "mine"
    assert task.requests(1)[0].prompt == "Sum: 1+1="


def test_a_group_finds_its_members_by_name_and_tag_in_its_folder_and_below(tmp_path, task_file):
    below = json.loads(task_file("low").read_text())
    (tmp_path / "low.yaml").unlink()
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "low.yaml").write_text(json.dumps(below | {"tag": "tagged"}))
    task_file("high")
    (tmp_path / "all.yaml").write_text("group: all\ntask: [high, tagged]\n")
    task = load_task(str(tmp_path / "all.yaml"))
    assert [leaf.name for leaf in task.leaves] == ["high", "low"] and task.size == 12


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("- a\n", "is not a task YAML: Expected YAML dict"),
        ("task: a\ninclude: absent.yaml\n", "is not a task YAML: .*No such file"),
        ("task: a\ninclude: mine.yaml\n", "is not a task YAML: Include cycle"),
        ("a: !b c\n", "is not a task YAML: could not determine"),
        ("group: g\ntask: a\n", "is a group without a list of tasks"),
    ],
)
def test_a_file_that_is_no_task_is_refused(tmp_path, content, said):
    file = tmp_path / "mine.yaml"
    file.write_text(content)
    with pytest.raises(BadData, match=said) as refused:
        load_task(str(file))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("mine.jsonl", b'{"q": "a", "a": "b"}\n3\n', "could not be read .line"),
        ("mine.jsonl", '{"q": "\u00fc", "a": "b"}\n'.encode("latin-1"), "can't decode byte 0xfc"),
        ("mine.parquet", b"PAR1abc", "could not be read .Parquet file size is 7 bytes"),
    ],
)
def test_data_that_cannot_be_read_are_one_sentence(tmp_path, task_file, name, content, said):
    data = tmp_path / f"other-{name}"
    data.write_bytes(content)
    with pytest.raises(BadData, match=said) as refused:
        load_task(str(task_file()), TaskOptions(data={"test": str(data)}))
    assert "\n" not in str(refused.value)


def test_a_file_of_data_that_is_missing_is_named(tmp_path, task_file):
    file = task_file()
    (tmp_path / "mine.jsonl").unlink()
    with pytest.raises(BadData, match="could not be read .*No such file.*must hold examples"):
        load_task(str(file))
