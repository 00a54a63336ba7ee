"""The card of a finding as text, Markdown and HTML: the same cells in three dresses."""

import re
import textwrap
from typing import Any

import pandas as pd
from markupsafe import Markup

from caploc.report.templates import render
from caploc.result import Card, CardRow, Said
from caploc.verdict import NAMED
from caploc.wording import Unit

HEADINGS = ("", "intact", "without", "change", "(95 %)", "")
WIDTH = 120  # characters of a line where nobody says how many fit
OPEN = "Open: neither a loss nor its absence is sure."
UNSTABLE = "Unstable: other examples may name other heads."


def label(card: Card) -> str:
    """Write the verdict in capitals, and what limits it behind."""
    flags = {"few examples": card.few_examples, "unstable": card.unstable}
    return ", ".join([card.verdict.upper(), *(flag for flag, holds in flags.items() if holds)])


def share_of_heads(card: Card) -> str:
    """Write how many of all there are, and which, if the heading does not say it."""
    some = f"{len(card.heads)} of " if card.heads else ""
    names = f": {' '.join(card.heads)}" if len(card.heads) > NAMED else ""
    return f"{some}{card.of:,} {card.kind} of {card.model}{names}"


def headline(card: Card) -> str:
    """Write verdict and heading in one line."""
    return f"{label(card)}: {card.heading}"


def checked_on(card: Card) -> str:
    """Write how many examples the check has that no search saw."""
    if not card.held_out:
        return "" if not card.heads else "Checked on examples that the search has seen."
    return f"Checked on {card.held_out:,} held-out examples."


def list_remarks(card: Card) -> list[str]:
    """List what stands below the table."""
    undecided = OPEN if any(row.said is Said.OPEN for row in card.rows) else ""
    unstable = UNSTABLE if card.unstable else ""
    return [text for text in (checked_on(card), undecided, unstable, *card.notes) if text]


def cells(row: CardRow) -> tuple[str, ...]:
    """Write a row: label, intact, without, change, interval, what it says."""
    scores, changes = Unit(row.unit), Unit(row.change_unit)
    change = "" if row.change is None else changes.change(row.change)
    said = row.said.value if row.said else ""
    both = scores.score(row.intact), scores.score(row.without)
    return row.label, *both, change, changes.interval(row), said


def write_text(card: Card, report: object = None, width: int = WIDTH) -> str:
    """Write the card for a terminal, so many characters wide."""
    first = f"{label(card)}   {card.heading}   ({share_of_heads(card)})"
    table = [HEADINGS, *map(cells, card.rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = textwrap.wrap(first, width, subsequent_indent="  ", drop_whitespace=True)
    lines.append("")
    for row in table:
        texts = [
            text.ljust(size) if place in (0, 4, 5) else text.rjust(size)
            for place, (text, size) in enumerate(zip(row, widths, strict=True))
        ]
        joined = f"  {texts[0]}  {texts[1]}  {texts[2]}  {texts[3]} {texts[4]}  {texts[5]}"
        lines.append(joined.rstrip())
    lines.append("")
    lines += [f"  {sample}" for sample in write_samples(card)]
    last = [*list_remarks(card), f"Report: {report}" if report else ""]
    for text in filter(None, last):
        indent = "  "
        lines += textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent)
    return "\n".join(lines)


def write_samples(card: Card) -> list[str]:
    """Write each lost example: the end of its prompt, the answer intact, the answer without."""
    if not card.samples:
        return []
    most = max(len(sample.intact) for sample in card.samples)
    asked = max(len(sample.prompt) for sample in card.samples)
    return [
        f"{sample.prompt.ljust(asked)}   intact  {sample.intact.ljust(most)}   "
        f"without  {sample.without or '(empty)'}"
        for sample in card.samples
    ]


# What may be more than text: emphasis, code, links, HTML, mathematics, mentions, references to
# issues, names of emoji, and addresses that GitHub links by itself.
MARKUP = re.compile(r"[\\`*_\[\]<>|~&$@#]|:(?=//|[\w+-]+:)|(?<=www)\.", re.IGNORECASE)
BEGINNING = re.compile(r"^(\d*)([-+=.)])")  # of a list or a rule


def escape_markdown(text: str) -> str:
    """Write text on one line that Markdown shows as it is; white space of any kind is a space."""
    plain = "".join(sign if sign.isprintable() else " " for sign in text)
    return BEGINNING.sub(r"\1\\\2", MARKUP.sub(r"\\\g<0>", " ".join(plain.split())))


def write_markdown(card: Card) -> str:
    """Write the card as Markdown to paste; whatever a name holds is text there."""
    rows = [[escape_markdown(cell) for cell in cells(row)] for row in card.rows]
    merged = [[*row[:3], f"{row[3]} {row[4]}".strip(), row[5]] for row in rows]
    frame = pd.DataFrame(merged, columns=["task", "intact", "without", "change (95 %)", "said"])
    table = frame.to_markdown(index=False, disable_numparse=True)
    heading = escape_markdown(f"{card.heading} ({share_of_heads(card)})")
    remarks = " ".join(map(escape_markdown, list_remarks(card)))
    return f"**{label(card)}** {heading}\n\n{table}\n\n{remarks}".rstrip() + "\n"


def write_html(card: Card) -> Markup:
    """Write the card as HTML, which is readable without the style of a page."""
    return render("card.html.j2", **describe(card), tag="p")


def describe(card: Card) -> dict[str, Any]:
    """Return what the template of the card is filled with."""
    rows = [(row, cells(row)) for row in card.rows]
    told: dict[str, Any] = {"card": card, "label": label(card), "share": share_of_heads(card)}
    return told | {"remarks": list_remarks(card), "rows": rows}
