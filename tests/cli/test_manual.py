"""Help is a manual page, and its examples are commands that can be typed."""

import shlex
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from caploc import folder
from caploc.cli import app, options, unwrap
from caploc.folder import RESULT

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
def test_every_command_is_a_manual_page(words):
    shown = CliRunner().invoke(app, [*words, "--help"])
    assert shown.exit_code == 0
    assert f"Usage: caploc {' '.join(words)}" in shown.output
    for heading in ("─ Options ─", "Examples:", "See also:"):
        assert heading in shown.output
    assert [line for line in shown.output.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_example_calls_its_command_with_options_that_exist(words, monkeypatch):
    monkeypatch.setattr(options, "is_file", lambda path: path.name == RESULT)  # runs that are named
    monkeypatch.setattr(folder, "read_json", lambda path: {"top": ["L0H1"]})
    monkeypatch.setattr(options, "read_pairs", lambda name: [])
    monkeypatch.setattr(options, "is_pairs", lambda name: name == "pairs.jsonl")
    command = ALL[words]
    found = section(command, "Examples")
    assert len(found) >= 2
    for line in found:
        typed = shlex.split(line, comments=True)
        assert typed[: 1 + len(words)] == ["caploc", *words], line
        command.make_context(words[-1], typed[1 + len(words) :]).close()


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_what_to_see_also_exists(words):
    for name in " ".join(section(ALL[words], "See also")).rstrip(".").split(", "):
        assert tuple(name.split()) in ALL, name


def test_help_fits_on_a_screen(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert len(CliRunner().invoke(app, ["--help"]).output.splitlines()) <= 40
    for words in ALL:
        if words[0] != "neurons":
            shown = CliRunner().invoke(app, [*words, "--help"]).output
            assert len(shown.splitlines()) <= 60, words


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
