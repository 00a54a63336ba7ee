"""Rows as a table: every value arrives."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pyarrow import parquet

from caploc.components import Heads
from caploc.errors import BadOption, StoreFailed, UserError
from caploc.folder import write_json
from caploc.rowfiles import COLUMNS, write_rows
from caploc.store import Question, Row, Store, pack
from doubles import least_result

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
    model, grid = {"fingerprint": "print", "name": "my/model"}, {"layers": 3, "heads": [8, 0, 5]}
    write_json(folder / "result.json", least_result(model=model, grid=grid))
    return made


def test_every_value_of_every_row_arrives(tmp_path):
    made = {row.example: row for row in filled(tmp_path)}
    assert write_rows(tmp_path, tmp_path / "rows.parquet") == 25
    table = parquet.read_table(tmp_path / "rows.parquet")
    assert table.column_names == COLUMNS
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


def test_a_csv_file_says_the_same(tmp_path):
    filled(tmp_path)
    write_rows(tmp_path, tmp_path / "rows.csv")
    write_rows(tmp_path, tmp_path / "rows.parquet")
    whole = pd.read_parquet(tmp_path / "rows.parquet").fillna({"outcome": -1.0})
    read = pd.read_csv(tmp_path / "rows.csv", dtype=str, keep_default_na=False)
    assert list(read) == COLUMNS and (read["responses"] == whole["responses"]).all()
    assert (read["heads"] == whole["heads"]).all()
    assert (read["outcome"].replace("", "-1").astype(float) == whole["outcome"]).all()


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
