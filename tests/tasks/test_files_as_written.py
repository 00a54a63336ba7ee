"""JSON and CSV files of this disk are read as they are written."""

import json

import pytest

from caploc.errors import BadData
from caploc.tasks.catalog import load_task

YAML = """task: own
dataset_path: {kind}
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: loglikelihood
doc_to_text: "{{{{q}}}}"
doc_to_target: " {{{{a}}}}"
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""
WRITTEN = [
    "2024-05-01",
    "007",
    "1.50",
    "1e3",
    "True",
    "NaN",
    "null",
    "12:30",
    "0x1F",
    "½",
    "+5",
    "1_0",
]


def answers(tmp_path, kind, file):
    (tmp_path / "own.yaml").write_text(YAML.format(kind=kind, file=file))
    task = load_task(str(tmp_path / "own.yaml"))
    return [task.requests(n)[0].continuation for n in range(task.size)]


def test_json_keeps_every_text(tmp_path):
    file = tmp_path / "own.jsonl"
    records = [{"q": f"{n} is", "a": text} for n, text in enumerate(WRITTEN)]
    file.write_text("\n".join(map(json.dumps, records)) + "\n\n")
    assert answers(tmp_path, "json", file) == [f" {text}" for text in WRITTEN]
    file.write_text(json.dumps(records))
    assert answers(tmp_path, "json", file) == [f" {text}" for text in WRITTEN]


def test_csv_keeps_every_text(tmp_path):
    file = tmp_path / "own.csv"
    file.write_text("q,a\n" + "".join(f"{n} is,{text}\n" for n, text in enumerate(WRITTEN)))
    assert answers(tmp_path, "csv", file) == [f" {text}" for text in WRITTEN]


@pytest.mark.parametrize("column", [["001", "002"], ["10", "2.0"], ["-0", "1"]])
def test_a_column_of_a_csv_is_of_numbers_only_where_all_are_written_so(tmp_path, column):
    file = tmp_path / "own.csv"
    file.write_text("q,a\n" + "".join(f"{n} is,{text}\n" for n, text in enumerate(column)))
    assert answers(tmp_path, "csv", file) == [f" {text}" for text in column]


def test_numbers_of_a_csv_are_numbers_for_a_choice(tmp_path):
    (tmp_path / "own.csv").write_text("q,gold\nfirst?,0\nsecond?,1\n")
    (tmp_path / "own.yaml").write_text(
        YAML.format(kind="csv", file=tmp_path / "own.csv")
        .replace("loglikelihood", "multiple_choice")
        .replace('doc_to_target: " {{a}}"', 'doc_to_choice: ["a", "b"]\ndoc_to_target: gold')
    )
    task = load_task(str(tmp_path / "own.yaml"))
    assert [task.example(n).right for n in range(2)] == [0, 1]


def test_a_row_of_a_csv_with_a_field_too_many_is_refused(tmp_path):
    file = tmp_path / "own.csv"
    file.write_text("q,a\nin France, Paris,b\n")
    with pytest.raises(BadData, match="line 2 has more fields than the header: 'b'"):
        answers(tmp_path, "csv", file)


def test_large_numbers_and_other_ends_of_lines_stay_text(tmp_path):
    file = tmp_path / "own.csv"
    file.write_text(f"q,a\none is,{10**23}\ntwo is,{10**22}\n")
    assert answers(tmp_path, "csv", file) == [f" {10**23}", f" {10**22}"]
    file = tmp_path / "own.jsonl"
    file.write_text('{"q": "a\u2028b", "a": "c\x85"}\n')
    assert answers(tmp_path, "json", file) == [" c\x85"]


def test_a_column_that_the_first_record_lacks_is_read_all_the_same(tmp_path):
    file = tmp_path / "own.jsonl"
    file.write_text(
        '{"q": "one is", "a": "1", "note": "x"}\n{"q": "two is", "a": "2", "more": "y"}'
    )
    answers(tmp_path, "json", file)
    leaf = load_task(str(tmp_path / "own.yaml")).leaves[0]
    assert [doc["more"] for doc in leaf.docs] == [None, "y"]
    file.write_text('{"a": "1"}\n{"q": "two is", "a": "2"}')
    with pytest.raises(BadData, match="Record 1 of task .* has no 'q'"):
        answers(tmp_path, "json", file)
