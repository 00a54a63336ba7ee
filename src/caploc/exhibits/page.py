"""Exhibits on one self-contained page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from caploc.exhibits.exhibit import Exhibit
from caploc.report.charts import Chart, chart
from caploc.report.reading import visible
from caploc.report.templates import write_page

LINK = 28  # characters of a title in the page's list of links


@dataclass(frozen=True)
class Section:
    """An exhibit as the page shows it."""

    title: str
    short: str
    picture: Chart | None
    columns: list[str]
    rows: list[list[str]]
    notes: list[str]

    @classmethod
    def of(cls, exhibit: Exhibit) -> "Section":
        """Make texts visible, and draw the figure."""
        title = visible(exhibit.title)
        summary = f"{title}; the numbers are in the table below."
        return cls(
            title,
            title if len(title) <= LINK else title[: LINK - 1].rstrip() + "…",
            None if exhibit.draw is None else chart(summary, exhibit.draw()),
            [visible(column) for column in exhibit.columns],
            [[visible(str(cell)) for cell in row] for row in exhibit.shown()],
            [visible(note) for note in exhibit.notes],
        )


def write_exhibits(
    folder: Path,
    title: str,
    headline: str,
    lines: Sequence[str],
    exhibits: Sequence[Exhibit],
    command: str,
) -> Path:
    """Write `folder/report.html`: a headline, some lines, the exhibits, and the command.

    Raises:
        OSError: if it cannot be written.
    """
    return write_page(
        folder,
        "exhibits.html.j2",
        title=visible(title),
        headline=visible(headline),
        lines=[visible(line) for line in lines],
        sections=[Section.of(exhibit) for exhibit in exhibits],
        command=visible(command or "not recorded"),
    )
