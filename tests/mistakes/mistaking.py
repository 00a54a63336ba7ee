"""Make a mistake at the command line, in a folder of its own, and keep what it printed.

A `Mistake` prepares files in a `Place` and returns the arguments of a command, which `made` runs
in this process. What happened is a `Said`: the exit code, the sentence, and the files that the
command left behind.
"""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cached_property, partial
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

from caploc import cli
from caploc.cli import exit_after
from worlds.planted import Planted, write_planted

PACKAGE = Path(cli.__file__).parents[1]
PLANTED = Planted(layers=2, heads=4, needed=2, strengths=(0.2, 0.1), examples=100, seed=3)
SMALL = "--method css --masks 6 --rate 0.3 --examples 10 --limit 10 --controls 2 --device cpu"


class Place:
    """An empty folder in which a mistake is made, and sound things to spoil."""

    def __init__(self, folder: Path, kept: "Kept") -> None:
        self.folder, self.kept = folder, kept

    def model(self) -> Path:
        """A copy of a tiny model, `model`, with its task `model/planted.yaml`."""
        return self.copied(self.kept.model, "model")

    def run(self) -> Path:
        """A copy of a finished run, `run`, of a model that lies elsewhere and is not copied."""
        return self.copied(self.kept.run, "run")

    def neurons(self) -> Path:
        """A copy of a finished `caploc neurons locate`, `neurons`."""
        return self.copied(self.kept.neurons, "neurons")

    def copied(self, source: Path, name: str) -> Path:
        shutil.copytree(source, self.folder / name)
        return Path(name)

    def file(self, name: str, content: str | bytes) -> str:
        """A file of this content; its name."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return name


class Kept:
    """What is made once: a tiny model and finished runs of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def model(self) -> Path:
        write_planted(self.folder / "model", PLANTED)
        return self.folder / "model"

    @cached_property
    def run(self) -> Path:
        task = self.model / "planted.yaml"
        run = self.folder / "run"
        said = typed(["locate", str(self.model), "--task", str(task), *SMALL.split(), "--out",
                      str(run), "--also", str(self.model / "other.yaml")])  # fmt: skip
        assert said.code == 0, said.sentence
        return run

    @cached_property
    def neurons(self) -> Path:
        run = self.folder / "neurons"
        said = typed(["neurons", "locate", "demo", "--task", "demo/addition", "--examples", "5",
                      "--share", "0.01", "--device", "cpu", "--out", str(run)])  # fmt: skip
        assert said.code == 0, said.sentence
        return run


@dataclass(frozen=True)
class Mistake:
    """A way to be wrong: `prepare` spoils something in a place and returns the arguments.

    `slow` ones take a run, or lm-eval's registry, or wait for the network. What `machine` ones are
    told depends on the machine: its memory, the rights of whoever runs them.
    """

    group: str
    what: str
    prepare: Callable[[Place], str | list[str]]
    code: int = 2
    slow: bool = False
    machine: bool = False


MISTAKES: list[Mistake] = []


def mistake(
    group: str, what: str, *, code: int = 2, slow: bool = False, machine: bool = False
) -> Callable[[Callable[[Place], str | list[str]]], None]:
    """Enter a function as a row of the table."""

    def enter(prepare: Callable[[Place], str | list[str]]) -> None:
        MISTAKES.append(Mistake(group, what, prepare, code, slow, machine))

    return enter


# A log's lines of progress: how many there are depends on how long a command took.
PROGRESS = re.compile(r"caploc: \d+:\d\d:\d\d ")


@dataclass(frozen=True)
class Said:
    """How a command ended: exit code, standard output, its sentence, and what it left behind."""

    arguments: tuple[str, ...]
    code: int
    printed: str
    sentence: str
    left: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """As it is typed."""
        return shlex.join(["caploc", *self.arguments])


def typed(arguments: list[str]) -> Said:
    """Run a command in this process, as `caploc` itself does after its start."""
    out, err = StringIO(), StringIO()
    before, sys.argv = sys.argv, ["caploc", *arguments]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            try:
                exit_after(partial(cli.app, prog_name="caploc", standalone_mode=False))
                code = 0
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        sys.argv = before
    lines = [line for line in err.getvalue().splitlines() if not PROGRESS.match(line)]
    return Said(tuple(arguments), code, out.getvalue(), "\n".join(lines).strip())


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in a folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def alone(cache: Path) -> Iterator[None]:
    """With no model fetched, and no package index in reach."""
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        del os.environ[name]
    os.environ |= {
        "CAPLOC_CACHE": str(cache),
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_CONFIG_FILE": os.devnull,
    }
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(cache, ignore_errors=True)


def made(wrong: Mistake, kept: Kept) -> Said:
    """Make a mistake; paths in what was said are as short as the user typed them."""
    with TemporaryDirectory() as given:
        folder = Path(given).resolve()
        with inside(folder), alone(folder.parent / f"{folder.name}-cache"):
            arguments = wrong.prepare(Place(folder, kept))
            words = arguments.split() if isinstance(arguments, str) else arguments
            before = set(folder.rglob("*"))
            said = typed(list(words))
            left = sorted(str(p.relative_to(folder)) for p in set(folder.rglob("*")) - before)
            for path in folder.rglob("*"):  # so that it can be deleted
                if path.is_dir() and not path.is_symlink():
                    path.chmod(0o700)

    def shown(text: str) -> str:
        short = text.replace(str(folder) + "/", "").replace(str(folder), ".")
        return short.replace(str(kept.folder), "/home/me").replace(str(PACKAGE), "caploc")

    return Said(
        tuple(shown(word) for word in said.arguments),
        said.code,
        shown(said.printed),
        shown(said.sentence),
        tuple(left),
    )
