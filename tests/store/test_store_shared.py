"""A store that its own process reads beside writing it, while other processes look in."""

import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filled import QUESTIONS, fill

from caploc.errors import FolderTaken, StoreFailed
from caploc.store import Store, folder_lock, hold_folder, reading, stored_rows
from caploc.store.pages import connect, is_open

HERE = Path(__file__).parent
WRITER = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
from pathlib import Path
from filled import QUESTIONS, rows
from caploc.store import Store
from caploc.store import stored_rows

path = Path(sys.argv[1])
with Store(path) as store:
    question = store.question_id(QUESTIONS[0])
    store.add(question, rows(20))
    stored_rows(path, QUESTIONS[0])  # as a plan does
    print("ready", flush=True)
    sys.stdin.readline()
    store.add(question, rows(20, seed=1))
    print(len(store.load(question)), flush=True)
"""


def count_rows(path: Path) -> int:
    """As any program would that reads SQLite's files."""
    database = sqlite3.connect(path)
    try:
        return database.execute("SELECT count(*) FROM rows").fetchone()[0]
    finally:
        database.close()


def test_whoever_looks_into_a_running_store_takes_nothing_from_it(tmp_path):
    """A process loses its locks on a file when it closes any handle of it.

    SQLite in another process then takes the log for left behind: it cuts its index, which the
    writer has mapped, and deletes the log with what is in it.
    """
    path = tmp_path / "rows.sqlite"
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with writer:
        assert writer.stdout.readline() == "ready\n"
        assert count_rows(path) == 20
        assert path.with_name("rows.sqlite-wal").exists()
        said, _ = writer.communicate("\n", timeout=60)
    assert writer.returncode == 0
    assert said == "40\n"
    assert count_rows(path) == 40


def test_a_file_is_looked_at_anew_when_none_has_it_open(tmp_path):
    path = tmp_path / "rows.sqlite"
    truth = fill(path, 5)
    assert not is_open(path)
    with reading(path), Store(path), reading(path):
        assert stored_rows(path, QUESTIONS[0]).keys() == truth[QUESTIONS[0]].keys()
        assert is_open(path)
    assert not is_open(path)
    path.with_name("rows.sqlite-journal").mkdir()
    with pytest.raises(StoreFailed, match="a folder, not a file"):
        connect(path)
    assert not is_open(path)


def test_a_file_with_a_second_name_is_not_written_though_it_is_open(tmp_path):
    path = tmp_path / "rows.sqlite"
    fill(path, 5)
    (tmp_path / "second").hardlink_to(path)
    with reading(path), pytest.raises(StoreFailed, match="second name"):
        Store(path)


def test_a_folder_held_for_several_runs_stays_taken_between_them(tmp_path):
    """The first run to end in the holder's own thread must not let the folder go."""
    with hold_folder(tmp_path):
        for _ in range(2):
            with Store(tmp_path / "rows.sqlite"):
                pass
            with ThreadPoolExecutor(1) as others, pytest.raises(FolderTaken):
                others.submit(folder_lock, tmp_path).result()
    folder_lock(tmp_path).release()  # and is free afterwards
