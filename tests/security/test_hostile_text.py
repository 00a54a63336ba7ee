"""Text from a model, a data set or a task's name steers nothing: no page, no paper, no terminal."""

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.progress import Progress, TextColumn

from caploc import console
from caploc.naming import default_folder, folder_name
from caploc.report.card import escape_markdown, headline, write_markdown
from caploc.result import (
    Result,
)
from caploc.verdict import make_card
from doubles import least_result

HOSTILE = (
    "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)> \\input{/etc/passwd} "
    "\\write18{rm -rf /} $x_1^2$ % & # {a} ~ | `x` [link](javascript:alert(1)) "
    "\x1b]0;t\x07\x1b[2J\x9b1m"
)
TEXT = st.text(max_size=60) | st.just(HOSTILE)


@given(TEXT)
def test_markdown_keeps_a_cell_a_cell(text):
    """No text ends a cell or a row, and none is HTML."""
    cell = escape_markdown(text)
    assert not re.search(r"(?<!\\)(?:\\\\)*[|<]", cell) and "\n" not in cell


@given(TEXT)
def test_terminals_get_printable_text(text):
    assert not re.search(
        r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", console.printable(text)
    )


@pytest.mark.parametrize("speak", [console.complain, console.warn, console.say])
def test_nothing_said_steers_a_terminal(speak, capsys):
    speak(HOSTILE)
    said = "".join(capsys.readouterr())
    assert "\x1b" not in said and "\x9b" not in said and "\x07" not in said
    assert "alert(1)" in said


def test_tables_and_progress_steer_no_terminal(capsys):
    console.show_table([HOSTILE, "b"], [[HOSTILE, "[red]x[/red]"]], HOSTILE)
    said = capsys.readouterr().out
    assert "\x1b" not in said and "\x9b" not in said and "[red]x" in said
    drawn = io.StringIO()
    columns = [TextColumn("{task.description}")]
    with Progress(*columns, console=Console(file=drawn, width=400)) as bars:
        console.ProgressDisplay(bars).start(HOSTILE + "[bold]", 3)
    assert "\x1b" not in drawn.getvalue() and "\x9b" not in drawn.getvalue()


def test_json_on_standard_output_steers_no_terminal(capsys):
    console.say_json({"a": HOSTILE})
    assert "\x1b" not in capsys.readouterr().out


@given(
    TEXT | st.sampled_from(["../../x", "/etc/passwd", "a\0b", "..", ".", "CON", "x" * 999, "~/x"])
)
def test_names_lead_to_no_other_folder(text):
    for path in (default_folder(text), default_folder("m", text), default_folder(text, "..")):
        assert path.parts[0] == "runs" and len(path.parts) <= 2 and ".." not in path.parts
        assert len(path.name.encode()) <= 255
    name = folder_name(text)
    assert "/" not in name and "\\" not in name and "\0" not in name and name not in ("..", ".")
    assert len(name.encode()) <= 255


def test_a_headline_is_one_line():
    result = Result.model_validate(least_result("a\nb\x1b[2J"))
    said = headline(make_card(result))
    assert "\n" not in said and "\x1b" not in said + write_markdown(make_card(result))
