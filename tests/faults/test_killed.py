"""kill -9 of the driver at any moment: the same command continues, and comes to the same."""

import random
import signal
import time

import pytest
from disturbance import compare, count, wait_until

pytestmark = pytest.mark.faults
IN_A_ROW = 5  # kills that a run has to bear
START, MEASURING, REPORT = "start", "measuring", "report"
STARTING, REPORTING = 1.0, 2.0  # seconds of which a part passes before the kill


def moments(draw, rows):
    """A kill while it starts, three while it measures, one after the last row."""
    targets = sorted(draw.randrange(1, rows) for _ in range(IN_A_ROW - 2))
    return [(START, 0), *((MEASURING, target) for target in targets), (REPORT, rows)]


def kill(process, folder, moment, draw):
    """Wait for the moment, and kill; whether there was something to kill."""
    phase, rows = moment
    if phase == START:
        time.sleep(draw.uniform(0, STARTING))
    else:
        wait_until(lambda: count(folder) >= rows, process)
        time.sleep(draw.uniform(0, REPORTING if phase == REPORT else 0.05))
    process.kill()
    process.communicate()
    return process.returncode == -signal.SIGKILL


def test_the_driver_is_killed(job, truth, tmp_path, times):
    """kill -9 of the driver."""
    draw, killed, runs = random.Random(0), 0, 0
    while killed < times:
        folder, runs = tmp_path / f"run{runs}", runs + 1
        for moment in moments(draw, len(truth.rows)):
            killed += kill(job.start(folder), folder, moment, draw)
        job.finish(folder)
        compare(folder, truth)
