"""Commands on pages and in help: each is parsed as it would be; what runs anywhere is run."""

import re
import shlex
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from caploc import folder, naming
from caploc.cli import app, options
from caploc.folder import RESULT
from worlds import DEMO

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES += sorted((ROOT / "docs" / "tutorials").glob("*.py"))
TYPER = typer.main.get_command(app)
BLOCK = re.compile(r"^```\w*\n(.*?)^```|((?:^(?: {4}|# {5})[^\n]*\n)+)", re.M | re.S)
COMMAND = re.compile(r"^[# ]*(?:\$ )?(?:\S+/bin/)?caploc (.*)$", re.M)


def commands(text: str) -> list[str]:
    """What stands behind `caploc` in the blocks of a text, lines that go on joined."""
    blocks = ["".join(filter(None, found)) for found in BLOCK.findall(text)]
    return [line for block in blocks for line in COMMAND.findall(re.sub(r"\\\n\s*", "", block))]


def helps(group):
    """The help of every command that does something."""
    for command in group.commands.values():
        yield from helps(command) if hasattr(command, "commands") else [command.help]


TYPED = [(page.relative_to(ROOT), line) for page in PAGES for line in commands(page.read_text())]
TYPED += [(Path("--help"), line) for text in helps(TYPER) for line in commands(f"{text}\n")]


def parsed(words: list[str]):
    """The command that these words call, with its values."""
    command, above = TYPER, None
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        name, *words = words
        above = command.make_context("caploc", [], parent=above, resilient_parsing=True)
        command = command.commands[name]
    return command, command.make_context("caploc", words, parent=above)


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    """Names of lm-eval's tasks are read once, and kept apart from the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def test_pages_hold_commands():
    for name, count in (("README.md", 8), ("--help", 40)):
        assert sum(page.name == name for page, _ in TYPED) >= count


@pytest.mark.parametrize(("page", "line"), TYPED, ids=lambda each: str(each)[:60])
def test_a_command_on_a_page_has_options_and_tasks_that_exist(page, line, monkeypatch):
    monkeypatch.setattr(options, "is_file", lambda path: path.name == RESULT)  # runs that are named
    monkeypatch.setattr(folder, "read_json", lambda path: {"top": ["L0H1"]})
    monkeypatch.setattr(options, "read_pairs", lambda name: [])
    monkeypatch.setattr(options, "is_pairs", lambda name: name.endswith(".jsonl"))
    there = naming.is_file
    monkeypatch.setattr(
        naming, "is_file", lambda path: path.suffix in (".yaml", ".gguf") or there(path)
    )
    words = shlex.split(line, comments=True)
    if words[0] == "--install-completion":
        return
    parsed(words)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # peft's
def test_commands_that_need_nothing_run_as_they_stand(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = f"locate {DEMO} --task demo/addition --method one-shot --examples 20 --limit 60"
    lines = [f"{found} --controls 0 --quick --quiet --out runs/addition"]
    lines += [
        line
        for line in commands((ROOT / "docs" / "export.md").read_text())
        if "runs/addition" in line
    ]
    lines += ["models", "tasks words/"]
    assert len(lines) >= 6
    for line in lines:
        ended = CliRunner().invoke(app, shlex.split(line, comments=True))
        assert ended.exit_code == 0, (line, ended.output, ended.exception)
    assert (tmp_path / "addition-cut-2" / "model.safetensors").exists()
