"""How far a measurement is, for whoever wants to know."""

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


class Silent:
    """Progress that nobody watches."""

    def start(self, what: str, rows: int) -> None: ...
    def advance(self, rows: int, tokens: float) -> None: ...
