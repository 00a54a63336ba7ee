"""How far a measurement is, for whoever wants to know."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


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


def expect(progress: Progress, rows: int) -> None:
    """Say how many rows more are to come, at most, to whoever wants to know the whole."""
    if isinstance(progress, Overview):
        progress.expect(rows)


def tell(progress: Progress, text: str) -> None:
    """Say a line to whoever watches a run."""
    if isinstance(progress, Overview):
        progress.tell(text)


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


class Silent:
    """Progress that nobody watches."""

    def start(self, what: str, rows: int) -> None: ...
    def advance(self, rows: int, tokens: float) -> None: ...
