"""Run folders that an enemy made: nothing outside of them changes, no code runs, nothing hangs.

Each folder is a finished run with one thing spoilt, on which every command that opens a run is
typed, in this process. A folder beside it stands for the user's files.
"""

import shutil
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "fuzz"), str(TESTS / "mistakes")]

import hostile_folders as hostile  # noqa: E402
from mistaking import SMALL, Kept, typed  # noqa: E402

from caploc.cli import UNFORESEEN  # noqa: E402
from caploc.errors import ModelRefused  # noqa: E402
from caploc.models.loading import Weights  # noqa: E402

pytestmark = pytest.mark.attacks
SECONDS = 60  # after which a command hangs
COMMANDS = {
    "doctor": "doctor run",
    "rows": "rows run --to out.csv --quiet",
    "report": "report run",
    "curve": "curve run --most 1 --limit 3 --quiet",
    "interactions": "interactions run --quiet",
    "universal": "universal run --quiet",
    "compare": "compare run --out compared",
    "export": "export run --as heads --to heads.json",
    "repair": "doctor run --repair",
    "locate": "locate {model} --task {model}/planted.yaml --also {model}/other.yaml "
    f"--out run --quiet {SMALL}",
}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A tiny model and a finished run of it."""
    made = Kept(tmp_path_factory.mktemp("kept"))
    assert made.run
    return made


@contextmanager
def time_limit(seconds):
    """Fail what does not come back."""

    def fail(*_):
        raise AssertionError(f"It did not end within {seconds} seconds.")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def attack(kept, place, monkeypatch, spoil, names=tuple(COMMANDS)):
    """Spoil a copy of a run, type the commands, and look at what is outside."""
    monkeypatch.chdir(place)
    victim = hostile.make_victim(place / "victim")
    said = {}
    for name in names:
        shutil.rmtree(place / "run", ignore_errors=True)
        shutil.copytree(kept.run, place / "run")
        spoil(place / "run", victim)
        before = hostile.snapshot(victim)
        with time_limit(SECONDS):
            said[name] = typed(COMMANDS[name].format(model=kept.model).split())
        assert hostile.snapshot(victim) == before, name
        assert said[name].code in (0, 1, 2), said[name]
        assert UNFORESEEN not in said[name].sentence, (name, said[name].sentence)
        if said[name].code:
            assert len(said[name].sentence.splitlines()) <= 3 or name in ("doctor", "repair")
        outside = {path.name for path in place.iterdir()}
        assert outside <= {"victim", "run", "out.csv", "compared", "heads.json"}, outside
    shutil.rmtree(place / "run")
    return said


@pytest.fixture
def no_weights(monkeypatch):
    """End commands where they would read weights; the store is opened before."""

    def end(self):
        raise ModelRefused("Here the weights would be read.")

    monkeypatch.setattr(Weights, "load", end)


@pytest.mark.parametrize("kind", hostile.KINDS)
@pytest.mark.parametrize("file", hostile.FILES)
def test_whatever_lies_in_a_files_place(kept, tmp_path, monkeypatch, no_weights, file, kind):
    """Three commands on each folder, every command on each file and on each kind in turn."""
    first = hostile.FILES.index(file) + list(hostile.KINDS).index(kind)
    chosen = [list(COMMANDS)[(first + step) % len(COMMANDS)] for step in (0, 3, 6)]

    def spoil(run, victim):
        hostile.KINDS[kind](run / file, victim)

    attack(kept, tmp_path, monkeypatch, spoil, chosen)


@pytest.mark.parametrize("name", hostile.DATABASES)
def test_whatever_sqlite_finds(kept, tmp_path, monkeypatch, name):
    """With the model: the commands go on to read and write rows where they can."""
    spoil = hostile.DATABASES[name]
    said = attack(
        kept, tmp_path, monkeypatch, lambda run, victim: spoil(run / "rows.sqlite", victim)
    )
    if name.startswith(("journal_that_deletes", "journal_that_makes", "log_that", "links")):
        for command in ("curve", "locate"):
            assert said[command].code in (1, 2) and "rows.sqlite-" in said[command].sentence
        assert said["doctor"].code == 1


@pytest.mark.parametrize("name", hostile.CONTENTS)
def test_whatever_a_file_says(kept, tmp_path, monkeypatch, no_weights, name):
    attack(kept, tmp_path, monkeypatch, lambda run, _: hostile.put(run, *hostile.CONTENTS[name]))


@pytest.mark.parametrize("name", ["rows.sqlite", *hostile.SIDECARS, ".lock", "studies.json"])
@pytest.mark.parametrize("kind", [name for name in hostile.KINDS if name.startswith("link")])
def test_links_beside_rows_that_studies_share(kept, tmp_path, monkeypatch, no_weights, name, kind):
    """A study of a folder of studies, whose rows lie one folder up."""

    def spoil(run, victim):
        shutil.copytree(run, run / "one")
        (run / "one" / "rows.sqlite").unlink()
        (run / "studies.json").write_text('{"schema": 1, "studies": ["one"]}')
        hostile.KINDS[kind](run / name, victim)

    monkeypatch.setitem(COMMANDS, "curve", "curve run/one --most 1 --limit 3 --quiet")
    monkeypatch.setitem(
        COMMANDS, "locate", COMMANDS["locate"].replace("--out run", "--out run/one")
    )
    attack(kept, tmp_path, monkeypatch, spoil, ("doctor", "rows", "curve", "locate", "repair"))
