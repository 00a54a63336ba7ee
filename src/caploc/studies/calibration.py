"""How fast a model answers a study's rows, and in how much memory: a few of them, measured."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil
import torch

from caploc import designs
from caploc.folder import ROWS
from caploc.heads import Mask
from caploc.measurement import HeadModel, Meter
from caploc.progress import Progress
from caploc.search import Plan
from caploc.store import Store
from caploc.studies.reckoning import Pretended
from caploc.workbench import Workbench

FIRST = 32  # rows of the first chunk; each later one has twice as many
LOOKS = 0.02  # seconds between two looks at the memory
INTACT_SHARE = 0.3  # of the time, for rows with no head knocked out

Wanted = list[tuple[Mask, int]]


@dataclass(frozen=True)
class Pace:
    """Seconds and tokens of a row, intact and with heads knocked out."""

    intact: float
    knocked_out: float
    intact_tokens: float
    knocked_out_tokens: float
    rows: int  # that this was measured on

    def seconds(self, rows: Wanted) -> float:
        """What so many rows take."""
        cut = sum(bool(mask.any()) for mask, _ in rows)
        return self.knocked_out * cut + self.intact * (len(rows) - cut)

    def tokens(self, rows: Wanted) -> float:
        """What so many rows run, in passes through all layers."""
        cut = sum(bool(mask.any()) for mask, _ in rows)
        return self.knocked_out_tokens * cut + self.intact_tokens * (len(rows) - cut)


def measure_pace(engine: Any, wanted: Pretended, seconds: float, progress: Progress) -> Pace:
    """Measure some of the open rows of a task for about so many seconds; nothing of it is kept."""
    with TemporaryDirectory() as place, Store(Path(place) / ROWS) as store:
        bench = Workbench[HeadModel](engine, store)
        meter = bench.meter(wanted.task)
        examples = list(dict.fromkeys(example for _, example in wanted.fresh))
        order = designs.generator(0).permutation(examples).tolist()
        empty = [(wanted.fresh[0][0] & False, example) for example in order]
        first = timed(meter, empty, INTACT_SHARE * seconds, progress)
        known = {example for _, example in empty[: first.rows]}
        cut = [(mask, e) for mask, e in shuffle_by_mask(wanted.fresh) if mask.any() and e in known]
        second = timed(meter, cut, (1 - INTACT_SHARE) * seconds, progress)
    measured = first.rows + second.rows
    if not second.rows:
        second = first
    return Pace(
        first.seconds / max(first.timed, 1),
        second.seconds / max(second.timed, 1),
        first.tokens / max(first.timed, 1),
        second.tokens / max(second.timed, 1),
        measured,
    )


@dataclass
class Timed:
    """Rows that were asked, and of those that were timed, their number, seconds and tokens."""

    rows: int = 0
    timed: int = 0
    seconds: float = 0.0
    tokens: float = 0.0


def timed(
    meter: Meter, wanted: Sequence[tuple[Mask, int]], seconds: float, progress: Progress
) -> Timed:
    """Ask rows in chunks, each twice as long, until the time is up.

    The first chunk warms up and is not timed, unless it is the only one.
    """
    done, chunk, spent = Timed(), FIRST, 0.0
    while done.rows < len(wanted) and spent < seconds:
        rows = wanted[done.rows : done.rows + chunk]
        cost, before = meter.cost.forward_tokens, time.perf_counter()
        ask(meter, rows, progress)
        took = time.perf_counter() - before
        if done.rows <= FIRST:
            done.timed, done.seconds, done.tokens = 0, 0.0, 0.0
        done.rows, done.timed = done.rows + len(rows), done.timed + len(rows)
        done.seconds, spent = done.seconds + took, spent + took
        done.tokens += meter.cost.forward_tokens - cost
        chunk *= 2
    return done


def ask(meter: Meter, rows: Sequence[tuple[Mask, int]], progress: Progress) -> None:
    """Have rows measured as they are in a run."""
    masks = np.stack([mask for mask, _ in rows])
    examples = np.array([example for _, example in rows], dtype=int)
    meter.measure(Plan(masks, np.arange(len(rows)), examples), progress, "calibration")


def shuffle_by_mask(rows: Wanted) -> Iterator[tuple[Mask, int]]:
    """Rows mask by mask, the masks in a random order."""
    groups: dict[bytes, Wanted] = {}
    for mask, example in rows:
        groups.setdefault(mask.tobytes(), []).append((mask, example))
    keys = list(groups)
    for place in designs.generator(1).permutation(len(keys)):
        yield from groups[keys[place]]


class Peak:
    """The most memory in use while it watches, in bytes; of the device if that has its own."""

    def __init__(self, device: str) -> None:
        """Watch a device."""
        self.device, self.bytes, self.ended = device, 0, threading.Event()

    def look(self) -> None:
        """Look again and again."""
        process = psutil.Process()
        while not self.ended.wait(LOOKS):
            self.bytes = max(self.bytes, process.memory_info().rss)


@contextmanager
def watching(device: str) -> Iterator[Peak]:
    """Watch the memory while the block runs."""
    peak = Peak(device)
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
        yield peak
        peak.bytes = int(torch.cuda.max_memory_allocated(device))
        return
    watcher = threading.Thread(target=peak.look, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        peak.ended.set()
        watcher.join()
