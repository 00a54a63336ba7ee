"""Sandboxes behind each kind of wall, and what they leave on the machine."""

import os
from contextlib import contextmanager

import psutil
import pytest

from caploc.sandbox import Limits, Program, Sandbox, pool
from caploc.sandbox.limits import MIB
from caploc.sandbox.walls import Walls

TIGHT = Limits(
    cpu_seconds=1,
    wall_seconds=10,
    memory_bytes=256 * MIB,
    output_bytes=1 << 16,
    processes=8,
    file_bytes=MIB,
)
WALLS = {
    "full": Walls(namespaces=True, filter=True, landlock=False),
    "namespaces": Walls(namespaces=True, filter=False, landlock=False),
    "filter-landlock": Walls(namespaces=False, filter=True, landlock=True),
    "filter": Walls(namespaces=False, filter=True, landlock=False),
    "landlock": Walls(namespaces=False, filter=False, landlock=True),
    "bare": Walls(namespaces=False, filter=False, landlock=False),
}


class Behind:
    """A sandbox behind walls of one kind, strongest or not."""

    def __init__(self, name):
        self.name = name
        self.walls = WALLS[name]
        self.sandbox = Sandbox(TIGHT, workers=1)

    def left_behind(self):
        """What programs left in the worker's folder, where it has one."""
        (worker,) = self.sandbox._workers
        return os.listdir(worker._folder) if worker._folder else []

    def verdict(self, text, tests=""):
        return self.sandbox.judge([Program(text, tests)])[0]


@contextmanager
def forced(name):
    """Sandboxes opened inside build these walls, whatever else the machine could do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "strongest", lambda: WALLS[name])
        yield


def processes_of(driver=None):
    """Every process that belongs to the workers of a driver, forked ones too."""
    wanted = f'"driver": {driver or os.getpid()},'
    found = []
    for process in psutil.process_iter():
        try:
            if any(wanted in word for word in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found
