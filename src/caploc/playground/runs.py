"""All runs below a folder, each as a list shows it: read once, and again where a file has changed.

Names are taken from what lies there and never from an address; a folder that cannot be read is
listed with the reason.
"""

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Any

from caploc.contents import RunFile, TaskScores, read_file
from caploc.errors import BadOption, CaplocError
from caploc.folder import (
    COMPARISON,
    ENHANCEMENT,
    ERASURE,
    EVALUATION,
    NEURONS,
    OVERLAP,
    RESULT,
    RUN,
    STUDIES,
    UNIVERSAL,
    rows_file,
)
from caploc.options import ZERO
from caploc.report.card import headline
from caploc.report.templates import REPORT
from caploc.result import Result
from caploc.verdict import make_card
from caploc.wording import Unit, called, inline, unit_of_task

DEEPEST, MOST_FOLDERS = 8, 20_000  # levels below the folder, and folders that are looked at
LONGEST = 200  # characters of a name in the list
SCORES_TOLD = 8  # tasks of an evaluation
STILL = 90  # seconds without a new row after which a run counts as stopped
# What a folder holds, by the file that tells; the first one that is there counts.
KINDS = {
    RESULT: "heads", NEURONS: "neurons", ENHANCEMENT: "neurons tuned", ERASURE: "neurons erased",
    OVERLAP: "neurons, overlap", EVALUATION: "evaluation",
    UNIVERSAL: "universal heads", COMPARISON: "comparison", STUDIES: "studies", RUN: "run",
}  # fmt: skip
Stamp = tuple[tuple[int, int] | None, ...]


@dataclass
class RunEntry:
    """A run as the list of the page shows it; what is not known is empty, or None.

    `scores` are those of the intact model and without the heads, `shown_scores` the same in words;
    `date` is in seconds since 1970; `state` is done, running, stopped or unreadable.
    """

    id: str
    path: str
    kind: str
    date: float
    state: str
    model: str = ""
    task: str = ""
    method: str = ""
    goal: str = ""
    seed: int | None = None
    heads: list[str] = field(default_factory=list)
    scores: list[float | None] = field(default_factory=lambda: [None, None])
    shown_scores: list[str] = field(default_factory=lambda: ["", ""])
    verdict: str = ""
    rows: int | None = None
    report: bool = False


class RunIndex:
    """The runs below a folder. For several threads."""

    def __init__(self, root: Path) -> None:
        self.root, self.lock = root, Lock()
        self.folders: dict[str, Path] = {}
        self.read: dict[Path, tuple[Stamp, RunEntry]] = {}

    def list(self) -> list[RunEntry]:
        """Return every run there is now, the latest first."""
        with self.lock:
            found = {identify(self.root, folder): folder for folder in find_runs(self.root)}
            self.folders = found
            entries = [self.entry(name, folder) for name, folder in found.items()]
        return sorted(entries, key=lambda entry: -entry.date)

    def folder(self, name: str) -> Path:
        """Return the folder of a run; raises BadOption if none has this name."""
        if name not in self.folders:
            self.list()
        if name not in self.folders:
            raise BadOption("There is no such run here (any more); go back to the list of runs.")
        return self.folders[name]

    def find(self, name: str) -> RunEntry:
        """Return a run as it is now; raises BadOption if none has this name."""
        self.folder(name)
        return next(entry for entry in self.list() if entry.id == name)

    def entry(self, name: str, folder: Path) -> RunEntry:
        """Describe a run, read anew only if a file of it has changed."""
        stamp = stamp_of(folder, *KINDS, REPORT)
        if folder not in self.read or self.read[folder][0] != stamp:
            self.read[folder] = stamp, describe_entry(name, self.root, folder)
        entry = self.read[folder][1]
        if entry.kind == "run" and entry.state != "unreadable":
            entry.state = "running" if is_running(folder) else "stopped"
        return entry


def find_runs(root: Path) -> Iterator[Path]:
    """Yield the folders below and at `root` that hold a file of a run; no link is followed."""
    waiting, seen = [(root, 0)], 0
    while waiting and seen < MOST_FOLDERS:
        folder, depth = waiting.pop()
        seen += 1
        try:
            with os.scandir(folder) as found:
                inside = list(found)
        except OSError:
            continue
        names = {each.name for each in inside if each.is_file(follow_symlinks=False)}
        if names & set(KINDS):
            yield folder
        if depth < DEEPEST:
            waiting += [
                (folder / each.name, depth + 1)
                for each in inside
                if each.is_dir(follow_symlinks=False) and not each.name.startswith(".")
            ]


def identify(root: Path, folder: Path) -> str:
    """Return a name for addresses: a digest, as a folder may be called anything."""
    return blake2b(os.fsencode(folder.relative_to(root)), digest_size=8).hexdigest()


def stamp_of(folder: Path, *names: str) -> Stamp:
    """Return when each file was last written, and its size; None for one that is not there."""

    def stamp(name: str) -> tuple[int, int] | None:
        try:
            found = os.lstat(folder / name)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size

    return tuple(map(stamp, names))


def describe_entry(name: str, root: Path, folder: Path) -> RunEntry:
    """Read what a run says of itself; what is wrong with it stands in the place of its verdict."""
    kind = next(kind for file, kind in KINDS.items() if (folder / file).is_file())
    shown = inline(folder.relative_to(root).as_posix())
    dates = [part[0] / 1e9 for part in stamp_of(folder, *KINDS) if part]
    entry = RunEntry(
        id=name,
        path=inline(root.absolute().name) if shown == "." else shown[-LONGEST:],
        kind=kind,
        date=max(dates, default=0.0),
        state="done",
        report=(folder / REPORT).is_file(),
    )
    try:
        if (folder / RUN).is_file():
            take_plan(entry, read_file(folder / RUN, RunFile).study)
        if kind == "heads":
            take_result(entry, read_file(folder / RESULT, Result))
        if kind == "evaluation":
            take_scores(entry, read_file(folder / EVALUATION, TaskScores))
    except CaplocError as error:
        entry.state, entry.verdict = "unreadable", inline(error)
    except Exception as error:  # one strange folder must not take the list of all with it
        entry.state, entry.verdict = "unreadable", f"It cannot be shown ({type(error).__name__})."
    return entry


def take_plan(entry: RunEntry, study: Mapping[str, Any]) -> None:
    """Say what a run was told to do, as far as its file tells."""

    def text(value: Any) -> str:
        return called(value)[:LONGEST] if isinstance(value, str) else ""

    def part(value: Any, name: str) -> Any:
        return value.get(name) if isinstance(value, dict) else None

    settings, tasks = study.get("settings"), study.get("tasks")
    entry.model = text(part(study.get("model"), "name"))
    entry.task = text(study.get("task"))
    if not entry.task and isinstance(tasks, list):
        entry.task = ", ".join(map(text, tasks[:8]))[:LONGEST]
    entry.method, entry.goal = text(study.get("method")), text(part(settings, "goal"))
    seed = part(settings, "seed")
    entry.seed = seed if isinstance(seed, int) else None


def take_result(entry: RunEntry, result: Result) -> None:
    """Say what a run has found."""
    card = make_card(result)
    own = card.rows[0]
    entry.model, entry.task = card.model[:LONGEST], called(result.task.name)[:LONGEST]
    entry.method, entry.seed = inline(result.method.name)[:LONGEST], result.seed
    entry.goal = inline(result.search.goal or entry.goal)[:LONGEST]
    entry.heads = result.top[:1000]
    entry.scores = [own.intact, own.without]
    unit = Unit(own.unit)
    entry.shown_scores = ["" if each is None else unit.score(each) for each in entry.scores]
    entry.verdict = headline(card)[:1000]
    entry.rows = result.cost.rows


def take_scores(entry: RunEntry, found: TaskScores) -> None:
    """Say what an evaluation has given: each task's score, and with heads knocked out."""
    tasks = found.tasks[:SCORES_TOLD]
    how = "" if found.mode == ZERO else f" --mode {found.mode}"
    entry.model, entry.method = called(found.model)[:LONGEST], f"evaluate{how}"
    entry.task = ", ".join(called(task.name) for task in tasks)[:LONGEST]
    entry.heads, entry.rows = found.heads[:1000], found.cost.rows
    told = [
        ["" if each is None else unit_of_task(task).score(each) for each in task.scores]
        for task in tasks
    ]
    entry.verdict = ", ".join(
        " → ".join(filter(None, [f"{called(task.name)} {pair[0]}", pair[1]]))
        for task, pair in zip(tasks, told, strict=True)
    )[:1000]
    if len(found.tasks) == 1:
        entry.scores, entry.shown_scores = list(tasks[0].scores), told[0]


def is_running(folder: Path) -> bool:
    """Tell whether a run seems to go on: it has written something a short while ago."""
    rows = rows_file(folder)
    written = [part[0] for part in stamp_of(rows.parent, rows.name, f"{rows.name}-wal") if part]
    return time.time() - max(written, default=0) / 1e9 < STILL
