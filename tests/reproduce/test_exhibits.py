"""Exhibits on paper: what numbers look like, and that no text breaks a table or gets lost."""

import csv
import re
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from caploc.report import charts
from caploc.report import exhibits as files
from caploc.report import exhibits as writing
from caploc.report.exhibits import Exhibit, Value

TEXT = st.text(max_size=40) | st.text("\\`*_[]<>|~&$@#:!%{}^\"' \n\tab1www.//", max_size=30)
NUMBER = st.none() | st.floats(-1e6, 1e6)
CELL = TEXT | st.builds(
    Value, NUMBER, NUMBER.map(lambda n: n and abs(n)), NUMBER, st.integers(0, 4)
)


def plain(text) -> str:
    """What a reader sees of a text: one line, no control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())


@st.composite
def exhibits(draw, cell=CELL):
    width = draw(st.integers(1, 4))
    columns = tuple(draw(st.lists(TEXT, min_size=width, max_size=width)))
    rows = draw(st.lists(st.tuples(*[cell] * width), max_size=4))
    notes = draw(st.lists(TEXT.filter(plain), max_size=2))
    return Exhibit("t", draw(TEXT.filter(plain)), columns, rows, notes)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (Value(0.12345, 0.0123), "0.123 ± 0.012"),
        (Value(-0.0004, 0.0), "0.000 ± 0.000"),  # no minus before a zero
        (Value(None), "–"),
        (Value(float("nan"), 0.1, 0.5), "– (paper 0.500)"),
        (Value(0.3, float("inf")), "0.300"),
        (Value(0.25, 0.01, 0.301), "0.250 ± 0.010 (paper 0.301, -0.051)"),
        (Value(0.5, None, 0.5), "0.500 (paper 0.500, +0.000)"),
        (Value(5110, None, 5120, digits=0), "5,110 (paper 5,120, -10)"),
        (Value(42.4, 8.6, digits=0), "42 ± 9"),
        (Value(1.0, 0.02, 0.9, ends=(0.94, 1.0)), "1.000 [0.940, 1.000] (paper 0.900, +0.100)"),
    ],
)
def test_numbers_are_shown_with_their_error_and_the_papers(value, shown):
    assert str(value) == shown


def test_numbers_in_latex_are_mathematics():
    value = Value(-5110.5, 2.25, 1024, digits=1)
    assert writing.format_latex_cell(value) == (
        r"$-5{,}110.5 \pm 2.2$ (paper $1{,}024.0$, $-6{,}134.5$)"
    )
    assert writing.format_latex_cell(Value(float("nan"))) == "--"
    assert writing.format_latex_cell(Value(None, None, 0.5)) == "-- (paper $0.500$)"


def parsed(page: str):
    """A page as another program reads it: its title, its table and its notes."""
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(page)
    assert not [token for token in tokens if token.type == "html_block"]
    found = {"heading": [], "cells": [[]], "list_item": []}
    for before, token in zip(tokens, tokens[1:], strict=False):
        if token.type == "tr_open":
            found["cells"].append([])
        if token.type != "inline":
            continue
        assert all(child.type == "text" for child in token.children), token.content
        text = "".join(child.content for child in token.children)
        if before.type in ("td_open", "th_open"):
            found["cells"][-1].append(text)
        else:
            found["heading" if before.type == "heading_open" else "list_item"].append(text)
    return found["heading"], found["cells"][1:], found["list_item"]


@given(exhibits())
def test_markdown_shows_every_text_as_it_is(exhibit):
    heading, cells, notes = parsed(writing.markdown_page(exhibit))
    assert heading == [plain(exhibit.title)]
    assert notes == [plain(note) for note in exhibit.notes]
    assert cells[0] == [plain(column) for column in exhibit.columns]
    assert cells[1:] == [[plain(cell) for cell in row] for row in exhibit.shown()]


@given(TEXT)
def test_no_text_becomes_a_mention_a_link_or_a_formula_on_github(text):
    """These are GitHub's own additions to Markdown."""
    escaped = writing.escape_markdown(text)
    assert not re.search(r"(?<!\\)[@#$~]", escaped)
    assert not re.search(r"https?://|www\.\S|:\w+:", escaped, re.IGNORECASE)


BACK = {
    r"\textbackslash{}": "\\",
    r"\textasciitilde{}": "~",
    r"\textasciicircum{}": "^",
    r"\textasciigrave{}": "`",
    r"\textless{}": "<",
    r"\textgreater{}": ">",
    r"\textbar{}": "|",
    r"\textdagger{}": "†",
    r"\textdaggerdbl{}": "‡",
    r"\dots{}": "…",
    r"\(\pm\)": "±",
    "{[}": "[",
    "{]}": "]",
    "{*}": "*",
    r"\&": "&",
    r"\%": "%",
    r"\$": "$",
    r"\#": "#",
    r"\_": "_",
    r"\{": "{",
    r"\}": "}",
}
TOKEN = re.compile("|".join(map(re.escape, sorted(BACK, key=len, reverse=True))) + "|.", re.DOTALL)


def unescaped(text: str) -> str:
    """What LaTeX prints; nothing is left that would be a command, a comment or a formula."""
    tokens = TOKEN.findall(text)
    assert not {"\\", "&", "%", "$", "#", "_", "{", "}", "~", "^"} & set(tokens), text
    return "".join(BACK.get(token, token) for token in tokens)


@given(st.text("abc XYZ 019 ÄéßÿÖ\\`*_[]<>|~&$@#:!%{}^'+=,;()†‡±…", max_size=30))
def test_latex_prints_every_latin_text_as_it_is(text):
    assert unescaped(writing.escape_latex(text)) == plain(text)


@given(st.text(max_size=30))
def test_latex_prints_a_question_mark_for_what_its_fonts_lack(text):
    shown = unescaped(writing.escape_latex(text.translate(dict.fromkeys(map(ord, "–—“”")))))
    kept = plain(text.translate(dict.fromkeys(map(ord, "–—“”"))))
    assert len(shown) == len(kept)
    assert all(s == c or (s == "?" and ord(c) > 255) for s, c in zip(shown, kept, strict=True))


@given(exhibits())
def test_every_row_of_a_latex_table_has_all_its_cells(exhibit):
    lines = writing.latex_environment(exhibit).split("\n")
    first, last = lines.index(r"\toprule"), lines.index(r"\bottomrule")
    rows = [line for line in lines[first + 1 : last] if line != r"\midrule"]
    assert len(rows) == 1 + len(exhibit.shown())
    for row in rows:
        assert row.endswith(r" \\") and not row.startswith(("[", "*"))
        cells = re.split(r"(?<!\\)&", row)
        assert len(cells) == len(exhibit.columns)
        assert row.count("{") - row.count(r"\{") == row.count("}") - row.count(r"\}")


def test_a_wide_latex_table_crosses_both_columns_none_is_wider_and_long_texts_are_broken():
    columns = tuple(f"benchmark {number}" for number in range(14))
    wide = Exhibit("t", "wide", columns, [tuple(Value(0.5, 0.1) for _ in columns)])
    shrinking = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
    text = writing.latex_environment(wide)
    assert r"\begin{table*}" in text and f"{shrinking}\n\\begin{{tabular}}" in text
    narrow = Exhibit("t", "narrow", ("model", "score"), [("demo", Value(0.5))])
    text = writing.latex_environment(narrow)
    assert f"{shrinking}\n\\begin{{tabular}}{{lr}}" in text and "table*" not in text
    long = Exhibit("t", "long", ("heads",), [("L0H1 " * 20,)])
    assert r"{p{0.3\textwidth}}" in writing.latex_environment(long)


def test_latex_numbers_its_captions_itself_and_a_figure_holds_no_table():
    table = writing.latex_environment(Exhibit("table2", "Table 2: heads", ("a",), [("b",)]))
    assert r"\caption{heads}" in table and r"\label{tab:table2}" in table
    draw = partial(charts.curves, {"a": [(0, 1.0)]}, across="x", up="y")
    figure = writing.latex_environment(
        Exhibit("fig1", "Figure 1: x", ("a",), [("b",)], ["n"], draw)
    )
    assert figure.startswith(r"\begin{figure}") and "tabular" not in figure
    assert r"{fig1.pdf}" in figure and r"\caption{x}" in figure and "n\\par" in figure
    empty = writing.latex_environment(Exhibit("fig3", "Figure 3: x", ("a",), [], ["none"]))
    assert "includegraphics" not in empty and "tabular" not in empty


@pytest.mark.parametrize("page", [writing.markdown_page, writing.latex_environment])
def test_an_empty_table_says_that_nothing_was_found(page):
    text = page(Exhibit("t", "T", ("a", "b"), []))
    (row,) = [line for line in text.splitlines() if "nothing found" in line]
    assert row.count("&") + max(row.count("|") - 2, 0) == 1


def read_back(folder, exhibit):
    with (folder / f"{exhibit.name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@given(exhibits=exhibits())
def test_a_csv_holds_every_number_to_its_last_digit(tmp_path_factory, exhibits):
    folder = tmp_path_factory.mktemp("csv")
    files.write(exhibits, folder)
    lines = iter(read_back(folder, exhibits))
    for number, row in enumerate(exhibits.rows):
        for column, cell in zip(exhibits.columns, row, strict=True):
            line = next(lines)
            assert (line["row"], line["column"]) == (str(number), column)
            if isinstance(cell, Value):
                for name in ("stderr", "published", "difference"):
                    assert known(line[name]) == getattr(cell, name)
                assert known(line["value"]) == cell.number
            else:
                assert line["value"] == cell and not line["stderr"]
    assert next(lines, None) is None


def known(text: str) -> float | None:
    return float(text) if text else None


def test_a_figure_is_written_twice_with_the_same_bytes_and_removed_when_there_is_none(tmp_path):
    draw = partial(charts.curves, {"a $b$": [(0, 1.0, 0.1), (1, None, None)]}, across="x", up="y")
    figure = Exhibit("fig", "F", ("a",), [(Value(1.0, 0.1),), (Value(None),)], [], draw)
    written = files.write(figure, tmp_path)
    assert {path.suffix for path in written} == {".csv", ".md", ".tex", ".pdf", ".png"}
    before = {path: path.read_bytes() for path in written}
    assert "![F](fig.png)" in (tmp_path / "fig.md").read_text()
    files.write(figure, tmp_path)
    assert {path: path.read_bytes() for path in written} == before
    left = files.write(Exhibit("fig", "F", ("a",), []), tmp_path)
    assert {path.suffix for path in left} == {".csv", ".md", ".tex"}
    assert {path.suffix for path in tmp_path.iterdir()} == {".csv", ".md", ".tex"}
    assert "png" not in (tmp_path / "fig.md").read_text()
