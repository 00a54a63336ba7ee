"""Runs of the command line that are disturbed, and what they must come to all the same."""

import json
import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

CAPLOC = Path(sys.executable).with_name("caploc")
LIMIT = 400.0  # seconds for anything; the machine may be busy
LOOK = 0.02  # seconds between two looks
# What a command imports. A server imports it once, and forks a process for each run: the same
# code in a process of its own, without ten seconds of reading libraries.
LIBRARIES = [
    "caploc.cli", "caploc.studies", "caploc.console", "lm_eval.tasks", "datasets", "transformers",
    "transformers.models.llama.modeling_llama", "disturbance",
]  # fmt: skip
ROWS = """
SELECT questions.digest, hex(mask), example, number, outcome, item, responses, plain_tokens
FROM rows LEFT JOIN questions ON questions.id = rows.question ORDER BY 1, 2, 3
"""


def servant(command: list[str], errors: Path) -> None:
    """The command line, in a process that was forked for it."""
    with errors.open("w") as file:
        os.dup2(file.fileno(), 2)
    with open(os.devnull, "w") as file:
        os.dup2(file.fileno(), 1)
    sys.argv = ["caploc", *command]
    from caploc.cli import main

    main()


def forked() -> Any:
    """The context whose server has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LIBRARIES)
    return context


@dataclass(frozen=True)
class Job:
    """What is run: the arguments of the command, without its folder."""

    arguments: tuple[str, ...]
    errors: Path  # a folder for what runs say

    def adding(self, *more: str) -> "Job":
        """The same with more arguments."""
        return replace(self, arguments=(*self.arguments, *more))

    def command(self, folder: Path) -> list[str]:
        return [*self.arguments, "--quiet", "--out", str(folder)]

    def start(self, folder: Path) -> "Forked":
        """Start it, quickly."""
        errors = self.errors / "said.txt"
        errors.unlink(missing_ok=True)
        process = forked().Process(target=servant, args=(self.command(folder), errors))
        process.start()
        return Forked(process, errors)

    def finish(self, folder: Path) -> None:
        """Run it to its end."""
        process = self.start(folder)
        _, said = process.communicate(LIMIT)
        assert process.returncode == 0, (process.returncode, said)

    def open(
        self, folder: Path, before: tuple[str, ...] = (), **environment: str
    ) -> subprocess.Popen[str]:
        """Start the installed command itself, as a shell does."""
        return subprocess.Popen(
            [*before, str(CAPLOC), *self.command(folder)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=os.environ | environment,
        )


@dataclass(frozen=True)
class Forked:
    """A process of the server, with the interface of one that a shell would start."""

    process: BaseProcess
    errors: Path

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def poll(self) -> int | None:
        return self.process.exitcode

    def kill(self) -> None:
        self.process.kill()

    def communicate(self, timeout: float = LIMIT) -> tuple[str, str]:
        self.process.join(timeout)
        assert self.process.exitcode is not None, "it does not end"
        return "", self.errors.read_text() if self.errors.exists() else ""


@dataclass(frozen=True)
class Outcome:
    """What a run came to: every row, and the files that follow from them."""

    rows: list[tuple[Any, ...]]
    result: dict[str, Any]
    answers: Any

    @classmethod
    def of(cls, folder: Path) -> "Outcome":
        result = json.loads((folder / "result.json").read_text())
        for name in ("seconds", "forward_tokens"):
            assert result["cost"].pop(name) >= 0
        result["command"] = result["command"].replace(str(folder), "OUT")
        return cls(stored(folder), result, json.loads((folder / "answers.json").read_text()))


def stored(folder: Path) -> list[tuple[Any, ...]]:
    """Every row, with its question's digest; what took time is left out."""
    with closing(sqlite3.connect(folder / "rows.sqlite")) as database:
        return database.execute(ROWS).fetchall()


def wait_until(true: Callable[[], bool], process: Any = None, limit: float = LIMIT) -> bool:
    """Wait for something to be; False if the process ended before."""
    end = time.monotonic() + limit
    while not true():
        if process is not None and process.poll() is not None:
            return true()
        assert time.monotonic() < end, "waited in vain"
        time.sleep(LOOK)
    return True


def compare(folder: Path, truth: Outcome) -> None:
    """A run that was disturbed and has ended came to the same, in a sound folder."""
    found = Outcome.of(folder)
    assert found.rows == truth.rows
    assert found.result == truth.result
    assert found.answers == truth.answers
    with closing(sqlite3.connect(folder / "rows.sqlite")) as database:
        assert list(database.execute("PRAGMA integrity_check")) == [("ok",)]
    assert not list(folder.rglob("*.part"))
    shutil.rmtree(folder)
