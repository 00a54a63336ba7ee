"""Exhibits in LaTeX: a `table` with the rules of booktabs, as wide as the page where it must be."""

from collections.abc import Sequence

from caploc.exhibits.exhibit import NOTHING, Cell, Exhibit, Value

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


def latex_table(exhibit: Exhibit) -> str:
    """Write the whole environment, notes below the table in small type.

    It needs the packages booktabs and, where the table is wide, graphicx.
    """
    rows = [[format_latex_cell(cell) for cell in row] for row in exhibit.shown()]
    body = [
        rf"\begin{{tabular}}{{{alignment(exhibit)}}}",
        r"\toprule",
        join_cells([escape_latex(column) for column in exhibit.columns]),
        r"\midrule",
        *map(join_cells, rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    wide = line_width(exhibit) > WIDE
    if wide:
        body = [r"\resizebox{\textwidth}{!}{%", *body, "}"]
    kind = "table*" if wide else "table"
    notes = [rf"\par\smallskip{{\footnotesize {escape_latex(note)}\par}}" for note in exhibit.notes]
    lines = [
        rf"\begin{{{kind}}}",
        r"\centering",
        rf"\caption{{{escape_latex(exhibit.title)}}}",
        rf"\label{{tab:{exhibit.name}}}",
        *body,
        *notes,
        rf"\end{{{kind}}}",
    ]
    return "\n".join(lines) + "\n"


def format_latex_cell(cell: Cell) -> str:
    """Write a cell: numbers in mathematics, with a true minus; words escaped."""
    if not isinstance(cell, Value):
        return escape_latex(cell)
    return cell.written(r" \pm ", in_mathematics).replace(NOTHING, SIGNS[NOTHING])


def in_mathematics(figures: str) -> str:
    """Write figures as a formula, in which a comma between thousands gets no space."""
    return f"${figures.replace(',', '{,}')}$"


def join_cells(cells: Sequence[str]) -> str:
    """Write a line of a table."""
    return " & ".join(cells) + r" \\"


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


def line_width(exhibit: Exhibit) -> int:
    """About how many characters a line of the table takes."""
    return sum(min(size, LONG) + 2 for size in widths(exhibit))


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
