"""What `caploc doctor DIR` says of folders, sound and not, and what `--repair` does."""

import json
import shutil
import sqlite3
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from caploc import folder as folder_names
from caploc.cli import app
from caploc.doctor import examine_folder, repair
from caploc.errors import StoreFailed, UserError
from caploc.folder import JSON_FILES, claim, question, read_json, rows_file, write_json
from caploc.store import Question, Row, Store, pack
from caploc.studies.running import lock_studies
from caploc.study import Study
from caploc.workbench import ModelOptions

QUESTION = Question("print", "float32", "demo/addition", "1", "metric")
CHECKED = "Sound as far as it was checked"  # results without versions are not computed again
STUDY = Study(ModelOptions("demo"), "demo/addition", "css")


def result(rows=4, **changes):
    fields = {
        "schema": 1,
        "model": {"name": "demo", "fingerprint": "print"},
        "task": {"name": "demo/addition"},
        "method": {"name": "css"},
        "seed": 0,
        "grid": {"layers": 2, "heads": [8, 8]},
        "cost": {"rows": rows},
        "heads": [],
        "top": [],
        "validation": {"task": {"name": "demo/addition"}},
    }
    return fields | changes


def run_folder(folder: Path, rows=4, finished=True) -> Path:
    """A folder as a run leaves it, with rows of a model of 16 heads."""
    with claim(folder, asdict(STUDY), "caploc locate demo") as store:
        number = store.question_id(QUESTION)
        masks = np.eye(16, dtype=bool)
        made = [Row(pack(m), f"e{n}", n, 1.0, 1.0, "[]", 5.0, 6, 0.1) for n, m in enumerate(masks)]
        store.add(number, made[:rows])
    if finished:
        write_json(folder / "result.json", result(rows))
    return folder


def test_a_finished_run_is_sound(tmp_path):
    found = examine_folder(run_folder(tmp_path / "run"))
    assert found.sound and found.verdict.startswith(CHECKED) and not found.notes
    assert (found.rows.rows, found.runs, found.finished) == (4, 1, 1)


def test_an_unfinished_run_is_sound_and_told_how_to_go_on(tmp_path):
    found = examine_folder(run_folder(tmp_path / "run", finished=False))
    assert found.sound and found.verdict.startswith("Sound, not finished: run the same command")


def test_a_log_left_behind_and_files_half_written_are_told(tmp_path):
    folder = run_folder(tmp_path / "run")
    with Store(folder / "rows.sqlite") as store:
        store.add(1, [Row(b"\x80\x00", "late", 9, 1.0, 1.0, "[]", 5.0, 6, 0.1)])
        shutil.copytree(folder, tmp_path / "killed")
    (tmp_path / "killed" / "result.json.part").write_text("{")
    found = examine_folder(tmp_path / "killed")
    assert found.sound and found.rows.rows == 5
    assert any("of a run that was killed" in note for note in found.notes)
    assert any("result.json.part was not finished" in note for note in found.notes)
    assert repair(found) is None
    assert not (tmp_path / "killed" / "result.json.part").exists()


def test_a_folder_of_studies_is_looked_at_whole(tmp_path):
    write_json(tmp_path / "studies.json", {"schema": 1, "studies": ["a", "b"]})
    for name, rows in (("a", 4), ("b", 9)):
        run_folder(tmp_path / name, rows)
    assert rows_file(tmp_path / "a") == tmp_path / "rows.sqlite"
    assert not (tmp_path / "a" / "rows.sqlite").exists()
    found = examine_folder(tmp_path)
    assert found.sound and (found.rows.rows, found.runs, found.finished) == (9, 2, 2)
    (note,) = examine_folder(tmp_path / "a").notes
    assert "shared with the studies beside it" in note


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("result.json", json.dumps(result(seed=3)), "seed 3, and run.json says 0"),
        ("result.json", json.dumps(result(schema=7)), "schema 7, not 1"),
        ("result.json", '{"schema": 1}', "is missing"),
        ("result.json", '{"schema": 1', "cannot be read"),
        ("result.json", "[" * 100_000, "cannot be read"),
        ("run.json", b"\xff\xfe", "cannot be read"),
        ("run.json", None, "is missing"),
        ("curve.json", "{", "cannot be read"),
    ],
)
def test_what_is_wrong_with_a_runs_files_is_told(tmp_path, name, content, said):
    folder = run_folder(tmp_path / "run")
    path = folder / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    found = examine_folder(folder)
    assert not found.sound and any(said in fault for fault in found.faults), found.faults
    assert found.verdict.startswith("Damaged")


def test_rows_that_a_result_counts_and_the_store_lost_are_told(tmp_path):
    folder = run_folder(tmp_path / "run")
    write_json(folder / "result.json", result(99))
    found = examine_folder(folder)
    assert found.sound and found.missing == 95
    assert found.verdict.startswith("Sound, but 95 rows or more that a result counts are gone")


def test_a_result_of_another_study_is_set_aside_by_repair(tmp_path):
    folder = run_folder(tmp_path / "run")
    write_json(folder / "result.json", result(seed=3))
    repair(examine_folder(folder))
    assert examine_folder(folder).verdict.startswith("Sound, not finished")
    assert read_json(folder / "result.json.damaged")["seed"] == 3


def test_repair_sets_an_unreadable_file_aside_and_the_run_can_go_on(tmp_path):
    folder = run_folder(tmp_path / "run", finished=False)
    (folder / "run.json").write_text('{"study": {')
    with pytest.raises(UserError, match="cut off. `caploc doctor"):
        claim(folder, asdict(STUDY), "caploc locate demo")
    repair(examine_folder(folder))
    claim(folder, asdict(STUDY), "caploc locate demo").close()
    written = read_json(folder / "run.json")["study"]
    assert question(written) == question(json.loads(json.dumps(asdict(STUDY))))
    assert (folder / "run.json.damaged").is_file()


def test_doctor_repairs_a_damaged_store_and_says_what_it_saved(tmp_path):
    folder = run_folder(tmp_path / "run", rows=16)
    with (folder / "rows.sqlite").open("r+b") as file:
        file.write(b"\0" * 100)
    told = CliRunner().invoke(app, ["doctor", str(folder), "--json"])
    assert told.exit_code == 1
    assert json.loads(told.stdout)["integrity"] == "damaged"
    told = CliRunner().invoke(app, ["doctor", str(folder), "--repair", "--json"])
    facts = json.loads(told.stdout)
    assert told.exit_code == 0
    assert facts["verdict"].startswith(CHECKED) and facts["rows"] == 16
    assert facts["repaired"]["rows"] == 16
    shown = CliRunner().invoke(app, ["doctor", str(folder)])
    assert shown.exit_code == 0 and "rows.sqlite.damaged is a copy kept aside" in shown.stdout


def test_a_store_that_is_none_of_ours_is_refused(tmp_path):
    with pytest.raises(UserError, match="holds no rows.sqlite"):
        examine_folder(tmp_path / "nowhere")
    database = sqlite3.connect(tmp_path / "rows.sqlite")
    database.execute("CREATE VIEW rows AS SELECT 1")
    database.commit()
    database.close()
    with pytest.raises(StoreFailed, match="holds a view 'rows'"):
        examine_folder(tmp_path)


def test_a_file_longer_than_any_that_is_written_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr("caploc.folder.LONGEST", 100)
    (tmp_path / "result.json").write_text(" " * 101)
    with pytest.raises(UserError, match="longer than 100 bytes"):
        read_json(tmp_path / "result.json")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("curve.json", {"points": 3}),
        ("answers.json", [1]),
        ("run.json", {"study": []}),
        ("curve.json", None),
    ],
)
def test_whatever_is_not_in_form_is_set_aside_once(tmp_path, name, content):
    folder = run_folder(tmp_path / "run")
    (folder / name).write_text(json.dumps(content))
    assert "--repair" in examine_folder(folder).verdict
    repair(examine_folder(folder))
    after = examine_folder(folder)
    assert "--repair" not in after.verdict and (folder / f"{name}.damaged").is_file()
    claim(folder, asdict(STUDY), "caploc locate demo").close()  # what the same command does first
    assert examine_folder(folder).verdict.startswith(CHECKED)


def test_without_run_json_the_command_is_told_to_write_it(tmp_path):
    folder = run_folder(tmp_path / "run")
    (folder / "run.json").unlink()
    assert (
        "run.json is missing; run the command that made the folder"
        in examine_folder(folder).verdict
    )
    claim(folder, asdict(STUDY), "caploc locate demo").close()
    assert examine_folder(folder).verdict.startswith(CHECKED)


def test_a_file_of_a_later_version_is_left_as_it_is(tmp_path):
    folder = run_folder(tmp_path / "run")
    write_json(folder / "result.json", result(schema=7))
    found = examine_folder(folder)
    assert "of a later version of caploc" in found.verdict and "--repair leaves" in found.verdict
    assert repair(found) is None
    assert read_json(folder / "result.json")["schema"] == 7


@pytest.mark.parametrize(
    "lost", ["UPDATE questions SET question = '\"lost\"'", "DELETE FROM questions"]
)
def test_a_lost_question_is_mended_by_the_same_command_and_not_by_repair(tmp_path, lost):
    folder = run_folder(tmp_path / "run")
    with Store(folder / "rows.sqlite") as store:
        store.database.execute(lost)
        store.database.commit()
    found = examine_folder(folder)
    assert not found.sound and "--repair" not in found.verdict
    assert "run the same command again" in found.verdict
    assert repair(found) is None and not list(folder.glob("*.damaged*"))
    with Store(folder / "rows.sqlite") as store:
        store.question_id(QUESTION)
    assert examine_folder(folder).verdict.startswith(CHECKED)


@pytest.mark.parametrize("content", ["{", '{"studies": 3}'])
def test_the_list_of_studies_is_read_and_written_anew(tmp_path, content):
    write_json(tmp_path / "studies.json", {"schema": 1, "studies": ["b", "a"]})
    for name in ("a", "b"):
        run_folder(tmp_path / name)
    (tmp_path / "studies.json").write_text(content)
    found = examine_folder(tmp_path)
    assert "--repair" in found.verdict and "studies.json" in " ".join(found.faults)
    repair(found)
    assert examine_folder(tmp_path).verdict.startswith(CHECKED)
    assert read_json(tmp_path / "studies.json") == {"schema": 1, "studies": ["a", "b"]}
    assert (tmp_path / "studies.json.damaged").read_text() == content
    with lock_studies(tmp_path, ["a", "b"]):
        pass


def test_a_study_that_is_listed_and_not_begun_is_not_finished(tmp_path):
    write_json(tmp_path / "studies.json", {"schema": 1, "studies": ["a", "b"]})
    run_folder(tmp_path / "a")
    assert examine_folder(tmp_path).verdict.startswith("Sound, not finished")


def test_a_folder_that_is_not_there_has_no_rows_of_its_neighbours(tmp_path):
    write_json(tmp_path / "studies.json", {"schema": 1, "studies": ["a"]})
    run_folder(tmp_path / "a")
    with pytest.raises(UserError, match="typo holds no rows.sqlite"):
        examine_folder(tmp_path / "typo")


def test_repair_drops_only_half_files_that_runs_leave(tmp_path):
    folder = run_folder(tmp_path / "run")
    scores = folder / "scores"
    scores.mkdir()
    half = [folder / f"{name}.part" for name in JSON_FILES]
    half += [folder / "rows.sqlite.part", folder / "rows.sqlite.schema2.part"]
    half += [scores / f"{'a1' * 16}.part", scores / f"{'a1' * 16}.npz.part"]
    others = [folder / name for name in ("film.mkv.part", "mine.json.part", "result.part")]
    others += [scores / "result.json.part", scores / "data.part"]
    for path in half + others:
        path.write_text("half")
    repair(examine_folder(folder))
    assert not any(path.exists() for path in half) and all(path.exists() for path in others)


def test_the_names_of_json_files_are_all_there():
    named = {value for value in vars(folder_names).values() if str(value).endswith(".json")}
    assert named == set(JSON_FILES) and len(named) > 10


def test_what_was_set_aside_before_is_kept(tmp_path):
    folder = run_folder(tmp_path / "run")
    for seed in (3, 4):
        write_json(folder / "result.json", result(seed=seed))
        repair(examine_folder(folder))
    assert read_json(folder / "result.json.damaged")["seed"] == 3
    assert read_json(folder / "result.json.damaged2")["seed"] == 4
    assert any("result.json.damaged2" in note for note in examine_folder(folder).notes)


@pytest.mark.parametrize("rows", ["many", None, [3], "9" * 5000, float(10**300)])
def test_a_count_of_rows_that_is_none_is_passed_over(tmp_path, rows):
    """Found by fuzzing, in a result of no study of heads, which is only looked at here."""
    folder = run_folder(tmp_path / "run")
    write_json(folder / "run.json", {"study": {"kind": "other"}})
    write_json(folder / "result.json", result(rows))
    assert examine_folder(folder).rows.rows == 4
