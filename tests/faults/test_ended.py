"""Runs that are killed or asked to end: each says why, and the same command comes to the same."""

import os
import random
import signal
import time

import psutil
import pytest
from disturbance import LIMIT, compare, wait_until

from doubles import count_rows

pytestmark = pytest.mark.faults
IN_A_ROW = 5  # kills that a run has to bear
START, MEASURING, REPORT = "start", "measuring", "report"
STARTING, REPORTING = 1.0, 2.0  # seconds of which a part passes before the kill
SIGNALS = {
    "SIGTERM": ([signal.SIGTERM], 143),
    "SIGINT": ([signal.SIGINT], 130),
    "SIGINT twice": ([signal.SIGINT, signal.SIGINT], 130),
    "SIGHUP, the terminal closed": ([signal.SIGHUP], 129),
}
PAUSE = 0.01  # seconds between two presses of Ctrl-C
GRACE = 90.0  # seconds within which the processes of a run must be gone


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
        wait_until(lambda: count_rows(folder) >= rows, process)
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


@pytest.mark.parametrize("name", SIGNALS)
def test_a_run_is_asked_to_end(job, truth, tmp_path, times, name):
    """a signal to the driver"""
    sent, code = SIGNALS[name]
    draw, folder = random.Random(name), tmp_path / "run"
    for _ in range(max(1, times // 12)):
        target = draw.randrange(len(truth.rows) - 100)
        process = job.open(folder)
        if wait_until(lambda rows=target: count_rows(folder) > rows, process):
            time.sleep(draw.uniform(0, 0.2))
        for number in sent:
            os.killpg(process.pid, number)
            time.sleep(PAUSE)
        _, said = process.communicate(timeout=LIMIT)
        assert process.returncode == code, said
        assert "What was measured is kept" in said
        assert "Traceback" not in said
        assert len(said.strip().splitlines()) == 1, said
    job.finish(folder)
    compare(folder, truth)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_driver_with_workers_ends(job, truth, tmp_path, times, number):
    """a driver with workers of its own gets"""
    pytest.importorskip("ray")
    draw, folder = random.Random(int(number)), tmp_path / "run"
    spread = job.adding("--workers", "2")
    for _ in range(max(1, times // 25)):
        target = draw.randrange(len(truth.rows) // 2)
        process = spread.open(folder)
        assert wait_until(lambda rows=target: count_rows(folder) > rows, process)
        left = psutil.Process(process.pid).children(recursive=True)
        assert left
        os.kill(process.pid, number)  # the driver alone
        _, said = process.communicate(timeout=LIMIT)
        assert process.returncode == (-number if number == signal.SIGKILL else 128 + number), said
        _, alive = psutil.wait_procs(left, timeout=GRACE)
        assert not alive, [process.name() for process in alive]
    job.finish(folder)
    compare(folder, truth)
