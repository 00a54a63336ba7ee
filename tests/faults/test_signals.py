"""Signals that ask a run to end: it does, its exit code says why, and it can be continued."""

import os
import random
import signal
import time

import pytest
from disturbance import LIMIT, compare, count, wait_until

pytestmark = pytest.mark.faults
SIGNALS = {
    "SIGTERM": ([signal.SIGTERM], 143),
    "SIGINT": ([signal.SIGINT], 130),
    "SIGINT twice": ([signal.SIGINT, signal.SIGINT], 130),
    "SIGHUP, the terminal closed": ([signal.SIGHUP], 129),
}
PAUSE = 0.01  # seconds between two presses of Ctrl-C


@pytest.mark.parametrize("name", SIGNALS)
def test_a_run_is_asked_to_end(job, truth, tmp_path, times, name):
    """a signal to the driver"""
    sent, code = SIGNALS[name]
    draw, folder = random.Random(name), tmp_path / "run"
    for _ in range(max(1, times // 12)):
        target = draw.randrange(len(truth.rows) - 100)
        process = job.open(folder)
        if wait_until(lambda rows=target: count(folder) > rows, process):
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
