"""`caploc models fetch` and `caploc models`: what they print, and GGUF through whole commands."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from caploc.cli import app
from caploc.errors import FolderTaken
from caploc.finished import FinishedRun
from caploc.naming import PRETRAINED, model_folder
from worlds.ggufs import write_gguf  # noqa: E402  (after the path is set)
from worlds.planted import Planted, write_planted

SMALL = "--method css --masks 6 --rate 0.3 --examples 8 --limit 8 --controls 0 --device cpu".split()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CAPLOC_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def task(folder):
    """A task that any model can be asked, and no model need be able to do."""
    write_planted(folder / "planted", Planted(layers=2, heads=4, needed=2, strengths=(0.2, 0.1)))
    return str(folder / "planted" / "planted.yaml")


def run(*arguments):
    found = CliRunner().invoke(app, [*map(str, arguments)])
    if found.exception and not isinstance(found.exception, SystemExit):
        raise found.exception
    assert found.exit_code == 0, found.output
    return found.stdout


def test_models_lists_names_and_what_is_here(folder):
    model_folder("smollm2").mkdir(parents=True)
    rows = {row["name"]: row for row in json.loads(run("models", "--json"))}
    assert list(rows) == [*PRETRAINED]
    assert rows["smollm2"]["here"] is True
    assert rows["gemma3-270m"]["here"] is False
    assert "https://ai.google.dev/gemma/terms" in rows["gemma3-270m"]["licence"]
    printed = " ".join(run("models").split())
    assert "smollm2" in printed and "238 MB" in printed and str(folder / "cache") in printed


def test_all_models_are_fetched_by_one_word(folder, monkeypatch):
    fetched = []
    monkeypatch.setattr("caploc.models.fetching.fetch_model", lambda name, _: fetched.append(name))
    run("models", "fetch", "all", "--quiet")
    assert fetched == list(PRETRAINED)


@pytest.mark.slow
def test_a_run_on_gguf_is_noted_resumed_asked_and_exported(folder, task):
    write_gguf(folder / "tiny.gguf")
    command = ["locate", folder / "tiny.gguf", "--task", task, *SMALL, "--out", "run"]
    first = json.loads(run(*command, "--json"))
    assert json.loads(run(*command, "--json"))["heads"] == first["heads"]
    with pytest.raises(FolderTaken, match=r"another run \(.*model.name '.*', not '.*planted'"):
        run("locate", folder / "planted", "--task", task, *SMALL, "--out", "run")
    assert FinishedRun.read(Path("run")).engine().loaded.fingerprint
    run("export", "run", "--heads", "L0H1", "--to", "cut")
    shutil.rmtree("run")
    run("evaluate", "cut", "--task", task, "--limit", 4, "--device", "cpu")
    run("models", "tiny.gguf", "--device", "cpu", "--json")
    studies = (
        f'out = "many"\n[[models]]\nname = "tiny.gguf"\n[[tasks]]\nname = "{task}"\nexamples = 8\n'
    )
    Path("studies.toml").write_text(studies + "controls = 0\nbudget = 320\n")
    run("run", "studies.toml")
