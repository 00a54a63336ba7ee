"""What the environment says of other processes, and how a command takes it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from caploc.errors import BadOption
from caploc.process import TOLD, launched, processes

ALL = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}


@pytest.fixture
def told(monkeypatch):
    """Say something in the environment, and nothing else of torchrun's."""

    def tell(said):
        for name in TOLD:
            monkeypatch.delenv(name, raising=False)
        for name, value in said.items():
            monkeypatch.setenv(name, value)

    return tell


@pytest.mark.parametrize("missing", [None, *TOLD])
def test_a_process_is_one_of_several_where_all_is_said(told, missing):
    told({name: value for name, value in ALL.items() if name != missing})
    assert (processes(), launched()) == ((2, True) if missing is None else (1, False))


def test_a_single_process_is_alone(told):
    told(ALL | {"WORLD_SIZE": "1"})
    assert not launched()


def test_a_size_that_is_no_number_is_refused(told):
    told(ALL | {"WORLD_SIZE": "two"})
    with pytest.raises(BadOption, match="WORLD_SIZE is 'two'.*start caploc by torchrun"):
        launched()


@pytest.mark.parametrize(
    ("said", "code", "words"),
    [
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "0"}, 0, ""),
        (ALL | {"WORLD_SIZE": "two"}, 2, "caploc: WORLD_SIZE is 'two'"),
    ],
)
def test_a_command_says_it_in_one_sentence(said, code, words):
    kept = {name: value for name, value in os.environ.items() if name not in TOLD}
    command = [str(Path(sys.executable).with_name("caploc")), "--version"]
    done = subprocess.run(command, env=kept | said, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert done.stderr.startswith(words) and "Traceback" not in done.stderr
    assert done.stdout.startswith("caploc ") == (code == 0)
