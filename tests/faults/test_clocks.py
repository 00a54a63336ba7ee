"""A wall clock that jumps while a run measures."""

import random
import shutil
import threading
import time

import pytest
from disturbance import LIMIT, count, wait_until

pytestmark = pytest.mark.faults
LIBRARY = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"
JUMPS = ("+400d", "-20d", "-3000d", "+0", "-1s", "+2h")  # beside the true time


def test_the_clock_jumps(job, truth, tmp_path, tally):
    """the wall clock jumps back and forth"""
    if not shutil.which("faketime"):
        pytest.skip("faketime is not installed: apt-get install faketime")
    told, folder, draw = tmp_path / "clock", tmp_path / "run", random.Random(3)
    told.write_text("+0")
    process = job.open(
        folder,
        LD_PRELOAD=LIBRARY,
        FAKETIME_TIMESTAMP_FILE=str(told),
        FAKETIME_NO_CACHE="1",
        # a monotonic clock never jumps, whatever becomes of the other
        FAKETIME_DONT_FAKE_MONOTONIC="1",
    )
    injected = []

    def jump():
        while process.poll() is None:
            told.write_text(draw.choice(JUMPS))
            injected.append(time.monotonic())
            time.sleep(draw.uniform(0.05, 0.5))

    assert wait_until(lambda: count(folder) > 0, process)
    jumper = threading.Thread(target=jump, daemon=True)
    jumper.start()
    _, said = process.communicate(timeout=LIMIT)
    jumper.join()
    assert process.returncode == 0, said
    assert len(injected) > 2
    tally.compare(folder, truth, len(injected))
