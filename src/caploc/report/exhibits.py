"""Tables and figures of the papers, filled: as Markdown, CSV, LaTeX, pictures, and one page."""

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from caploc.report.charts import Picture, Spec, chart
from caploc.report.templates import write_page
from caploc.wording import visible

NOTHING = "–"


@dataclass(frozen=True)
class Value:
    """A measured number, its standard error, and what the paper prints in its place.

    `ends` are those of its 95 % interval, where an error each way would say too little. What is not
    finite is not known, and None.
    """

    number: float | None
    stderr: float | None = None
    published: float | None = None
    digits: int = 3
    ends: tuple[float, float] | None = None

    def __post_init__(self) -> None:
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
            own = figure(self.rounded(self.number) + error * (self.ends is None))
            if self.ends is not None:
                own += f" [{', '.join(figure(self.rounded(end)) for end in self.ends)}]"
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
Row = tuple[Cell, ...]


@dataclass(frozen=True)
class Exhibit:
    """A filled table; a figure has one too, and says how it is drawn, if there is what to draw."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: list[Row]
    notes: list[str] = field(default_factory=list)
    draw: Callable[[], Spec] | None = None
    groups: tuple[tuple[str, int], ...] = ()  # of columns: a heading over so many of them

    @classmethod
    def of(
        cls, name: str, title: str, rows: Sequence[dict[str, Cell]], notes: Sequence[str]
    ) -> "Exhibit":
        """Fill a table from rows that name their columns, all alike."""
        columns = tuple(rows[0]) if rows else ()
        return cls(name, title, columns, [tuple(row.values()) for row in rows], list(notes))

    def as_dict(self) -> dict[str, Any]:
        """Describe it as JSON has it: cells are texts, or numbers with their errors."""
        rows = [[asdict(c) if isinstance(c, Value) else c for c in row] for row in self.rows]
        fields = {"name": self.name, "title": self.title, "columns": list(self.columns)}
        return fields | {"rows": rows, "notes": self.notes}

    def shown(self) -> list[Row]:
        """Return the rows, or one that says that there is none."""
        return self.rows or [("nothing found", *[""] * (len(self.columns) - 1))]


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
    table = [[escape_markdown(column) for column in exhibit.columns]]
    table.append(["---"] * len(exhibit.columns))
    for row in exhibit.shown():
        table.append([str(c) if isinstance(c, Value) else escape_markdown(c) for c in row])
    if exhibit.groups:
        table.insert(2, [f"*{escape_markdown(each)}*" if each else "" for each in over(exhibit)])
    lines += [f"| {' | '.join(cells)} |" for cells in table]
    lines += ["", *(f"- {escape_markdown(note)}" for note in exhibit.notes)]
    return "\n".join(lines).rstrip() + "\n"


def escape_markdown(text: str) -> str:
    """Write text on one line that Markdown shows as it is; white space of any kind is a space."""
    plain = "".join(sign if sign.isprintable() else " " for sign in text)
    return BEGINNING.sub(r"\1\\\2", MARKUP.sub(r"\\\g<0>", " ".join(plain.split())))


NUMBERED = re.compile(r"^(?:Table|Figure) \d+: ")  # LaTeX has numbers of its own
LONG = 36  # characters beyond which a column of words is broken into lines
WIDE = 96  # characters that fit into a page's width
SIGNS = {sign: f"\\{sign}" for sign in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    "[": "{[}",  # behind the end of a row it would be an option of that
    "]": "{]}",
    "*": "{*}",
    "–": "--",
    "—": "---",
    "“": "``",
    "”": "''",
    "†": r"\textdagger{}",
    "‡": r"\textdaggerdbl{}",
    "±": r"\(\pm\)",
    "…": r"\dots{}",
}
NO_WIDER = r"\ifdim\width>\linewidth\linewidth\else\width\fi"  # than the column of text


def over(exhibit: Exhibit) -> list[str]:
    """Write the heading of each group of columns over its first one, nothing over the others."""
    cells = [cell for name, count in exhibit.groups for cell in (name, *[""] * (count - 1))]
    return cells + [""] * (len(exhibit.columns) - len(cells))


def latex_environment(exhibit: Exhibit) -> str:
    """Write a table, or of a figure its picture and no table; notes below in small type.

    LaTeX numbers them by itself. It needs the packages booktabs and graphicx.
    """
    drawn = exhibit.name.startswith("fig")
    wide = not drawn and sum(min(size, LONG) + 2 for size in widths(exhibit)) > WIDE
    kind = "figure" if drawn else "table*" if wide else "table"
    size = r"width=\linewidth,height=.7\textheight,keepaspectratio"
    picture = [rf"\includegraphics[{size}]{{{exhibit.name}.pdf}}"]
    body = picture[: exhibit.draw is not None]
    if not drawn:
        body = [rf"\resizebox{{{NO_WIDER}}}{{!}}{{%", *latex_tabular(exhibit), "}"]
    notes = [rf"\par\smallskip{{\footnotesize {escape_latex(note)}\par}}" for note in exhibit.notes]
    caption = escape_latex(NUMBERED.sub("", exhibit.title))
    named = [rf"\caption{{{caption}}}", rf"\label{{{kind[:3]}:{exhibit.name}}}"]
    head, foot = [rf"\begin{{{kind}}}", r"\centering"], rf"\end{{{kind}}}"
    lines = [*head, *body, *named] if drawn else [*head, *named, *body]
    return "\n".join([*lines, *notes, foot]) + "\n"


def latex_tabular(exhibit: Exhibit) -> list[str]:
    """Write the rows between their rules, groups of columns with a rule of their own."""
    lines = [[escape_latex(column) for column in exhibit.columns]]
    lines += [[format_latex_cell(cell) for cell in row] for row in exhibit.shown()]
    names, *rows = [" & ".join(line) + r" \\" for line in lines]
    above, rules, first = [], "", 1
    for name, count in exhibit.groups:
        above.append(rf"\multicolumn{{{count}}}{{c}}{{{escape_latex(name)}}}")
        rules += rf"\cmidrule(lr){{{first}-{first + count - 1}}}" if name else ""
        first += count
    heads = [" & ".join(above) + r" \\", rules, names] if above else [names]
    start = [rf"\begin{{tabular}}{{{alignment(exhibit)}}}", r"\toprule"]
    return [*start, *heads, r"\midrule", *rows, r"\bottomrule", r"\end{tabular}"]


def format_latex_cell(cell: Cell) -> str:
    """Write a cell: numbers in mathematics, with a true minus; words escaped."""
    if not isinstance(cell, Value):
        return escape_latex(cell)

    def formula(figures: str) -> str:  # in which a comma between thousands gets no space
        return f"${figures.replace(',', '{,}')}$"

    return cell.written(r" \pm ", formula).replace(NOTHING, SIGNS[NOTHING])


def alignment(exhibit: Exhibit) -> str:
    """Align numbers to the right, words to the left, long ones in lines of their own."""
    kinds = ""
    for place, size in enumerate(widths(exhibit)):
        numbers = [isinstance(row[place], Value) for row in exhibit.rows]
        if size > LONG:
            kinds += r"p{0.3\textwidth}"
        else:
            kinds += "r" if numbers and all(numbers) else "l"
    return kinds


def widths(exhibit: Exhibit) -> list[int]:
    """Count the most characters in each column."""
    rows = [exhibit.columns, *exhibit.shown()]
    return [max(len(str(row[place])) for row in rows) for place in range(len(exhibit.columns))]


def escape_latex(text: str) -> str:
    """Write text on one line as LaTeX takes it; a question mark for what its usual fonts lack."""
    plain = "".join(sign if sign.isprintable() else " " for sign in text)
    return "".join(
        SIGNS.get(sign, sign if sign <= "ÿ" else "?") for sign in " ".join(plain.split())
    )


COLUMNS = ("row", "column", "value", "stderr", "published", "difference")
PICTURES = (".pdf", ".png")


def write(exhibit: Exhibit, folder: Path) -> list[Path]:
    """Write an exhibit into a folder; the files. A picture that it no longer has is removed.

    Raises OSError if the folder or a file cannot be written.
    """
    files = [folder / f"{exhibit.name}{ending}" for ending in (".csv", ".md", ".tex")]
    with files[0].open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([COLUMNS, *long_form(exhibit)])
    files[1].write_text(markdown_page(exhibit), encoding="utf-8")
    files[2].write_text(latex_environment(exhibit), encoding="utf-8")
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
                parts = cell.number, cell.stderr, cell.published, cell.difference
                lines.append([number, column, *parts])
            else:
                lines.append([number, column, cell, None, None, None])
    return lines


def write_index(
    folder: Path, title: str, words: str, exhibits: Sequence[Exhibit], command: str
) -> None:
    """Write one page with the exhibits of a command, under a title and some words of Markdown.

    Raises OSError if it cannot be written.
    """
    told = [f"    {line}" for line in command.splitlines()]
    head = [f"# {escape_markdown(title)}", "", *told, "", words, ""]
    text = "\n".join([*head, *map(markdown_page, exhibits)])
    (folder / "index.md").write_text(text, encoding="utf-8")


LINK = 28  # characters of a title in the page's list of links
WORDS = re.compile(r"(?![-–\d\[]).*\s", re.DOTALL)  # a cell that may be broken, of words


def lay_out(exhibit: Exhibit) -> dict[str, Any]:
    """Make an exhibit a section of the page: its texts visible, its figure drawn."""
    title, draw, rows = visible(exhibit.title), exhibit.draw, exhibit.shown()
    summary = f"{title}; the numbers are in the table below."
    return {
        "title": title,
        "short": title if len(title) <= LINK else title[: LINK - 1].rstrip() + "…",
        "picture": None if draw is None else chart(summary, draw()),
        "columns": [visible(column) for column in exhibit.columns],
        "rows": [[visible(str(cell)) for cell in row] for row in rows],
        "words": [
            place
            for place, cells in enumerate(zip(*rows, strict=True))
            if place == 0 or any(map(WORDS.match, map(str, cells)))
        ],
        "notes": [visible(note) for note in exhibit.notes],
    }


def write_exhibits(
    folder: Path,
    title: str,
    headline: str,
    lines: Sequence[str],
    exhibits: Sequence[Exhibit],
    command: str,
) -> Path:
    """Write `folder/report.html`: a headline, some lines, the exhibits, and the command.

    Raises OSError if it cannot be written.
    """
    return write_page(
        folder,
        "exhibits.html.j2",
        title=visible(title),
        headline=visible(headline),
        lines=[visible(line) for line in lines],
        sections=list(map(lay_out, exhibits)),
        command=visible(command or "not recorded"),
    )
