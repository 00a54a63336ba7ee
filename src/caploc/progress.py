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

    def expect(self, rows: int, work: float) -> None:
        """So many rows are to be measured, about, in all stages; `work` adds up their weights."""

    def weigh(self, weight: float) -> None:
        """The next rows take so long, beside others."""

    def tell(self, text: str) -> None:
        """Show a line that stays."""


def expect(progress: Progress, rows: int, work: float) -> None:
    """Say how many rows are to come, about, and their work, to whoever wants to know the whole."""
    if isinstance(progress, Overview):
        progress.expect(rows, work)


def tell_weight(progress: Progress, weight: float) -> None:
    """Say how long the next rows take, beside others."""
    if isinstance(progress, Overview):
        progress.weigh(weight)


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
class SideBySide:
    """Progress of one of several studies at once; `left` has the rows that each still waits for."""

    shown: Progress
    name: str
    left: dict[str, int]

    def start(self, what: str, rows: int) -> None:
        self.left[self.name] = rows
        every = sum(self.left.values())
        expect(self.shown, every, every)
        self.shown.start(f"{self.name}: {what}", rows)

    def advance(self, rows: int, tokens: float) -> None:
        self.left[self.name] -= rows
        self.shown.advance(rows, tokens)

    def expect(self, rows: int, work: float) -> None: ...
    def weigh(self, weight: float) -> None: ...

    def tell(self, text: str) -> None:
        tell(self.shown, f"{self.name}: {text}")


@dataclass
class InTurn:
    """Progress of one of `count` studies that come one after another, the `place`-th.

    `sizes` has the rows and the work of each so far; those to come are taken to be like them.
    """

    shown: Progress
    name: str
    place: int
    count: int
    sizes: dict[str, tuple[int, float]]

    def start(self, what: str, rows: int) -> None:
        self.shown.start(f"study {self.place} of {self.count}, {self.name}: {what}", rows)

    def advance(self, rows: int, tokens: float) -> None:
        self.shown.advance(rows, tokens)

    def expect(self, rows: int, work: float) -> None:
        self.sizes.setdefault(self.name, (rows, work))
        later = (self.count - len(self.sizes)) / len(self.sizes)
        every, all_work = map(sum, zip(*self.sizes.values(), strict=True))
        expect(self.shown, round(rows + every * later), work + all_work * later)

    def weigh(self, weight: float) -> None:
        tell_weight(self.shown, weight)

    def tell(self, text: str) -> None:
        tell(self.shown, f"study {self.place} of {self.count}, {text}")


class Silent:
    """Progress that nobody watches."""

    def start(self, what: str, rows: int) -> None: ...
    def advance(self, rows: int, tokens: float) -> None: ...
