"""A table or figure of the paper, filled: its rows with errors, and the printed figures beside."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any

from caploc.report.charts import Spec

NOTHING = "–"


@dataclass(frozen=True)
class Value:
    """A measured number, its standard error, and what the paper prints in its place.

    What is not finite is not known, and None.
    """

    number: float | None
    stderr: float | None = None
    published: float | None = None
    digits: int = 3

    def __post_init__(self) -> None:
        """Take NaN and infinity for what they are."""
        for name in ("number", "stderr", "published"):
            value = getattr(self, name)
            if value is not None and not isfinite(value):
                object.__setattr__(self, name, None)

    def __str__(self) -> str:
        return self.written()

    def written(self, between: str = " ± ", figure: Callable[[str], str] = str) -> str:
        """Write the number, its error `between` them, in brackets the paper's and the difference.

        `figure` dresses what consists of digits. A dash is a number that is not known.
        """
        own = NOTHING
        if self.number is not None:
            error = "" if self.stderr is None else between + self.rounded(self.stderr)
            own = figure(self.rounded(self.number) + error)
        if self.published is None:
            return own
        beside = f"paper {figure(self.rounded(self.published))}"
        if self.difference is not None:
            beside += f", {figure(self.rounded(self.difference, '+'))}"
        return f"{own} ({beside})"

    def rounded(self, value: float, sign: str = "") -> str:
        """Write figures as they are shown; zero has no minus."""
        return f"{value:{sign}z,.{self.digits}f}"

    @property
    def difference(self) -> float | None:
        """Ours less the paper's."""
        if self.number is None or self.published is None:
            return None
        return self.number - self.published


Cell = str | Value


@dataclass(frozen=True)
class Exhibit:
    """A filled table; a figure has one too, and says how it is drawn, if there is what to draw."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]
    notes: list[str] = field(default_factory=list)
    draw: Callable[[], Spec] | None = None

    @classmethod
    def of(
        cls,
        name: str,
        title: str,
        rows: Sequence[dict[str, Cell]],
        notes: Sequence[str] = (),
        draw: Callable[[], Spec] | None = None,
    ) -> "Exhibit":
        """Fill a table from rows that name their columns, all alike."""
        columns = tuple(rows[0]) if rows else ()
        return cls(name, title, columns, [tuple(row.values()) for row in rows], list(notes), draw)

    def as_dict(self) -> dict[str, Any]:
        """Describe it as JSON has it: cells are texts, or numbers with their errors."""
        rows = [[asdict(c) if isinstance(c, Value) else c for c in row] for row in self.rows]
        fields = {"name": self.name, "title": self.title, "columns": list(self.columns)}
        return fields | {"rows": rows, "notes": self.notes}

    def shown(self) -> list[tuple[Cell, ...]]:
        """Return the rows, or one that says that there is none."""
        return self.rows or [("nothing found", *[""] * (len(self.columns) - 1))]
