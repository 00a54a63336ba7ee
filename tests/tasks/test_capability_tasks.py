"""The neurons paper's data sets as tasks, from files in their own formats."""

import pandas
import pytest

from caploc.options import TaskOptions
from caploc.tasks.catalog import load_task, own_manager
from caploc.tasks.paper.syntax import score_syntax
from caploc.tasks.task import Generated, LogLikelihood
from doubles import write_lines

ROWS = {
    "metamath": [
        {
            "type": "GSM_Rephrased",
            "query": f"What is {n} and 1?",
            "original_question": f"{n} + 1?",
            "response": f"One more than {n} is {n + 1}.\n#### {n + 1}\nThe answer is: {n + 1}",
        }
        for n in range(8)
    ],
    "code25k": [
        {
            "output": f"```python\nprint({n})\n```",
            "text": "both",
            "instruction": f"Print {n}.",
            "input": "a list" if n % 2 else "",
        }
        for n in range(8)
    ],
    "emotion": [{"text": f"i feel it {n} times", "label": n % 6} for n in range(12)],
    "imdb": [{"text": f"film {n}<br />fine", "label": int(n > 5)} for n in range(12)],
}
SPLITS = {"metamath": ("train",), "code25k": ("train",), "emotion": ("train", "validation", "test"),
          "imdb": ("train", "test")}  # fmt: skip


def written(folder, name, split, ending="jsonl"):
    folder.mkdir(exist_ok=True)
    path = folder / f"{split}.{ending}"
    table = pandas.DataFrame(ROWS[name])
    if ending == "jsonl":
        write_lines(path, ROWS[name])
    else:
        {"parquet": table.to_parquet, "csv": table.to_csv}[ending](path, index=False)
    return str(path)


def options(tmp_path, name, ending="jsonl", **more):
    files = {split: written(tmp_path, name, split, ending) for split in SPLITS[name]}
    return TaskOptions(data=files, **more)


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "csv"])
@pytest.mark.parametrize("name", ROWS)
def test_every_data_set_is_read_from_files_of_its_own_form(tmp_path, name, ending):
    task = load_task(name, options(tmp_path, name, ending))
    gold = load_task(name, options(tmp_path, name, ending, outcome="logprob"))
    assert task.size == gold.size == len(ROWS[name])
    (asked,) = gold.requests(0)
    assert isinstance(asked, LogLikelihood) and asked.continuation.strip()
    assert "nan" not in asked.context and "None" not in asked.context


@pytest.mark.parametrize("name", ROWS)
def test_the_hubs_data_set_is_loaded_from_a_folder_laid_out_as_it_is(tmp_path, name):
    for split in SPLITS[name]:
        written(tmp_path / "data", name, split, "parquet")
    file = tmp_path / f"{name}_here.yaml"
    known = own_manager("paper").task_index[name].yaml_path
    file.write_text(
        f"include: {known}\ntask: {name}_here\ndataset_path: {tmp_path / 'data'}\n"
        "dataset_name: null\n"
    )
    assert load_task(str(file)).size == len(ROWS[name])


def test_an_answer_is_right_by_what_the_answer_is(tmp_path):
    task = load_task("metamath", options(tmp_path, "metamath"))
    right = "Let us add.\n#### 4\nThe answer is: 4"
    for said, worth in ((right, 1.0), ("The answer is: $4$.", 1.0), ("The answer is: 5", 0.0)):
        assert task.outcome(task.item(3, [Generated(said)])) == worth


@pytest.mark.parametrize(
    ("said", "parses"),
    [
        ("print(1)", 1.0),
        ("```python\nprint(1)\n```\nThis prints one.", 1.0),
        ("This prints one.", 0.0),
        ("```python\nprint(\n```", 0.0),
        ("", 0.0),
        ("# nothing but words", 0.0),
        ("(" * 5000, 0.0),
        ("x = '\\d'", 1.0),
    ],
)
def test_a_program_without_tests_is_asked_to_be_python(said, parses):
    assert score_syntax({}, [said]) == {"parses": parses}


def test_labels_that_stand_together_are_dealt_anew(tmp_path):
    gold = load_task("imdb", options(tmp_path, "imdb", outcome="logprob"))
    first = {gold.requests(n)[0].continuation for n in range(6)}
    assert first == {" negative", " positive"}
