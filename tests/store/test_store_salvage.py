"""Damaged files: what is told of them, and that every sound row is saved."""

import shutil
import sqlite3
import struct
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from filled import HEADS, QUESTIONS, alike, fill, held, rows, write_former
from hypothesis import given, settings
from hypothesis import strategies as st

from caploc.errors import FolderTaken, StoreFailed
from caploc.store import Question, Store
from caploc.store.pages import LEAF_TABLE, MOST_READ, Pages, records
from caploc.store.repair import check_store, salvage

PAGE = 4096


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A store of 600 rows, and what it holds."""
    path = tmp_path_factory.mktemp("sound") / "rows.sqlite"
    return path, fill(path)


def copied(sound, folder: Path) -> Path:
    """A copy of the sound store, to be damaged."""
    folder.mkdir(exist_ok=True)
    return Path(shutil.copy(sound[0], folder / "rows.sqlite"))


def overwrite(path: Path, place: int, content: bytes) -> None:
    """Damage a file."""
    with path.open("r+b") as file:
        file.seek(place)
        file.write(content)


def test_a_store_that_was_just_written_is_sound(sound):
    found = check_store(sound[0], {"weights": HEADS})
    assert found.sound and (found.rows, found.questions) == (600, 2)
    assert found.unscored == 2 * len(range(0, 300, 7))


def test_masks_of_another_model_are_a_fault(sound):
    assert check_store(sound[0], {"weights": HEADS + 8}).faults == {
        "rows whose mask is of the wrong length": 600
    }


def test_every_record_of_a_sound_file_is_read_from_its_pages(sound):
    path, truth = sound
    found = {(r[1], r[2], r[0]): r for r in records(path) if len(r) == 11}
    with sqlite3.connect(path) as database:
        stored = database.execute("SELECT * FROM rows").fetchall()
    assert len(found) == len(stored) == 600
    assert all(found[row[1], row[2], row[0]] == row for row in stored)


PLACES = st.lists(st.floats(0, 0.999), min_size=1, max_size=6)
CONTENT = st.binary(min_size=1, max_size=PAGE)


def check_salvage(sound, places, content):
    """Overwrite parts of a store; rows of other pages are saved, and none is changed."""
    with TemporaryDirectory() as folder:
        path = copied(sound, Path(folder))
        size, touched = path.stat().st_size, set()
        for place in places:
            start = int(place * (size - len(content)))
            overwrite(path, start, content)
            touched |= {start // PAGE, (start + len(content)) // PAGE}
        salvage(path)
        after = held(path)
    lost = 0
    for question, truth in sound[1].items():
        assert all(alike(row, truth[key]) for key, row in after[question].items())
        lost += len(truth) - len(after[question])
    # a leaf holds up to 30 short rows; a long row also needs its overflow pages
    assert lost <= 32 * len(touched) and size > 60 * PAGE


@settings(max_examples=4)
@given(places=PLACES, content=CONTENT)
def test_random_damage_costs_rows_of_its_pages_only_and_never_changes_one(sound, places, content):
    check_salvage(sound, places, content)


@pytest.mark.slow
@settings(max_examples=150)
@given(places=PLACES, content=CONTENT)
def test_much_random_damage_is_no_different(sound, places, content):
    check_salvage(sound, places, content)


def test_a_damaged_file_is_told_saved_and_kept_aside(sound, tmp_path):
    path = copied(sound, tmp_path)
    overwrite(path, 0, b"\0" * PAGE)
    assert "the file cannot be opened" in " ".join(check_store(path).faults)
    with pytest.raises(StoreFailed, match="damaged. `caploc doctor .* --repair` saves every sound"):
        Store(path)
    found = salvage(path)
    assert found.rows == 600 and found.questions == 2
    assert found.damaged == tmp_path / "rows.sqlite.damaged" and found.damaged.is_file()
    assert check_store(path).sound
    overwrite(path, 0, b"\0" * PAGE)
    assert salvage(path).damaged == tmp_path / "rows.sqlite.damaged2"


def test_a_flipped_bit_that_sqlite_does_not_see_is_found_by_the_seal(sound, tmp_path):
    path = copied(sound, tmp_path)
    database = sqlite3.connect(path)
    database.execute("UPDATE rows SET outcome = 1 - outcome WHERE question = 1 AND number = 5")
    database.commit()
    assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    database.close()
    (fault,) = check_store(path).faults
    assert "their seal does not match" in fault
    saved = salvage(path)
    assert (saved.rows, saved.refused) == (599, 1)


@pytest.mark.parametrize("deleted", [False, True])
def test_rows_that_only_the_log_holds_are_saved(tmp_path, deleted):
    (tmp_path / "killed").mkdir()
    with Store(tmp_path / "rows.sqlite"):
        pass
    truth = {}
    with Store(tmp_path / "rows.sqlite") as store:
        for seed, question in enumerate(QUESTIONS):
            store.add(store.question_id(question), rows(50, seed))
            truth[question] = rows(50, seed)
        for name in ("rows.sqlite", "rows.sqlite-wal"):
            shutil.copy(tmp_path / name, tmp_path / "killed")
    path = tmp_path / "killed" / "rows.sqlite"
    if deleted:
        path.unlink()
        with pytest.raises(StoreFailed, match="belongs to a file that is empty"):
            Store(path)
        assert not check_store(path).sound
    else:
        overwrite(path, 0, b"\xff" * 200)
    assert salvage(path).rows == 100
    after = held(path)
    for question, rows_of in truth.items():
        assert all(alike(after[question][row.mask, row.example], row) for row in rows_of)


def test_a_question_whose_text_is_lost_is_recognised_by_its_rows(sound, tmp_path):
    path = copied(sound, tmp_path)
    with sqlite3.connect(path) as database:
        places = dict(database.execute("SELECT name, rootpage FROM sqlite_schema"))
    for name in ("questions", "sqlite_autoindex_questions_1"):
        overwrite(path, (places[name] - 1) * PAGE, b"\0" * PAGE)
    saved = salvage(path)
    assert (saved.rows, saved.questions, saved.unnamed) == (600, 0, 600)
    (fault,) = check_store(path).faults
    assert "the same command finds them again" in fault
    with Store(path) as store:
        fresh = store.question_id(Question("other weights", "float32", "task", "1", "metric"))
        assert store.load(fresh) == {}
    after = held(path)
    assert {question: len(rows) for question, rows in after.items()} == {
        question: 300 for question in QUESTIONS
    }
    assert check_store(path).sound


def test_a_store_in_use_is_not_repaired(sound, tmp_path):
    path = copied(sound, tmp_path)

    code = (
        "import sys; from pathlib import Path; from caploc.store import Store\n"
        "store = Store(Path(sys.argv[1])); print('open', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout.readline() == b"open\n"
    with pytest.raises(FolderTaken, match="Another caploc process is running"):
        salvage(path)
    holder.communicate(b"")


def test_a_log_whose_page_number_is_damaged_costs_no_time(tmp_path):
    (tmp_path / "killed").mkdir()
    with Store(tmp_path / "rows.sqlite") as store:
        store.add(store.question_id(QUESTIONS[0]), rows(50))
        for name in ("rows.sqlite", "rows.sqlite-wal"):
            shutil.copy(tmp_path / name, tmp_path / "killed")
    log = tmp_path / "killed" / "rows.sqlite-wal"
    overwrite(log, 32, b"\xff")  # the highest byte of the first frame's page number
    before = time.perf_counter()
    found = {record for record in records(tmp_path / "killed" / "rows.sqlite")}
    assert time.perf_counter() - before < 2
    assert len({record[1:3] for record in found if len(record) == 11}) == 50


@pytest.mark.parametrize("length", [4, 5, 40])
def test_overflow_that_leads_back_to_itself_ends(tmp_path, length):
    """A leaf of 512 bytes: its one record has 50 MB from page 3 on, which page 3 follows."""
    leaf = bytearray(512)
    leaf[0], leaf[3:5], leaf[8:10] = LEAF_TABLE, struct.pack(">H", 1), struct.pack(">H", 20)
    # 39 bytes of 39 + 508 * 100,000 lie on the leaf itself, behind 5 of length and row id
    leaf[20:25] = bytes([0x98, 0x9C, 0xCB, 0x27, 1])
    leaf[64:68] = struct.pack(">I", 3)
    loop = struct.pack(">I", 3) + b"x" * (length - 4)
    content = bytes(512) + bytes(leaf) + loop
    path = tmp_path / "pages"
    path.write_bytes(content)
    file = path.open("rb")
    pages = Pages(file, len(content), 512, 0, {})
    before = time.perf_counter()
    with file:
        assert list(pages.records()) == []
    assert time.perf_counter() - before < 1
    assert 1 <= pages.read[3] <= MOST_READ + 1


def test_a_damaged_store_of_the_first_schema_is_saved(tmp_path):
    path, made = tmp_path / "rows.sqlite", rows(50)
    write_former(path, 1, made)
    overwrite(path, 0, b"\0" * 100)
    saved = salvage(path)
    assert (saved.rows, saved.questions, saved.refused) == (50, 1, 0)
    after = held(path)[QUESTIONS[0]]
    assert all(alike(after[row.mask, row.example], replace(row, plain_tokens=12)) for row in made)
