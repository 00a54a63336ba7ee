"""Rows as a table: every value arrives, memory stays flat."""

import csv
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from caploc import rowfiles
from caploc.components import AMONG, Heads
from caploc.contents import TaskScores
from caploc.errors import BadOption, StoreFailed, UserError
from caploc.folder import write_json
from caploc.result import SCHEMA, GridShape
from caploc.rowfiles import COLUMNS, write_rows
from caploc.store import Question, Row, Store, pack

GRID = Heads((8, 0, 5))
QUESTION = Question("print", "float32", "task", "1", "metric")
HOSTILE = '=cmd|" /C calc"!A0,\n"\x1b[31m<script>'


def filled(folder: Path) -> list[Row]:
    """A folder of a few rows of one model, with the result that names it."""
    random = np.random.default_rng(0)
    made = []
    for number in range(25):
        responses = [{"text": HOSTILE, "tokens": 3}]
        if number % 2:
            responses = [{"logprob": -1.5, "greedy": True, "tokens": 2}] * 2
        outcome = math.nan if number == 7 else float(number % 3)
        mask = pack(random.random(GRID.size) < 0.3)
        item = [1.0, number]
        made.append(
            Row(mask, f"e{number:02}", number, outcome, item, json.dumps(responses), 7.5, 9, 0.25)
        )
    with Store(folder / "rows.sqlite") as store:
        store.add(store.question_id(QUESTION), made)
    result = {
        "schema": 1,
        "model": {"fingerprint": "print", "name": "my/model"},
        "task": {"name": "task"},
        "method": {"name": "css"},
        "seed": 0,
        "grid": {"layers": 3, "heads": [8, 0, 5]},
        "heads": [],
        "estimand": {"heads": AMONG, "top": AMONG},
        "top": [],
        "cost": {"rows": 25},
        "validation": {"task": {"name": "task"}},
    }
    write_json(folder / "result.json", result)
    return made


def test_every_value_of_every_row_arrives(tmp_path, monkeypatch):
    made = {row.example: row for row in filled(tmp_path)}
    monkeypatch.setattr(rowfiles, "AT_ONCE", 7)  # several batches, the last one shorter
    assert write_rows(tmp_path, tmp_path / "rows.parquet") == 25
    table = parquet.read_table(tmp_path / "rows.parquet")
    assert table.schema == COLUMNS
    lines = table.to_pylist()
    assert {line["example"] for line in lines} == set(made)
    for line in lines:
        row = made[line["example"]]
        bits = np.unpackbits(np.frombuffer(row.mask, np.uint8)).astype(bool)[: GRID.size]
        assert line["heads"] == ",".join(str(head) for head in GRID.named(bits))
        assert line["knocked_out"] == ",".join(map(str, np.flatnonzero(bits)))
        assert (line["outcome"] is None) == math.isnan(row.outcome)
        assert line["outcome"] in (None, row.outcome)
        assert json.loads(line["item"]) == row.item
        assert line["responses"] == row.responses
        assert (line["model"], line["fingerprint"]) == ("my/model", "print")
        assert (line["number"], line["tokens"], line["plain_tokens"]) == (row.number, 7.5, 9)


def test_an_evaluation_tells_the_heads_of_its_rows(tmp_path):
    filled(tmp_path)
    (tmp_path / "result.json").unlink()
    grid = GridShape.of(GRID)
    scores = TaskScores(
        schema=SCHEMA, model="my/model", fingerprint="print", grid=grid, heads=[], tasks=[]
    )
    write_json(tmp_path / "evaluation.json", scores.as_dict())
    write_rows(tmp_path, tmp_path / "rows.parquet")
    for line in parquet.read_table(tmp_path / "rows.parquet").to_pylist():
        columns = [int(column) for column in line["knocked_out"].split(",") if column]
        assert line["heads"] == ",".join(str(GRID.components[column]) for column in columns)
        assert line["model"] == "my/model"


def test_a_csv_file_says_the_same(tmp_path):
    filled(tmp_path)
    write_rows(tmp_path, tmp_path / "rows.csv")
    write_rows(tmp_path, tmp_path / "rows.parquet")
    with (tmp_path / "rows.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    for line, whole in zip(
        lines, parquet.read_table(tmp_path / "rows.parquet").to_pylist(), strict=True
    ):
        for name, value in whole.items():
            kind = str if value is None else type(value)
            assert kind(line[name]) == ("" if value is None else value)


def test_without_a_result_columns_stand_for_heads(tmp_path):
    filled(tmp_path)
    (tmp_path / "result.json").unlink()
    write_rows(tmp_path, tmp_path / "rows.parquet")
    for line in parquet.read_table(tmp_path / "rows.parquet").to_pylist():
        assert line["heads"] is None and line["model"] is None and line["fingerprint"] == "print"
        assert all(0 <= int(each) < GRID.size for each in line["knocked_out"].split(",") if each)


def test_mistakes_are_sentences_and_leave_no_half_file(tmp_path):
    filled(tmp_path)
    with pytest.raises(BadOption, match=r"must end in .parquet or .csv; got .*rows.xlsx"):
        write_rows(tmp_path, tmp_path / "rows.xlsx")
    with pytest.raises(UserError, match="holds no rows.sqlite"):
        write_rows(tmp_path / "nowhere", tmp_path / "rows.csv")
    with pytest.raises(StoreFailed, match="could not be written"):
        write_rows(tmp_path, tmp_path / "no" / "folder" / "rows.csv")
    assert not [path for path in tmp_path.iterdir() if path.suffix in (".parquet", ".part")]


def test_studies_that_share_their_rows_are_one_table(tmp_path):
    made = filled(tmp_path)
    result = json.loads((tmp_path / "result.json").read_text())
    (tmp_path / "result.json").unlink()
    write_json(tmp_path / "studies.json", {"schema": 1, "studies": ["one", "two"]})
    for name, fingerprint in (("one", "print"), ("two", "print2")):
        (tmp_path / name).mkdir()
        model = {"fingerprint": fingerprint, "name": name}
        write_json(tmp_path / name / "result.json", result | {"model": model})
    with Store(tmp_path / "rows.sqlite") as store:
        store.add(store.question_id(replace(QUESTION, model="print2")), made[:3])
    for folder in (tmp_path, tmp_path / "two"):
        assert write_rows(folder, tmp_path / "rows.parquet") == 28
    models = parquet.read_table(tmp_path / "rows.parquet").to_pandas()["fingerprint"]
    assert models.value_counts().to_dict() == {"print": 25, "print2": 3}


WRITING = """
import resource, sys
from pathlib import Path
import numpy as np
from caploc.rowfiles import write_rows
from caploc.store import Question, Row, Store, pack
folder, count = Path(sys.argv[1]), int(sys.argv[2])
mask = np.zeros(1024, dtype=bool)
with Store(folder / "rows.sqlite") as store:
    question = store.question_id(Question("p", "float32", "task", "1", "metric"))
    for first in range(0, count, 5000):
        numbers = range(first, first + 5000)
        rows = []
        for number in numbers:
            mask[:] = False
            mask[number % 1024] = mask[(number * 7) % 1024] = True
            text = '[{"text": "%s", "tokens": 9}]' % ("word " * 40)
            rows.append(Row(pack(mask), f"{number:032x}", number, 1.0, 1.0, text, 5.0, 6, 0.1))
        store.add(question, rows)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
write_rows(folder, folder / "rows.parquet")
print(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_a_hundred_thousand_rows_take_no_more_memory_than_ten_thousand(tmp_path):
    grown = []
    for count in (10_000, 100_000):
        folder = tmp_path / str(count)
        folder.mkdir()
        arguments = [sys.executable, "-c", WRITING, str(folder), str(count)]
        done = subprocess.run(arguments, capture_output=True, text=True, check=True)
        before, after = map(int, done.stdout.split())
        grown.append(after - before)
        assert parquet.read_metadata(folder / "rows.parquet").num_rows == count
    assert grown[1] < grown[0] + 50_000  # kilobytes
