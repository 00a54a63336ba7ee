"""Exhibits as files: Markdown, CSV, LaTeX, pictures, and one self-contained page."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from caploc.exhibits.exhibit import Exhibit, Value, escape_markdown, latex_table, markdown_page
from caploc.report.charts import Chart, Picture, chart
from caploc.report.templates import write_page
from caploc.report.wording import visible

COLUMNS = ("row", "column", "value", "stderr", "published", "difference")
PICTURES = (".pdf", ".png")


def write(exhibit: Exhibit, folder: Path) -> list[Path]:
    """Write an exhibit into a folder; the files. A picture that it no longer has is removed.

    Raises:
        OSError: if the folder or a file cannot be written.
    """
    files = [folder / f"{exhibit.name}{ending}" for ending in (".csv", ".md", ".tex")]
    with files[0].open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([COLUMNS, *long_form(exhibit)])
    files[1].write_text(markdown_page(exhibit), encoding="utf-8")
    files[2].write_text(latex_table(exhibit), encoding="utf-8")
    pictures = [folder / f"{exhibit.name}{ending}" for ending in PICTURES]
    if exhibit.draw is None:
        for picture in pictures:
            picture.unlink(missing_ok=True)
        return files
    Picture.of([exhibit.draw()]).save(folder / exhibit.name)
    return [*files, *pictures]


def long_form(exhibit: Exhibit) -> list[list[int | str | float | None]]:
    """Put every cell on a line of its own, as `COLUMNS`; a text is a value without the rest.

    Rows are counted from 0. What is not known is empty, and never 0.
    """
    lines: list[list[int | str | float | None]] = []
    for number, row in enumerate(exhibit.rows):
        for column, cell in zip(exhibit.columns, row, strict=True):
            if isinstance(cell, Value):
                parts = [cell.number, cell.stderr, cell.published, cell.difference]
                lines.append([number, column, *parts])
            else:
                lines.append([number, column, cell, None, None, None])
    return lines


def write_index(
    folder: Path, title: str, words: str, exhibits: Sequence[Exhibit], command: str
) -> None:
    """Write one page with the exhibits of a command, under a title and some words of Markdown.

    Raises:
        OSError: if it cannot be written.
    """
    told = [f"    {line}" for line in command.splitlines()]
    head = [f"# {escape_markdown(title)}", "", *told, "", words, ""]
    text = "\n".join([*head, *map(markdown_page, exhibits)])
    (folder / "index.md").write_text(text, encoding="utf-8")


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
