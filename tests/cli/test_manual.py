"""Help is a manual page, and its examples are commands that can be typed."""

import shlex
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from caploc import folder
from caploc.cli import EVERYWHERE, app, options, unwrap
from caploc.declaration import Study
from caploc.folder import RESULT
from caploc.options import Mode, Settings
from caploc.workbench import ModelOptions
from worlds import DEMO

ROOT = typer.main.get_command(app)


def commands(group, words=()):
    """Every command that does something, by the words that call it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*words, name))
        else:
            yield (*words, name), command


ALL = dict(commands(ROOT))
TYPED = {"model", "task", "method", "mask_counts"}  # in a form of their own


def section(command, heading):
    """The lines of a command's help under a heading."""
    (block,) = [each for each in command.help.split("\n\n") if each.startswith(f"{heading}:\n")]
    return [line.strip() for line in block.splitlines()[1:]]


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_command_is_a_manual_page(words):
    shown = CliRunner().invoke(app, [*words, "--help"])
    assert shown.exit_code == 0
    assert f"Usage: caploc {' '.join(words)}" in shown.output
    for heading in ("─ Options ─", "Examples:", "See also:", "Exit codes:", "Environment:"):
        assert heading in shown.output
    assert shown.output.split("To begin with:")[1].strip().startswith(f"caploc {words[0]}")
    for line in EVERYWHERE.splitlines():
        assert line in shown.output
    assert [line for line in shown.output.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_example_calls_its_command_with_options_that_exist(words, monkeypatch):
    monkeypatch.setattr(options, "is_file", lambda path: path.name == RESULT)  # runs that are named
    monkeypatch.setattr(folder, "read_json", lambda path: {"top": ["L0H1"]})
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


def test_the_five_options_that_matter_come_first():
    first = [each for each in ALL[("locate",)].params if each.param_type_name == "option"]
    assert [each.name for each in first[:5]] == ["task", "also", "goal", "budget", "out"]
    assert all(each.rich_help_panel for each in first[5:] if each.name != "help")


def test_every_command_is_in_the_documentation():
    text = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
    assert [" ".join(words) for words in ALL if f"`caploc {' '.join(words)}" not in text] == []


def test_commands_are_listed_in_groups_with_whole_sentences():
    shown = CliRunner().invoke(app, ["--help"]).output
    assert shown.index("─ Begin ─") < shown.index("─ Find ─") < shown.index("─ Hand on ─")
    said = " ".join(shown.replace("│", " ").split())
    for words, command in ALL.items():
        if len(words) == 1:
            assert f"{words[0]} {command.help.partition(chr(10))[0]}" in said


def test_no_help_takes_brackets_for_markup():
    shown = " ".join(CliRunner().invoke(app, ["fetch", "--help"]).output.split())
    assert "pip install 'caploc[gguf]'" in shown


def test_prose_is_unwrapped_and_examples_are_not():
    assert unwrap("Do\n    it.\n\n    Examples:\n        a\n        b\n    ") == (
        "Do it.\n\nExamples:\n    a\n    b"
    )


def test_options_of_a_group_are_the_studys_own_defaults():
    given = {each.name: each.default for each in ALL[("locate",)].params}
    for settings in (Settings(), Study(ModelOptions(DEMO), "t"), ModelOptions(DEMO)):
        for name in vars(settings).keys() & given.keys() - {
            "model",
            "task",
            "method",
            "mask_counts",
            "mode",
        }:
            assert (given[name] or None) == (getattr(settings, name) or None), name
    assert Mode(given["mode"], given["corrupted"], given["positions"]) == Mode()
    assert given["mask_counts"] == ",".join(map(str, Settings().mask_counts))


def test_the_version_is_told():
    shown = CliRunner().invoke(app, ["--version"])
    assert shown.exit_code == 0 and shown.output.startswith("caploc 0.")
