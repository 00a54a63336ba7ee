"""Tables and figures: a pandas frame whose cells may be numbers with errors, and an Altair chart.

A frame is written as Markdown and CSV, its chart as PNG.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import pandas as pd

NOTHING = "–"


@dataclass(frozen=True)
class Value:
    """A number, its standard error or the ends of its 95 % interval, and what the paper prints."""

    number: float | None
    stderr: float | None = None
    paper: float | None = None
    digits: int = 3
    ends: tuple[float | None, float | None] | None = None

    def __post_init__(self) -> None:
        for name in ("number", "stderr"):
            if not known(getattr(self, name)):
                object.__setattr__(self, name, None)

    def __str__(self) -> str:
        if self.number is None:
            text = NOTHING
        else:
            text = self.rounded(self.number)
            if self.ends is not None and all(map(known, self.ends)):
                text += f" ({self.rounded(self.ends[0])} to {self.rounded(self.ends[1])})"
            elif self.stderr is not None:
                text += f" ± {self.rounded(self.stderr)}"
        if self.paper is None:
            return text
        beside = f"paper {self.rounded(self.paper)}"
        if self.number is not None:
            beside += f", {self.rounded(self.number - self.paper, '+')}"
        return f"{text} ({beside})"

    def rounded(self, value: Any, sign: str = "") -> str:
        """Write a number; zero has no minus."""
        return f"{value:{sign}z,.{self.digits}f}"

    def fields(self, column: str) -> dict[str, float | None]:
        """List what a CSV has in its place: the number, its error or interval, the paper's."""
        beside = {"stderr": self.stderr, "paper": self.paper}
        if self.ends is not None:
            beside |= {"low": self.ends[0], "high": self.ends[1]}
        kept = {f"{column} {name}": each for name, each in beside.items() if each is not None}
        return {column: self.number, **kept}


def known(value: Any) -> bool:
    """Tell whether a number was measured and is defined."""
    return value is not None and isfinite(value)


def interval(found: Mapping[str, Any], digits: int = 3) -> Value:
    """Take a mean with its 95 % interval from a result file."""
    return Value(found["mean"], ends=(found["low"], found["high"]), digits=digits)


def drawn(values: Sequence[float], digits: int = 3) -> Value:
    """Take the mean of some draws, the least and the most."""
    if not values:
        return Value(None)
    mean = sum(values) / len(values)
    ends = (min(values), max(values)) if len(values) > 1 else None
    return Value(mean, digits=digits, ends=ends)


@dataclass(frozen=True)
class Exhibit:
    """A filled table; a figure has a chart too."""

    name: str
    title: str
    frame: pd.DataFrame
    notes: Sequence[str] = ()
    chart: Any = None

    @classmethod
    def of(
        cls, name: str, title: str, rows: Iterable[Mapping[str, Any]], notes: Sequence[str] = ()
    ) -> "Exhibit":
        """Make a table of rows, each with its columns by name."""
        return cls(name, title, pd.DataFrame(list(rows)), list(notes))

    def markdown(self) -> str:
        """Write the title, the picture, the table and the notes."""
        texts = self.frame.map(text_of).map(lambda text: text.replace("|", "\\|"))
        table = texts.to_markdown(index=False, disable_numparse=True) if len(texts) else "Nothing."
        picture = [] if self.chart is None else [f"![{self.title}]({self.name}.png)", ""]
        notes = ["", *(f"- {note}" for note in self.notes)] if self.notes else []
        return "\n".join([f"## {self.title}", "", *picture, table, *notes]) + "\n"

    def tidy(self) -> pd.DataFrame:
        """Return a table of plain numbers and texts, with errors in columns of their own."""
        rows = []
        for row in self.frame.to_dict("records"):
            plain: dict[str, Any] = {}
            for column, cell in row.items():
                plain |= cell.fields(column) if isinstance(cell, Value) else {column: cell}
            rows.append(plain)
        return pd.DataFrame(rows)

    def write(self, folder: Path) -> None:
        """Write every form of it into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        place = folder / self.name
        place.with_suffix(".md").write_text(self.markdown(), encoding="utf-8")
        self.tidy().to_csv(place.with_suffix(".csv"), index=False)
        if self.chart is not None:
            self.chart.save(place.with_suffix(".png"), scale_factor=2)


def text_of(cell: Any) -> str:
    """Write a cell; a dash for what is missing."""
    if cell is None or (isinstance(cell, float) and not isfinite(cell)):
        return NOTHING
    return str(cell)


def write_all(exhibits: Sequence[Exhibit], folder: Path, title: str, words: str = "") -> Path:
    """Write exhibits, and `index.md` with all of them on a page."""
    for exhibit in exhibits:
        exhibit.write(folder)
    page = folder / "index.md"
    parts = [f"# {title}", words, *(exhibit.markdown() for exhibit in exhibits)]
    page.write_text("\n\n".join(part for part in parts if part), encoding="utf-8")
    return page
