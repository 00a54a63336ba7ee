"""Replicas that fail once, the first of all workers that comes to it, and answer from then on."""

import math
import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path

from caploc.errors import ModelRefused
from caploc.tasks.task import Scored
from caploc.workers.distributed import AskBatch, Replica
from caploc.workers.scoring import ScoringReplica

FOREVER = 10_000
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
    """Fails in its second group, if none has before; the file at `MARK` says so."""

    groups: int = 0

    def answer(self, bundle, seconds):
        self.groups += 1
        if self.groups == 2 and is_first():
            yield from self.fail(bundle)
        else:
            yield from super().answer(bundle, seconds)

    def fail(self, bundle):
        raise NotImplementedError


class Killed(Failing):
    """Dies in the midst of a group: a third of it has been answered."""

    def fail(self, bundle):
        third = bundle.asks()[: len(bundle.asked) // 3]
        yield from Replica.answer(self, AskBatch.of(third), 0)
        time.sleep(1)  # the answers are on their way
        os.kill(os.getpid(), signal.SIGKILL)


class Hanging(Failing):
    def fail(self, bundle):
        time.sleep(FOREVER)
        yield []


class Raising(Failing):
    def fail(self, bundle):
        yield []
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


class Nan(Failing):
    def fail(self, bundle):
        for answers in Replica.answer(self, bundle, 0):
            yield [replace(a, response=Scored(math.nan, False, 1)) for a in answers]


@dataclass
class KilledScoring(ScoringReplica):
    """Dies in its second piece, if none has before."""

    pieces: int = 0

    def answer(self, spans, seconds):
        self.pieces += 1
        if self.pieces == 2 and is_first():
            os.kill(os.getpid(), signal.SIGKILL)
        yield from super().answer(spans, seconds)


@dataclass
class Refusing(ScoringReplica):
    """Finds no neurons."""

    def open(self, loaded, memory):
        raise ModelRefused(f"{loaded.name}: no feed-forward outputs were found.")
