"""Exhibits in Markdown, for people and for GitHub."""

import re
from collections.abc import Sequence

from caploc.exhibits.exhibit import Cell, Exhibit, Value

# What may be more than text: emphasis, code, links, HTML, mathematics, mentions, references to
# issues, names of emoji, and addresses that GitHub links by itself.
MARKUP = re.compile(r"[\\`*_\[\]<>|~&$@#]|:(?=//|[\w+-]+:)|(?<=www)\.", re.IGNORECASE)
BEGINNING = re.compile(r"^(\d*)([-+=.)])")  # of a list or a rule


def markdown_page(exhibit: Exhibit) -> str:
    """Write the title, the picture if there is one, the table and the notes."""
    title = escape_markdown(exhibit.title)
    lines = [f"## {title}", ""]
    if exhibit.draw is not None:
        lines += [f"![{title}]({exhibit.name}.png)", ""]
    names = [escape_markdown(column) for column in exhibit.columns]
    lines += [join_markdown_cells(names), join_markdown_cells(["---"] * len(names))]
    lines += [
        join_markdown_cells([format_markdown_cell(cell) for cell in row]) for row in exhibit.shown()
    ]
    lines += ["", *(f"- {escape_markdown(note)}" for note in exhibit.notes)]
    return "\n".join(lines).rstrip() + "\n"


def format_markdown_cell(cell: Cell) -> str:
    """Write a cell; whatever a model or a file says in it is text and nothing else."""
    return str(cell) if isinstance(cell, Value) else escape_markdown(cell)


def join_markdown_cells(cells: Sequence[str]) -> str:
    """Write a line of a table."""
    return f"| {' | '.join(cells)} |"


def escape_markdown(text: str) -> str:
    """Write text on one line that Markdown shows as it is; white space of any kind is a space."""
    plain = "".join(sign if sign.isprintable() else " " for sign in text)
    return BEGINNING.sub(r"\1\\\2", MARKUP.sub(r"\\\g<0>", " ".join(plain.split())))
