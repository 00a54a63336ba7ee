"""A task asked on its training examples instead of its evaluation examples."""

import json

import pytest

from caploc.errors import BadOption
from caploc.options import TaskOptions
from caploc.tasks.catalog import can_train, load_task
from caploc.tasks.task import Generate
from doubles import write_lines, write_task_file

ROWS = {split: [{"q": f"{split} {n}+1=", "a": str(n + 1)} for n in range(6)] for split in
        ("train", "validation", "test")}  # fmt: skip


@pytest.fixture
def split_task(tmp_path):
    """Write a task of three splits; returns the YAML's path."""

    def write(name="mine", **changes):
        files = {
            split: str(write_lines(tmp_path / f"{split}.jsonl", rows))
            for split, rows in ROWS.items()
        }
        splits = {"training_split": "train", "validation_split": "validation"}
        given = splits | {"dataset_kwargs": {"data_files": files}} | changes
        return str(write_task_file(tmp_path, ROWS["test"], name, **given))

    return write


TRAINING = TaskOptions(training=True)


def prompts(name, options=TRAINING):
    task = load_task(name, options)
    return [task.requests(example)[0].prompt for example in range(task.size)]


@pytest.mark.parametrize("changes", [{}, {"test_split": None}, {"validation_split": None}], ids=str)
def test_the_training_examples_are_asked(split_task, changes):
    path = split_task(**changes)
    assert can_train(path)
    assert prompts(path) == [row["q"] for row in ROWS["train"]]
    evaluated = "validation" if "test_split" in changes else "test"
    assert prompts(path, TaskOptions()) == [row["q"] for row in ROWS[evaluated]]


def test_another_split_is_another_question(split_task):
    """Rows measured on one are never taken for rows of the other."""
    path = split_task()
    train, test = load_task(path, TRAINING), load_task(path)
    keys = [{task.key(example) for example in range(task.size)} for task in (train, test)]
    assert not keys[0] & keys[1]


@pytest.mark.parametrize("changes", [{}, {"fewshot_split": "train"}], ids=str)
def test_no_example_stands_in_its_own_prompt(split_task, changes):
    """Examples in the prompt come from the training split, which is now asked itself."""
    path = split_task(num_fewshot=3, **changes)
    options = TaskOptions(training=True, fewshot=3)
    task = load_task(path, options)
    for example in range(task.size):
        prompt = task.requests(example)[0].prompt
        assert prompt.count("+1=") == 4
        own = ROWS["train"][example]["q"]
        assert prompt.count(own) == 1, prompt


@pytest.mark.parametrize(
    "changes",
    [
        {"training_split": None},
        {"training_split": "test"},
        {"training_split": "validation", "test_split": None},
    ],
    ids=str,
)
def test_a_task_without_training_examples_of_its_own_says_so(split_task, changes):
    path = split_task(**changes)
    assert not can_train(path)
    with pytest.raises(BadOption, match="has no training split; name one task that has."):
        load_task(path, TRAINING)


def test_files_must_hold_the_training_split(split_task, tmp_path):
    path = split_task()
    test = TaskOptions(data={"test": str(tmp_path / "test.jsonl")}, training=True)
    assert not can_train(path, test)
    with pytest.raises(BadOption, match="no training split among the --data files"):
        load_task(path, test)
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps({"q": "9+9=", "a": "18"}) + "\n")
    both = TaskOptions(data={"test": test.data["test"], "train": str(other)}, training=True)
    assert can_train(path, both)
    assert prompts(path, both) == ["9+9="]


def test_a_group_has_no_training_split(split_task, tmp_path):
    split_task("one"), split_task("two")
    group = {"group": "both", "task": ["one", "two"]}
    path = tmp_path / "both.yaml"
    path.write_text(json.dumps(group))
    assert not can_train(str(path))


def test_a_task_that_judges_freely_names_one_right_answer():
    task = load_task("demo/cursing", TaskOptions(outcome="logprob", training=True))
    metric = load_task("demo/cursing", TRAINING)
    for example in range(5):
        (request,) = task.requests(example)
        (asked,) = metric.requests(example)
        assert isinstance(asked, Generate) and request.context == asked.prompt
        assert request.continuation.strip()
