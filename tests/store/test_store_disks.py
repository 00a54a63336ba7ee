"""Full and read-only disks: real ones, where mounting is allowed."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from filled import QUESTIONS, alike, fill, held, rows

from caploc.errors import StoreFailed
from caploc.folder import write_json
from caploc.rowfiles import write_rows
from caploc.store import Store, folder_lock, journal
from caploc.store.repair import check_store


@pytest.fixture
def small_disk(tmp_path):
    """A disk of one megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def remount(place, option):
    subprocess.run(["mount", "-o", f"remount,{option}", str(place)], check=True)


def test_a_full_disk_is_one_sentence_and_all_that_was_stored_is_there_when_space_is(small_disk):
    path, batches = small_disk / "rows.sqlite", [rows(60, seed) for seed in range(40)]
    stored = {}
    with Store(path) as store:
        question = store.question_id(QUESTIONS[0])
        with pytest.raises(StoreFailed, match="full.*Free disk space.*same command again"):
            for batch in batches:
                store.add(question, batch)
                stored |= {(row.mask, row.example): row for row in batch}
    assert 60 <= len(stored) < 2400
    remount(small_disk, "size=64m")
    found = held(path)[QUESTIONS[0]]
    assert all(alike(found[key], row) for key, row in stored.items())
    with Store(path) as store:
        question = store.question_id(QUESTIONS[0])
        for batch in batches:
            store.add(question, batch)
    assert len(held(path)[QUESTIONS[0]]) == len(
        {(row.mask, row.example) for batch in batches for row in batch}
    )
    assert check_store(path).sound


def test_a_disk_that_is_full_before_the_run_is_one_sentence(small_disk):
    with pytest.raises(OSError, match="space"), (small_disk / "ballast").open("wb") as file:
        file.write(b"x" * 2**21)
    with pytest.raises(StoreFailed, match="ree disk space"):
        fill(small_disk / "run" / "rows.sqlite", 20)


def test_a_file_is_written_whole_or_not_at_all(small_disk):
    path = small_disk / "result.json"
    write_json(path, {"old": True})
    with pytest.raises(StoreFailed, match="the rows are kept. Free disk space"):
        write_json(path, {"text": "x" * 2**21})
    assert [each.name for each in small_disk.iterdir()] == ["result.json"]
    assert "old" in path.read_text()


def test_a_read_only_folder_is_one_sentence_and_can_be_looked_at(small_disk, tmp_path):
    path = small_disk / "rows.sqlite"
    truth = fill(path, 30)
    remount(small_disk, "ro")
    with pytest.raises(StoreFailed, match="writable and run the same command again"):
        Store(path)
    assert check_store(path).rows == 60
    assert write_rows(small_disk, tmp_path / "rows.csv")[0] == 60
    with pytest.raises(StoreFailed, match="could not be written"):
        write_rows(small_disk, small_disk / "rows.csv")
    remount(small_disk, "rw")
    assert {q: len(rows) for q, rows in held(path).items()} == {q: 30 for q in truth}


def test_rows_of_a_killed_run_are_read_from_a_read_only_disk(small_disk):
    path = small_disk / "rows.sqlite"
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[2]); from pathlib import Path\n"
        "from filled import QUESTIONS, rows; from caploc.store import Store\n"
        "store = Store(Path(sys.argv[1])); store.add(store.question_id(QUESTIONS[0]), rows(40))\n"
        "os._exit(9)"
    )

    arguments = [sys.executable, "-c", code, str(path), str(Path(__file__).parent)]
    assert subprocess.run(arguments, check=False).returncode == 9
    (small_disk / "rows.sqlite-shm").unlink(missing_ok=True)
    remount(small_disk, "ro")
    assert check_store(path).rows == 40
    remount(small_disk, "rw")


def test_a_folder_held_between_studies_is_open_to_them_and_to_no_other_process(tmp_path):
    lock = folder_lock(tmp_path)
    fill(tmp_path / "rows.sqlite", 5)
    code = (
        "import sys; from pathlib import Path; from caploc.store import Store\n"
        "from caploc.errors import FolderTaken\n"
        "try: Store(Path(sys.argv[1]))\n"
        "except FolderTaken as error: print(error)"
    )

    arguments = [sys.executable, "-c", code, str(tmp_path / "rows.sqlite")]
    said = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
    assert "Another caploc process is running" in said
    lock.release()
    said = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
    assert said == ""


def test_a_disk_of_another_machine_gets_no_shared_memory(tmp_path, monkeypatch):
    assert journal(tmp_path / "rows.sqlite") == "WAL"

    mounted = [
        SimpleNamespace(mountpoint="/", fstype="ext4"),
        SimpleNamespace(mountpoint=str(tmp_path), fstype="nfs4"),
        SimpleNamespace(mountpoint=f"{tmp_path}-beside", fstype="ext4"),
    ]
    monkeypatch.setattr("psutil.disk_partitions", lambda all: mounted)
    assert journal(tmp_path / "run" / "rows.sqlite") == "DELETE"
    assert journal(tmp_path.parent / "rows.sqlite") == "WAL"
    truth = fill(tmp_path / "rows.sqlite", 20)
    assert not list(tmp_path.glob("*-wal"))
    assert {q: len(rows) for q, rows in held(tmp_path / "rows.sqlite").items()} == {
        q: 20 for q in truth
    }
