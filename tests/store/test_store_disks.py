"""Full and read-only disks: real ones, where mounting is allowed."""

import subprocess

import pytest
from filled import QUESTION, by_key, fill, held, rows

from caploc.errors import StoreFailed
from caploc.folder import write_json
from caploc.rowfiles import write_rows
from caploc.store import Store


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
    stored = []
    with Store(path) as store:
        question = store.question_id(QUESTION)
        with pytest.raises(StoreFailed, match=r"full.*Free disk space.*same command again"):
            for batch in batches:
                store.add(question, batch)
                stored += batch
    assert 60 <= len(stored) < 2400
    remount(small_disk, "size=64m")
    assert held(path) == by_key(stored)
    for batch in batches:
        fill(path, batch)
    assert held(path) == by_key(row for batch in batches for row in batch)


def test_a_disk_that_is_full_before_the_run_is_one_sentence(small_disk):
    with pytest.raises(OSError, match="space"), (small_disk / "ballast").open("wb") as file:
        file.write(b"x" * 2**21)
    with pytest.raises(StoreFailed, match="ree disk space"):
        fill(small_disk / "run" / "rows.sqlite", rows(20))


def test_a_file_is_written_whole_or_not_at_all(small_disk):
    path = small_disk / "result.json"
    write_json(path, {"old": True})
    with pytest.raises(StoreFailed, match="the rows are kept. Free disk space"):
        write_json(path, {"text": "x" * 2**21})
    assert [each.name for each in small_disk.iterdir()] == ["result.json"]
    assert "old" in path.read_text()


def test_a_read_only_folder_is_one_sentence_and_can_be_looked_at(small_disk, tmp_path):
    path = small_disk / "rows.sqlite"
    fill(path, rows(30))
    remount(small_disk, "ro")
    with pytest.raises(StoreFailed, match="writable and run the same command again"):
        Store(path)
    assert write_rows(small_disk, tmp_path / "rows.csv") == 30
    with pytest.raises(StoreFailed, match="could not be written"):
        write_rows(small_disk, small_disk / "rows.csv")
    remount(small_disk, "rw")
