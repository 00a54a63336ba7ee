"""Help is a manual page, and its examples are commands that can be typed."""

import shlex
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from caploc.cli import app, unwrap

ROOT = typer.main.get_command(app)


def commands(group, words=()):
    """Every command that does something, by the words that call it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*words, name))
        else:
            yield (*words, name), command


ALL = dict(commands(ROOT))


def section(command, heading):
    """The lines of a command's help under a heading."""
    (block,) = [each for each in command.help.split("\n\n") if each.startswith(f"{heading}:\n")]
    return [line.strip() for line in block.splitlines()[1:]]


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_command_is_a_manual_page_of_one_screen(words, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(app, [*words, "--help"])
    assert shown.exit_code == 0
    assert f"Usage: caploc {' '.join(words)}" in shown.output
    for heading in ("─ Options ─", "Examples:", "See also:"):
        assert heading in shown.output
    lines = shown.output.splitlines()
    assert max(map(len, lines)) <= 80 and (len(lines) <= 60 or words[0] == "neurons")
    examples = section(ALL[words], "Examples")  # parsed where those of the pages are
    assert len(examples) >= 2
    for line in examples:
        assert shlex.split(line)[: 1 + len(words)] == ["caploc", *words], line


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_what_to_see_also_exists(words):
    for name in " ".join(section(ALL[words], "See also")).rstrip(".").split(", "):
        assert tuple(name.split()) in ALL, name


def test_a_first_page_shows_what_matters_and_another_one_all():
    first, whole = (
        CliRunner().invoke(app, ["locate", page]).output for page in ("--help", "--help-all")
    )
    for option in ("--task", "--also", "--goal", "--spare", "--budget", "--top", "--out"):
        assert option in first and option in whole
    options = {f"--{each.name.replace('_', '-')}" for each in ALL[("locate",)].params[1:]}
    options = options - {"--as-json"} | {"--json"}
    assert {"--rates", "--leave-out", "--ray-address", "--dtype"} <= options
    assert all(option in whole for option in options - {"--help"})
    assert sum(option in first for option in options) <= 16
    assert CliRunner().invoke(app, ["locate", "--help"]).output == first


def test_every_command_is_in_the_documentation():
    text = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
    assert [" ".join(words) for words in ALL if f"`caploc {' '.join(words)}" not in text] == []


def test_seven_commands_come_first_each_in_a_sentence_of_one_line():
    shown = CliRunner().invoke(app, ["--help"]).output
    assert len(shown.splitlines()) <= 40
    first, more = shown.split("─ Commands ─")[1].split("─ More ─")
    assert len([line for line in first.splitlines() if line.startswith("│")]) == 7
    for words, command in ALL.items():
        if len(words) == 1:
            assert f"{words[0]} " in first + more
            assert command.help.partition(chr(10))[0] in " ".join((first + more).split())


def test_no_help_takes_brackets_for_markup():
    shown = " ".join(CliRunner().invoke(app, ["models", "--help"]).output.split())
    assert "pip install 'caploc[gguf]'" in shown


def test_prose_is_unwrapped_and_examples_are_not():
    assert unwrap("Do\n    it.\n\n    Examples:\n        a\n        b\n    ") == (
        "Do it.\n\nExamples:\n    a\n    b"
    )


def test_the_version_is_told():
    shown = CliRunner().invoke(app, ["--version"])
    assert shown.exit_code == 0 and shown.output.startswith("caploc 0.")
