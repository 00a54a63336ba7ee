"""Help is a manual page, and its examples are commands that can be typed."""

import shlex
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from caploc.cli import app
from caploc.cli.manual import ENVIRONMENT, EXIT_CODES, Manual, sections

ROOT = typer.main.get_command(app)


def commands(group, words=()):
    """Every command that does something, by the words that call it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*words, name))
        else:
            yield (*words, name), command


ALL = dict(commands(ROOT))


def examples(command):
    for section in command.sections:
        if section.heading.startswith("Example"):
            yield from (line for line in section.lines if line)


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_command_is_a_manual_page(words):
    shown = CliRunner().invoke(app, [*words, "--help"])
    assert shown.exit_code == 0
    headings = [line for line in shown.output.splitlines() if line and not line.startswith(" ")]
    assert headings[0].startswith(f"Usage: caploc {' '.join(words)}") or "Usage:" in headings[0]
    assert {"Options:", "Examples:", "See also:", "Exit codes:", "Environment:"} <= set(headings)
    text = " ".join(shown.output.split())
    for _, meaning in (*EXIT_CODES, *ENVIRONMENT):
        assert " ".join(meaning.split()) in text


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_example_calls_its_command_with_options_that_exist(words):
    command = ALL[words]
    assert isinstance(command, Manual)
    found = list(examples(command))
    assert len(found) >= 2
    for line in found:
        typed = shlex.split(line, comments=True)
        assert typed[: 1 + len(words)] == ["caploc", *words], line
        command.make_context(words[-1], typed[1 + len(words) :]).close()


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_what_to_see_also_exists(words):
    (also,) = [each for each in ALL[words].sections if each.heading == "See also"]
    for name in " ".join(also.lines).rstrip(".").split(", "):
        assert tuple(name.split()) in ALL, name


def test_every_command_is_in_the_documentation():
    text = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
    assert [" ".join(words) for words in ALL if f"`caploc {' '.join(words)}" not in text] == []


def test_commands_are_listed_in_groups_with_whole_sentences():
    shown = CliRunner().invoke(app, ["--help"]).output
    assert shown.index("Begin:") < shown.index("Find:") < shown.index("Reproduce:")
    for words, command in ALL.items():
        if len(words) == 1:
            first = " ".join(command.help.partition("\n\n")[0].split())
            assert f"{words[0]} {first}" in " ".join(shown.split())


def test_a_docstring_parts_into_text_and_sections():
    text, found = sections(
        "Do it.\n\nMore: of this.\n\nExamples:\n    caploc do\n\nWrites:\n    a.json: all\n\n"
        "See also:\n    undo"
    )
    assert text == "Do it.\n\nMore: of this."
    assert [(each.heading, each.lines) for each in found] == [
        ("Examples", ["caploc do"]),
        ("Writes", ["a.json: all"]),
        ("See also", ["undo"]),
    ]


def test_the_version_is_told():
    shown = CliRunner().invoke(app, ["--version"])
    assert shown.exit_code == 0 and shown.output.startswith("caploc 0.")
