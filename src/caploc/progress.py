"""How far a measurement is, for whoever wants to know."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

AT_MOST = "at most "  # the rows of a whole run are a bound
EARLY = 0.02  # of the rows: until then the first rows say little of the time that is left
LONGER = 1.05  # times as long as was told before: more than the clock rounds


@runtime_checkable
class Progress(Protocol):
    """Whoever wants to know how far a measurement is."""

    def start(self, what: str, rows: int) -> None:
        """So many rows are to come, those already stored included."""

    def advance(self, rows: int, tokens: float) -> None:
        """So many more rows are done; `tokens` were run for them (0: they were stored)."""


@runtime_checkable
class Overview(Progress, Protocol):
    """Progress that also knows the whole, and says what has been found so far."""

    def expect(self, rows: int) -> None:
        """So many rows more, at most, are to come in all stages, those already stored included."""

    def tell(self, text: str) -> None:
        """Show a line that stays."""

    def lead(self, heads: Sequence[str]) -> None:
        """Show which heads the scan puts first so far, until others do."""


def expect(progress: Progress, rows: int) -> None:
    """Say how many rows more are to come, at most, to whoever wants to know the whole."""
    if isinstance(progress, Overview):
        progress.expect(rows)


def tell(progress: Progress, text: str) -> None:
    """Say a line to whoever watches a run."""
    if isinstance(progress, Overview):
        progress.tell(text)


def lead(progress: Progress, heads: Sequence[str]) -> None:
    """Say which heads lead so far to whoever watches a run."""
    if isinstance(progress, Overview):
        progress.lead(heads)


def tell_once(progress: Progress, text: str) -> None:
    """Say a line that several studies of a run would say, the first time alone."""
    watcher = progress
    while isinstance(inner := getattr(watcher, "shown", None), Progress):
        watcher = inner
    # Kept with whoever watches, who need be neither hashable nor there for the next run.
    told = vars(watcher).setdefault("_told_once", set()) if hasattr(watcher, "__dict__") else set()
    if text not in told:
        told.add(text)
        tell(progress, text)


@dataclass
class InTurn:
    """Progress of one of `count` studies that come one after another, the `place`-th."""

    shown: Progress
    name: str
    place: int
    count: int
    most: int | None = None  # rows of this study, once they are known

    def start(self, what: str, rows: int) -> None:
        self.shown.start(f"study {self.place} of {self.count}, {self.name}: {what}", rows)

    def advance(self, rows: int, tokens: float) -> None:
        self.shown.advance(rows, tokens)

    def expect(self, rows: int) -> None:
        """Pass it on, with the studies to come, each taken to have as many rows as this one."""
        self.most = self.most or rows
        expect(self.shown, rows + self.most * (self.count - self.place))

    def tell(self, text: str) -> None:
        tell(self.shown, f"study {self.place} of {self.count}, {text}")

    def lead(self, heads: Sequence[str]) -> None:
        lead(self.shown, heads)


class Silent:
    """Progress that nobody watches."""

    def start(self, what: str, rows: int) -> None: ...
    def advance(self, rows: int, tokens: float) -> None: ...


@dataclass
class Tally:
    """Rows done of those to come, and how fast they are measured: stored ones are no speed."""

    rows: int | None = None  # to come, at most
    done: int = 0
    measured: int = 0
    tokens: float = 0.0
    began: float = field(default_factory=lambda: time.monotonic())
    least: tuple[float, float] | None = None  # seconds left that were told, and seconds a row then

    def add(self, rows: int, tokens: float) -> None:
        """Count rows; those without tokens were stored before."""
        self.done += rows
        if tokens:
            self.measured, self.tokens = self.measured + rows, self.tokens + tokens

    @property
    def seconds(self) -> float | None:
        """Seconds that the rows measured so far took; None without any."""
        return max(time.monotonic() - self.began, 1e-9) if self.measured else None

    @property
    def left(self) -> float | None:
        """Seconds that the rows to come will take at this speed; None while it is too early."""
        if self.seconds is None or self.rows is None or self.measured < EARLY * self.rows:
            return None
        return self.seconds / self.measured * max(self.rows - self.done, 0)

    def tell_left(self, bound: str = "") -> str:
        """Say the time left, with "at most" as its `bound`; where it was less before, why."""
        left = self.left
        if left is None or self.seconds is None:
            return ""
        pace = self.seconds / self.measured
        if self.least is None or left <= self.least[0]:
            self.least = left, pace
        if left < 1:
            return "nearly done"
        before, paced = self.least
        why = ": rows take longer now" if pace > LONGER * paced else ": more rows"
        return f"{bound}{format_clock(left)} left{why if left > LONGER * before else ''}"


def format_clock(seconds: float) -> str:
    """Write seconds as hours, minutes and seconds: 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
