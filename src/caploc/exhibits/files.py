"""Exhibits as files: Markdown, CSV and LaTeX, and for a figure PDF and PNG."""

import csv
from collections.abc import Sequence
from pathlib import Path

from caploc.exhibits import latex, markdown
from caploc.exhibits.exhibit import Exhibit, Value
from caploc.report.pictures import Picture

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
    files[1].write_text(markdown.markdown_page(exhibit), encoding="utf-8")
    files[2].write_text(latex.latex_table(exhibit), encoding="utf-8")
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
    head = [f"# {markdown.escape_markdown(title)}", "", *told, "", words, ""]
    text = "\n".join([*head, *map(markdown.markdown_page, exhibits)])
    (folder / "index.md").write_text(text, encoding="utf-8")
