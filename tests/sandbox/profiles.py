"""Sandboxes of each profile, and what they leave on the machine."""

import os
import subprocess
import sys
from contextlib import contextmanager

import psutil
import pytest

from caploc.sandbox import Limits, Program, Sandbox, pool
from caploc.sandbox.protocol import MIB

TIGHT = Limits(
    cpu_seconds=1,
    wall_seconds=10,
    memory_bytes=256 * MIB,
    output_bytes=1 << 16,
    processes=8,
    file_bytes=MIB,
)


class Opened:
    """A sandbox of one profile, strongest or not."""

    def __init__(self, name):
        self.profile = name
        self.sandbox = Sandbox(TIGHT, workers=1)

    def left_behind(self):
        """What programs left in the worker's folder, where it has one."""
        (worker,) = self.sandbox._workers.values()
        return os.listdir(worker._folder) if worker._folder else []

    def verdict(self, text, tests=""):
        return self.sandbox.judge([Program(text, tests)])[0]


def readable_python():
    """A Python that a user whom root becomes can read: not one below /root."""
    if os.geteuid() != 0:
        return sys.executable
    code = "import json, sys; assert sys.version_info >= (3, 11)"
    for python in filter(os.path.exists, (sys.executable, "/usr/bin/python3")):
        nobody = {"user": 65534, "group": 65534, "extra_groups": []}
        try:
            subprocess.run([python, "-c", code], check=True, capture_output=True, **nobody)
        except (subprocess.CalledProcessError, PermissionError):
            continue
        return python
    return sys.executable


@contextmanager
def forced(name):
    """Sandboxes opened inside take this profile, whatever else the machine could do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "choose_profile", lambda *isolation: name)
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
