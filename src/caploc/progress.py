"""How far a measurement is, for whoever wants to know."""

import time
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

EARLY = 0.02  # of the rows: until then the first rows say little of the time that is left


@runtime_checkable
class Progress(Protocol):
    """Whoever wants to know how far a measurement is."""

    def expect(self, rows: int) -> None:
        """So many rows more, at most, are to come in all stages, those already stored included."""

    def start(self, what: str, rows: int) -> None:
        """So many rows are to come, those already stored included."""

    def advance(self, rows: int, tokens: float) -> None:
        """So many more rows are done; `tokens` were run for them (0: they were stored)."""

    def tell(self, text: str) -> None:
        """Show a line that stays."""


class Silent:
    """Progress that nobody watches."""

    def expect(self, rows: int) -> None: ...
    def start(self, what: str, rows: int) -> None: ...
    def advance(self, rows: int, tokens: float) -> None: ...
    def tell(self, text: str) -> None: ...


@dataclass
class InTurn:
    """Progress of one of `count` studies that come one after another, the `place`-th."""

    shown: Progress
    name: str
    place: int
    count: int
    most: int | None = None  # rows of this study, once they are known

    def expect(self, rows: int) -> None:
        """Pass it on, with the studies to come, each taken to have as many rows as this one."""
        self.most = self.most or rows
        self.shown.expect(rows + self.most * (self.count - self.place))

    def start(self, what: str, rows: int) -> None:
        self.shown.start(f"study {self.place} of {self.count}, {self.name}: {what}", rows)

    def advance(self, rows: int, tokens: float) -> None:
        self.shown.advance(rows, tokens)

    def tell(self, text: str) -> None:
        self.shown.tell(f"study {self.place} of {self.count}, {text}")


@dataclass
class Tally:
    """Rows done of those to come, and how fast they are measured: stored ones are no speed."""

    rows: int | None = None  # to come, at most
    done: int = 0
    measured: int = 0
    began: float = field(default_factory=lambda: time.monotonic())

    def add(self, rows: int, tokens: float) -> None:
        """Count rows; those without tokens were stored before."""
        self.done += rows
        self.measured += rows if tokens else 0

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


def format_clock(seconds: float) -> str:
    """Write seconds as hours, minutes and seconds: 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
