"""Exhibits in Markdown, for people and for GitHub."""

import re
from collections.abc import Sequence

from caploc.exhibits.exhibit import Cell, Exhibit, Value

# What may be more than text: emphasis, code, links, HTML, mathematics, mentions, references to
# issues, names of emoji, and addresses that GitHub links by itself.
MARKUP = re.compile(r"[\\`*_\[\]<>|~&$@#]|:(?=//|[\w+-]+:)|(?<=www)\.", re.IGNORECASE)
BEGINNING = re.compile(r"^(\d*)([-+=.)])")  # of a list or a rule


def page(exhibit: Exhibit) -> str:
    """Write the title, the picture if there is one, the table and the notes."""
    title = escaped(exhibit.title)
    lines = [f"## {title}", ""]
    if exhibit.draw is not None:
        lines += [f"![{title}]({exhibit.name}.png)", ""]
    names = [escaped(column) for column in exhibit.columns]
    lines += [as_row(names), as_row(["---"] * len(names))]
    lines += [as_row([cell_text(cell) for cell in row]) for row in exhibit.shown()]
    lines += ["", *(f"- {escaped(note)}" for note in exhibit.notes)]
    return "\n".join(lines).rstrip() + "\n"


def cell_text(cell: Cell) -> str:
    """Write a cell; whatever a model or a file says in it is text and nothing else."""
    return str(cell) if isinstance(cell, Value) else escaped(cell)


def as_row(cells: Sequence[str]) -> str:
    """Write a line of a table."""
    return f"| {' | '.join(cells)} |"


def escaped(text: str) -> str:
    """Write text on one line that Markdown shows as it is; white space of any kind is a space."""
    plain = "".join(sign if sign.isprintable() else " " for sign in text)
    return BEGINNING.sub(r"\1\\\2", MARKUP.sub(r"\\\g<0>", " ".join(plain.split())))
