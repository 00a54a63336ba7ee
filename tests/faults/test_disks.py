"""Disks that are full, read-only or lose the file: one sentence, and the run goes on later."""

import os
import subprocess

import pytest
from disturbance import LIMIT, compare, wait_until

from doubles import count_rows

pytestmark = pytest.mark.faults
SIZE = 16 * 2**20  # bytes of the disk


def mount(*arguments):
    return subprocess.run(["mount", *arguments], capture_output=True, text=True)


@pytest.fixture
def disk(tmp_path):
    """A small disk in memory, which may be filled."""
    place = tmp_path / "disk"
    place.mkdir()
    made = mount("-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(place))
    if made.returncode:
        pytest.skip(f"no disk can be mounted here: {made.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk, spare=0):
    """Take all that is free but `spare` bytes."""
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            left = max(0, free - spare)
            while left > 0:
                left -= file.write(bytes(min(left, 2**16)))
        except OSError:
            pass
    return ballast


def failed(process):
    """The one sentence of a run that the machine let down."""
    _, said = process.communicate(timeout=LIMIT)
    assert process.returncode == 1, (process.returncode, said)
    (sentence,) = said.strip().splitlines()
    assert sentence.startswith("caploc: ")
    return sentence


@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.9])
def test_the_disk_is_full_while_rows_are_measured(job, truth, disk, share):
    """disk full while rows are measured"""
    folder = disk / "run"
    process = job.start(folder)
    assert wait_until(lambda: count_rows(folder) > share * len(truth.rows), process)
    ballast = fill(disk)
    sentence = failed(process)
    assert "kept" in sentence and "same command" in sentence
    before = count_rows(folder)
    ballast.unlink()
    assert before > share * len(truth.rows)
    job.finish(folder)
    compare(folder, truth)


@pytest.mark.parametrize("spare", [0, 8_192, 32_768, 90_112])
def test_the_disk_is_full_when_the_findings_are_written(job, truth, disk, spare):
    """disk full while result and report are written, with a few free bytes"""
    folder = disk / "run"
    job.finish(folder)
    for path in [*folder.glob("*.json"), folder / "report.html", *folder.glob("figures/*")]:
        if path.name != "run.json":
            path.unlink()
    ballast = fill(disk, spare)
    sentence = failed(job.start(folder))
    assert "kept" in sentence
    ballast.unlink()
    job.finish(folder)
    compare(folder, truth)


@pytest.mark.parametrize("share", [0.1, 0.7])
def test_the_folder_becomes_read_only(job, truth, disk, share):
    """the folder becomes read-only while rows are measured"""
    folder = disk / "run"
    process = job.start(folder)
    assert wait_until(lambda: count_rows(folder) > share * len(truth.rows), process)
    # A disk with open files is not made read-only; a read-only view over the folder is what every
    # file meets that is opened from then on.
    assert mount("--bind", str(folder), str(folder)).returncode == 0
    try:
        assert mount("-o", "remount,ro,bind", str(folder)).returncode == 0
        sentence = failed(process)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
    assert "kept" in sentence
    job.finish(folder)
    compare(folder, truth)
