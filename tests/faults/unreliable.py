"""Workers that go wrong: each class does so in its own way, as often as its `times` allow.

They are sent to Ray by value, and count what they did in files of the folder `place`.
"""

import math
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from caploc.tasks.task import Scored
from caploc.workers.distributed import AskBatch, Replica

PACE = 0.01  # seconds a row, so that there is time to disturb it
PIECE = 16  # asks after which it says what it has
MOST = 4  # rows that fit into a cramped worker's memory


@dataclass
class Slow(Replica):
    """Sound, and in no hurry."""

    def answer(self, bundle, seconds):
        asks = bundle.asks()
        for first in range(0, len(asks), PIECE):
            piece = asks[first : first + PIECE]
            time.sleep(PACE * len(piece))
            yield from super().answer(AskBatch.of(piece), seconds)


@dataclass
class Failing(Slow):
    """Goes wrong now and then."""

    groups: int = 0
    place = "/nowhere"
    times = 1

    def answer(self, bundle, seconds):
        self.groups += 1
        if self.groups % 2 == 0 and self.may():
            yield from self.fail(bundle)
        else:
            yield from super().answer(bundle, seconds)

    def may(self):
        """Whether there is one more failure to come, which this one is then."""
        for number in range(self.times):
            try:
                (Path(self.place) / f"failed{number}").touch(exist_ok=False)
            except FileExistsError:
                continue
            return True
        return False

    def fail(self, bundle):
        raise NotImplementedError


@dataclass
class Nan(Failing):
    """Says that log-probabilities are no numbers."""

    def fail(self, bundle):
        for answers in super(Failing, self).answer(bundle, 0):
            yield [replace(answer, response=Scored(math.nan, False, 1)) for answer in answers]


@dataclass
class Raising(Failing):
    """Raises what a broken GPU would."""

    def fail(self, bundle):
        yield []
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


@dataclass
class Cramped(Failing):
    """Has no room now and then, in the middle of a pass, and tells how careful that makes it."""

    def open(self, loaded, memory):
        grid = super().open(loaded, memory)
        loaded.model.get_output_embeddings().register_forward_pre_hook(self.allocate)
        return grid

    def allocate(self, module, inputs):
        """What a GPU raises whose memory is taken by someone else."""
        if inputs[0].numel() // inputs[0].shape[-1] > MOST and self.may():
            raise torch.OutOfMemoryError("CUDA out of memory.")

    def answer(self, bundle, seconds):
        yield from super(Failing, self).answer(bundle, seconds)
        told = Path(self.place) / f"caution{os.getpid()}"
        told.write_text(str(self.engine.sources.sizer.caution))


def going_wrong(kind, place, times):
    """The class, with where to count and how often to fail."""
    return type(kind.__name__, (kind,), {"place": str(place), "times": times})
