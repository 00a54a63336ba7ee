"""How far a run is, and what its scan has found so far, while it goes on."""

import json
import math
import os
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from caploc import designs
from caploc.components import Grid
from caploc.contents import LiveRun
from caploc.folder import PROGRESS
from caploc.measurement import Meter
from caploc.progress import AT_MOST, Progress, Tally, expect, lead, tell
from caploc.result import number
from caploc.search.scan import log_odds, share_lost
from caploc.store import pack

SECONDS = 2.0  # between two looks
LEADING = 5  # heads that are named
MOST_KNOWN = 100_000  # rows of a probe; where there are more, heads are not looked at any more


class ScanSoFar:
    """What the rows of a scan say of each head before all of them are there."""

    def __init__(self, meter: Meter, grid: Grid[Any], *, linear: bool) -> None:
        """Follow the probe of the scan's signal; it is `linear` if it is the outcome itself."""
        self.meter, self.grid, self.linear = meter, grid, linear
        masks = grid.cut_mask(designs.singles(grid.size))
        self.columns = {pack(mask): column for column, mask in enumerate(masks)}
        self.nothing = pack(grid.cut_mask(np.zeros(grid.size, dtype=bool)))

    def losses(self) -> dict[int, tuple[float, float]]:
        """Return of each column that was asked how much odds change, and the share that is lost.

        Means over its examples, as the scan computes them.
        """
        known = self.meter.known
        if len(known) > MOST_KNOWN:
            return {}
        before = {key: row.outcome for (mask, key), row in known.items() if mask == self.nothing}
        found: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for (mask, key), row in known.items():
            pair = before.get(key, math.nan), row.outcome
            if mask in self.columns and all(map(math.isfinite, pair)):
                found[self.columns[mask]].append(pair)
        return {column: self.compare(np.array(pairs)) for column, pairs in found.items()}

    def compare(self, pairs: np.ndarray) -> tuple[float, float]:
        """Average the change of the log-odds, and the share of the probability that is gone."""
        was, now = pairs.T
        if self.linear:
            return float((was - now).mean()), float((was - now).mean())
        changes, lost = np.abs(log_odds(was) - log_odds(now)), share_lost(now - was)
        return float(changes.mean()), float(lost.mean())


@dataclass
class LiveProgress:
    """Progress that is passed on, and written into the run's folder every few seconds."""

    shown: Progress
    folder: Path
    grid: Grid[Any]
    scan: ScanSoFar | None = None
    stage: str = ""
    tally: Tally = field(default_factory=Tally)
    looked: float = 0.0

    def expect(self, rows: int) -> None:
        self.tally.rows = self.tally.done + rows
        expect(self.shown, rows)

    def tell(self, text: str) -> None:
        tell(self.shown, text)

    def lead(self, heads: list[str]) -> None:
        lead(self.shown, heads)

    def start(self, what: str, rows: int) -> None:
        self.stage = what
        if not self.tally.done:
            self.tally.began = time.monotonic()
        self.shown.start(what, rows)
        self.look()

    def advance(self, rows: int, tokens: float) -> None:
        self.tally.add(rows, tokens)
        self.shown.advance(rows, tokens)
        if time.monotonic() - self.looked >= SECONDS:
            self.look()

    def look(self) -> None:
        """Say which heads lead, and write how far the run is; a disk that is full stops nothing."""
        self.looked = time.monotonic()
        losses = self.scan.losses() if self.scan else {}
        order = sorted(losses, key=lambda column: -losses[column][0])
        leading = [str(self.grid.components[column]) for column in order[:LEADING]]
        self.lead(leading)
        tally, path = self.tally, self.folder / PROGRESS
        shares = [number(losses[c][1]) if c in losses else None for c in range(self.grid.size)]
        live = LiveRun(
            stage=self.stage,
            done=tally.done,
            rows=tally.rows,
            rate=tally.measured / tally.seconds if tally.seconds else None,
            left=tally.tell_left(AT_MOST),
            leading=leading,
            layers=[shares[columns] for columns in self.grid.layer_slices],
        )
        part = path.with_suffix(f".{os.getpid()}")
        with suppress(OSError):
            part.write_text(json.dumps(live.as_dict()), encoding="utf-8")
            part.replace(path)

    def end(self) -> None:
        """Take the file away: a run that has ended says more in its own files."""
        (self.folder / PROGRESS).unlink(missing_ok=True)
