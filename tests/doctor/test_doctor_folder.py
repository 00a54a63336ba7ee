"""What `caploc doctor DIR` says of folders, sound and not."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from caploc.cli import app
from caploc.components import AMONG
from caploc.declaration import ModelOptions, Study
from caploc.doctor import examine_folder
from caploc.errors import UserError
from caploc.folder import claim, rows_file, write_json
from caploc.store import Question, Row, Store, pack

QUESTION = Question("print", "float32", "words/past", "1", "metric")
STUDY = Study(ModelOptions("model"), "words/past", "css")
RESULT = {
    "schema": 1,
    "model": {"name": "model", "fingerprint": "print"},
    "task": {"name": "words/past"},
    "method": {"name": "css"},
    "seed": 0,
    "grid": {"layers": 2, "heads": [8, 8]},
    "cost": {"rows": 4},
    "heads": [],
    "estimand": {"heads": AMONG, "top": AMONG},
    "top": [],
    "validation": {"task": {"name": "words/past"}},
}


def make_rows(count: int) -> list[Row]:
    masks = np.eye(16, dtype=bool)[:count]
    return [Row(pack(m), f"e{n}", n, 1.0, 1.0, "[]", 5.0, 6, 0.1) for n, m in enumerate(masks)]


def run_folder(folder: Path, rows=4, finished=True) -> Path:
    """A folder as a run leaves it, with rows of a model of 16 heads."""
    with claim(folder, asdict(STUDY), "caploc locate model") as store:
        store.add(store.question_id(QUESTION), make_rows(rows))
    if finished:
        write_json(folder / "result.json", RESULT)
    return folder


def test_a_finished_run_is_sound(tmp_path):
    found = examine_folder(run_folder(tmp_path / "run"))
    assert (found.verdict, found.faults) == ("Sound.", [])
    assert (found.rows, found.questions, found.runs, found.finished) == (4, 1, 1, 1)


def test_an_unfinished_run_is_sound_and_told_how_to_go_on(tmp_path):
    found = examine_folder(run_folder(tmp_path / "run", finished=False))
    assert found.verdict.startswith("Sound, not finished: run the same command")


def test_the_rows_of_a_killed_run_count(tmp_path):
    folder = run_folder(tmp_path / "run", rows=2)
    with Store(folder / "rows.sqlite") as store:
        store.add(store.question_id(QUESTION), make_rows(7))
        shutil.copytree(folder, tmp_path / "killed")
    assert examine_folder(tmp_path / "killed").rows == 7


def test_a_folder_of_studies_is_looked_at_whole(tmp_path):
    write_json(tmp_path / "studies.json", {"schema": 1, "studies": ["a", "b"]})
    run_folder(tmp_path / "a", 4)
    run_folder(tmp_path / "b", 9, finished=False)
    assert rows_file(tmp_path / "a") == tmp_path / "rows.sqlite"
    found = examine_folder(tmp_path)
    assert not found.faults and (found.rows, found.runs, found.finished) == (9, 2, 1)
    assert examine_folder(tmp_path / "a").rows == 9


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("result.json", '{"schema": 1}', "result.json"),
        ("result.json", '{"schema": 1', "result.json cannot be read"),
        ("run.json", None, "holds no run.json"),
        ("curve.json", "{", "curve.json cannot be read"),
        ("rows.sqlite", "no database" * 500, "the file is damaged"),
    ],
)
def test_what_is_wrong_with_a_runs_files_is_told(tmp_path, name, content, said):
    folder = run_folder(tmp_path / "run")
    (folder / name).unlink(missing_ok=True)
    if content is not None:
        (folder / name).write_text(content)
    found = examine_folder(folder)
    assert said in found.faults[0] and found.verdict.startswith("Damaged")


def test_a_page_that_does_not_hold_together_is_told(tmp_path):
    path = run_folder(tmp_path / "run", rows=16) / "rows.sqlite"
    content = bytearray(path.read_bytes())
    content[-4096:] = b"\xa5" * 4096
    path.write_bytes(content)
    assert examine_folder(tmp_path / "run").faults


def test_a_folder_without_rows_is_no_run(tmp_path):
    with pytest.raises(UserError, match="holds no rows.sqlite; name the folder of a run"):
        examine_folder(tmp_path)


def test_the_command_says_it_and_exits_with_1_where_something_is_wrong(tmp_path):
    folder = str(run_folder(tmp_path / "run"))
    said = CliRunner().invoke(app, ["doctor", folder, "--json"])
    assert said.exit_code == 0 and json.loads(said.stdout)["rows"] == 4
    (tmp_path / "run" / "result.json").write_text("{")
    assert CliRunner().invoke(app, ["doctor", folder]).exit_code == 1
