"""A driver with workers is killed: nothing of it stays behind, and the same command continues."""

import os
import random
import signal

import psutil
import pytest
from disturbance import LIMIT, compare, count, wait_until

pytest.importorskip("ray")
pytestmark = pytest.mark.faults
GRACE = 90.0  # seconds within which the processes of a run must be gone


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_driver_with_workers_ends(job, truth, tmp_path, times, number):
    """a driver with workers of its own gets"""
    draw, folder = random.Random(int(number)), tmp_path / "run"
    spread = job.adding("--workers", "2")
    for _ in range(max(1, times // 25)):
        target = draw.randrange(len(truth.rows) // 2)
        process = spread.open(folder)
        assert wait_until(lambda rows=target: count(folder) > rows, process)
        left = psutil.Process(process.pid).children(recursive=True)
        assert left
        os.kill(process.pid, number)  # the driver alone
        _, said = process.communicate(timeout=LIMIT)
        assert process.returncode == (-number if number == signal.SIGKILL else 128 + number), said
        _, alive = psutil.wait_procs(left, timeout=GRACE)
        assert not alive, [process.name() for process in alive]
    job.finish(folder)
    compare(folder, truth)
