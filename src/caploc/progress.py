"""How far a measurement is, for whoever wants to know."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@runtime_checkable
class Progress(Protocol):
    """Whoever wants to know how far a measurement is."""

    def start(self, what: str, rows: int) -> None:
        """So many rows are to come, those already stored included."""
        ...

    def advance(self, rows: int, tokens: float) -> None:
        """So many more rows are done; `tokens` were run for them (0: they were stored)."""
        ...


@runtime_checkable
class Overview(Progress, Protocol):
    """Progress that also knows the whole, and says what has been found so far."""

    def expect(self, rows: int) -> None:
        """So many rows are still to be measured from now on, about, over all stages."""
        ...

    def tell(self, text: str) -> None:
        """Show a line that stays."""
        ...


def expect(progress: Progress, rows: int | None) -> None:
    """Say how many rows are to come, about, to whoever wants to know the whole; None: unknown."""
    if rows is not None and isinstance(progress, Overview):
        progress.expect(rows)


def tell(progress: Progress, text: str) -> None:
    """Say a line to whoever watches a run."""
    if isinstance(progress, Overview):
        progress.tell(text)


@dataclass
class SideBySide:
    """Progress of one of several studies at once: rows are counted for all of them together.

    `left` has the rows that each study still waits for.
    """

    shown: Progress
    name: str
    left: dict[str, int]

    def start(self, what: str, rows: int) -> None:
        self.left[self.name] = rows
        expect(self.shown, sum(self.left.values()))
        self.shown.start(f"{self.name}: {what}", rows)

    def advance(self, rows: int, tokens: float) -> None:
        self.left[self.name] -= rows
        self.shown.advance(rows, tokens)

    def expect(self, rows: int) -> None: ...

    def tell(self, text: str) -> None:
        tell(self.shown, f"{self.name}: {text}")


class Silent:
    """Progress that nobody watches."""

    def start(self, what: str, rows: int) -> None: ...
    def advance(self, rows: int, tokens: float) -> None: ...
