"""Exhibits on one self-contained page."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from matplotlib import rc_context

from caploc.exhibits.exhibit import Exhibit
from caploc.report.figures import HOUSE_STYLE
from caploc.report.reading import visible
from caploc.report.templates import write_page

LINK = 28  # characters of a title in the page's list of links


@dataclass(frozen=True)
class Section:
    """An exhibit as the page shows it; `picture` is a data address, empty without a figure."""

    title: str
    short: str
    picture: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str]

    @classmethod
    def of(cls, exhibit: Exhibit) -> "Section":
        """Texts made visible, the figure drawn."""
        title = visible(exhibit.title)
        return cls(
            title,
            title if len(title) <= LINK else title[: LINK - 1].rstrip() + "…",
            picture(exhibit),
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


def picture(exhibit: Exhibit) -> str:
    """The exhibit's figure as a data address."""
    if exhibit.draw is None:
        return ""
    buffer = BytesIO()
    with rc_context(HOUSE_STYLE):
        exhibit.draw().savefig(buffer, format="png", bbox_inches="tight", dpi=160)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
