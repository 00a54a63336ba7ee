"""What a terminal is asked: the model and the task, what to do with a finding, a prompt."""

import io
import os
import pty
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import caploc
from caploc.cli import app
from caploc.cli.offering import choose, offers, search_on
from caploc.errors import BadOption
from caploc.playground.answers import Chat
from caploc.workbench import Allowed


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on the demo model that found heads or not; which ones is no matter here."""
    small = {"method": "css", "masks": 12, "rate": 0.05, "examples": 8, "limit": 8, "controls": 0}
    place = tmp_path_factory.mktemp("run")
    return caploc.locate("demo", "demo/addition", **small, also=[], out=place, quiet=True).folder


def typed_into(command: list[str], text: str) -> tuple[int, str]:
    """Run a command in a terminal into which somebody types; its exit code and all it shows."""
    ours, its = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "caploc", *command], stdin=its, stdout=its, stderr=its
    )
    os.close(its)
    os.write(ours, text.encode())
    shown = b""
    while True:
        try:
            more = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not more:
            break
        shown += more
    os.close(ours)
    return process.wait(), shown.decode()


def test_without_a_word_a_terminal_is_asked_for_model_and_task():
    code, shown = typed_into([], "demo\ndemo/additon\n")
    assert code == 2
    assert "Model (" in shown and "Task (" in shown
    assert "$ caploc locate demo --task demo/additon" in shown
    assert "demo/addition" in shown.split("$ caploc")[1]  # the nearest name


def test_without_a_terminal_the_help_is_shown():
    shown = CliRunner().invoke(app, [])
    assert "Usage: caploc" in shown.output and "Model (" not in shown.output


def test_what_is_offered_is_a_command_that_exists():
    again = ["locate", "demo", "--task", "demo/addition", "--out", "runs/x"]
    for _, words in offers(Path("runs/x"), ["L0H1"], again):
        assert words[0] in CliRunner().invoke(app, ["--help"]).output
        assert "runs/x" in words
    assert [words[0] for _, words in offers(Path("runs/x"), [])] == ["view"]


def test_numbers_choose_until_an_empty_line(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("9\nx\n5\n2\n\n"))
    chosen = list(choose(Path("runs/x"), ["L0H1"], Path("runs/x/report.html")))
    assert [words[0] for words in chosen] == ["export", "chat"]
    assert chosen[0][-1] == "heads"
    shown = capsys.readouterr().out
    assert "'9' is no number from 0 to 6." in shown and "caploc view runs/x" in shown


def test_a_repository_is_asked_for_when_a_checkpoint_is_to_be_pushed(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("6\nme/cut\n\n"))
    (words,) = choose(Path("runs/x"), ["L0H1"], Path("runs/x/report.html"))
    assert words == ["export", "runs/x", "--to", "runs/x-hub", "--push-to-hub", "me/cut"]


@pytest.mark.parametrize("typed", ["--budget 100 --out runs/x", "--out=runs/x", "--budget=7"])
def test_a_search_goes_on_as_it_was_typed_with_twice_the_rows(typed, monkeypatch):
    asked = ["locate", "demo", "--task", "demo/addition"]
    monkeypatch.setattr("sys.argv", ["caploc", *asked, *typed.split(), "--top", "3"])
    more = ["--budget", "200", "--out", "runs/x-200"]
    assert search_on(Path("runs/x"), 100) == [*asked, "--top", "3", *more]
    assert search_on(Path("runs/x"), None) is None


def test_both_answers_are_given_to_what_is_typed(run):
    command = ["chat", str(run), "--heads", "L0H10,L0H14,L0H15", "--tokens", "2"]
    shown = CliRunner().invoke(app, command, input="12+13=\n\n", catch_exceptions=False)
    assert shown.exit_code == 0
    assert "Without L0H10, L0H14, L0H15." in shown.output
    assert "intact: 25" in shown.output and "without: " in shown.output


def test_a_chat_ends_where_nothing_more_is_typed(run):
    command = ["chat", str(run), "--heads", "L0H10", "--tokens", "2"]
    for end in ("", "\n", "/quit\n9+9=\n"):
        shown = CliRunner().invoke(app, command, input=f"12+13=\n{end}", catch_exceptions=False)
        assert shown.exit_code == 0 and shown.output.count("intact: 25") == 1
        assert shown.output.count("intact: ") == 1


def test_a_chat_begins_with_an_example_that_the_heads_decide(run):
    talk = Chat.of(run, None, 4, Allowed(), plain=True)
    said = talk.opening().splitlines()
    assert said[1] == "An example of the task, to begin with:"
    first = dict(talk.answer(said[2].replace("\\n", "\n")))
    intact, without = talk.broken.intact, talk.broken.knocked_out
    assert said[3] == f"(intact {intact!r}, without {without!r})"
    assert first["intact"].startswith(intact) and without.startswith(first["without"])
    assert talk.end == "\n" and "Answers end with their line" in said[0]
    talk = replace(talk, tokens=30)
    long, short = (dict(replace(talk, end=end).answer("hello\n")) for end in ("", ";"))
    assert short["intact"] == long["intact"].partition(";")[0] + ";" != long["intact"]
    other = Chat.of(run, "L3H1", 4, Allowed())
    assert "example" not in other.opening()
    templated = replace(talk, templated=True)
    assert "With --plain the model goes on with what is typed" in templated.opening()


def test_a_chat_leaves_the_model_whole_and_needs_heads_and_tokens(run):
    talk = Chat.of(run, "L0H10,L0H14,L0H15", 2, Allowed())
    first, again = dict(talk.answer("12+13=")), dict(talk.answer("12+13="))
    assert first == again and first["intact"] == "25" != first["without"]
    with pytest.raises(BadOption, match="--tokens must be 1 or more"):
        Chat.of(run, None, 0, Allowed())
