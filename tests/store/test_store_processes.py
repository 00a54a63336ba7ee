"""A store and other processes: one that is killed, one that looks in, one that wants it too."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filled import by_key, fill, held, rows

from caploc.errors import FolderTaken
from caploc.store import folder_lock, reading

WRITER = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from filled import QUESTION, rows
from caploc.store import Store

path = Path(sys.argv[1])
store = Store(path)
question = store.question_id(QUESTION)
store.add(question, rows(40))
print("ready", flush=True)
if sys.stdin.readline() == "die\\n":
    os._exit(9)
store.add(question, rows(40, seed=1))
store.close()
"""


@pytest.fixture
def writer(tmp_path):
    """A process that has stored forty rows, and waits to be told to die or to go on."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "rows.sqlite")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        assert process.stdout.readline() == "ready\n"
        yield process


def count(path):
    with reading(path) as database:
        return database.execute("SELECT count(*) FROM rows").fetchone()[0]


def test_a_killed_process_loses_nothing_that_was_stored(writer, tmp_path):
    path = tmp_path / "rows.sqlite"
    writer.communicate("die\n", timeout=60)
    assert writer.returncode == 9
    assert count(path) == 40  # from its log
    assert held(path) == by_key(rows(40))  # the next process folds the log in
    assert sorted(each.name for each in tmp_path.iterdir()) == [".lock", "rows.sqlite"]
    assert count(path) == 40


def test_whoever_looks_into_a_running_store_takes_nothing_from_it(writer, tmp_path):
    path = tmp_path / "rows.sqlite"
    assert count(path) == 40
    with pytest.raises(FolderTaken, match="Another caploc process is running"):
        fill(path, [])
    writer.communicate("go on\n", timeout=60)
    assert writer.returncode == 0
    assert held(path) == by_key([*rows(40), *rows(40, seed=1)])


def test_reading_changes_no_file(tmp_path):
    path = tmp_path / "rows.sqlite"
    fill(path, rows(5))
    before = {each.name: each.stat().st_mtime_ns for each in tmp_path.iterdir()}
    assert count(path) == 5
    assert before == {each.name: each.stat().st_mtime_ns for each in tmp_path.iterdir()}


def test_a_folder_held_for_several_runs_stays_taken_between_them(tmp_path):
    """The first run to end in the holder's own thread must not let the folder go."""
    held = folder_lock(tmp_path)
    for _ in range(2):
        fill(tmp_path / "rows.sqlite", [])
        with ThreadPoolExecutor(1) as others, pytest.raises(FolderTaken):
            others.submit(folder_lock, tmp_path).result()
    held.release()
    folder_lock(tmp_path).release()  # and is free afterwards
