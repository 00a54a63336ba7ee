"""Rows of a pretrained model are stored as they come: a kill loses a second or two, not minutes."""

import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pytest

pytestmark = pytest.mark.real

ONE_SHOT = ("--task", "words/upper", "--method", "one-shot", "--examples", "100")
PATIENCE = 600  # seconds until the first row, on a machine that is busy with other work
RUN = 20  # seconds of measuring before the kill


def stored(folder):
    """Every row that is safe on the disk, with the seconds it took: a row asked twice differs."""
    try:
        with closing(sqlite3.connect(f"file:{folder / 'rows.sqlite'}?mode=ro", uri=True)) as rows:
            found = rows.execute("SELECT question, mask, example, seconds FROM rows")
            return {row[:3]: row[3] for row in found}
    except sqlite3.OperationalError:  # not there yet
        return {}


def killed_after(folder, seconds, least=0):
    """Run one-shot so long after it has stored more than `least` rows, kill it; what is stored."""
    command = (sys.executable, "-m", "caploc", "locate", "smollm2", *ONE_SHOT, "--out", str(folder))
    with open(folder.parent / "log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + PATIENCE
        while len(stored(folder)) <= least:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.2)
        time.sleep(seconds)
    finally:
        process.kill()
        process.wait()
    return stored(folder)


def test_a_kill_after_twenty_seconds_loses_little_and_the_same_command_repeats_no_row(tmp_path):
    folder = tmp_path / "run"
    first = killed_after(folder, RUN)
    assert len(first) >= 100
    log = (tmp_path / "log").read_text()
    assert log.startswith("caploc: getting ready")  # a log is never empty
    second = killed_after(folder, 1, least=len(first))
    assert first.items() <= second.items()  # none was measured again
    assert len(second) > len(first)
