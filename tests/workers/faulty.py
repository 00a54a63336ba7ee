"""Replicas that fail once, the first of all workers that comes to it, and work from then on."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from caploc.workers.distributed import Replica

MARK = "CAPLOC_TEST_MARK"


def is_first():
    """Whether none has failed before; the file at `MARK` says so from now on."""
    try:
        Path(os.environ[MARK]).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@dataclass
class Failing(Replica):
    """Fails in its second chunk, if none has before."""

    chunks: int = 0

    def answer(self, asks):
        self.chunks += 1
        if self.chunks == 2 and is_first():
            self.fail()
        return super().answer(asks)


class Killed(Failing):
    def fail(self):
        os.kill(os.getpid(), signal.SIGKILL)


class Raising(Failing):
    def fail(self):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


class Hopeless(Replica):
    """Dies of whatever it is asked."""

    def answer(self, asks):
        os.kill(os.getpid(), signal.SIGKILL)
