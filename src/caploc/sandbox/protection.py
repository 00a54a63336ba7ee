"""What this machine puts between a program that a model wrote and its user."""

import os
from dataclasses import dataclass
from functools import cache
from typing import Any

from caploc.errors import RunFailed
from caploc.sandbox.limits import Limits
from caploc.sandbox.walls import Walls, wishes
from caploc.sandbox.worker import Worker, WorkerFailed

NAMESPACES = tuple(
    f"{kind} namespace" for kind in ("user", "pid", "net", "mount", "ipc", "uts", "cgroup")
)
# Always there, on every system that can run programs at all.
ALWAYS = ("own process", "own session", "resource limits", "empty environment", "no open files")
# A fact that a worker found not to hold → what that means.
MISSING = {
    "offline": "the network can be reached",
    "hidden": "files that the user may read can be read",
    "unreached": "other processes of the user can be signalled",
    "memory": "memory is only counted now and then",
    "unprivileged": "nothing stops set-user-id programs",
}


@dataclass(frozen=True, slots=True)
class Protection:
    """What stands around a program here.

    Attributes:
        active: the mechanisms in use.
        missing: what they leave open, as a person would say it; empty where all of them work.
        statement: both, in one sentence.
    """

    active: tuple[str, ...]
    missing: tuple[str, ...]
    statement: str


def protection() -> Protection:
    """What this machine gives, tried once by a worker that is started for it."""
    try:
        walls, facts = tried()
    except RunFailed as error:
        return Protection((), ("programs cannot be run",), str(error))
    missing = tuple(meaning for fact, meaning in MISSING.items() if not facts[fact])
    return Protection(active(walls, facts), missing, statement(walls, missing))


def active(walls: Walls, facts: dict[str, Any]) -> tuple[str, ...]:
    """The mechanisms in use."""
    optional = {
        "system-call filter": walls.filter,
        "Landlock": walls.landlock,
        "no_new_privs": facts["unprivileged"],
        "own user id": facts["lent"],
    }
    named = NAMESPACES if walls.namespaces else ()
    return (*named, *(name for name, used in optional.items() if used), *ALWAYS)


def statement(walls: Walls, missing: tuple[str, ...]) -> str:
    """One sentence: how programs run here, and what they could still do."""
    around = [
        *(["namespaces"] if walls.namespaces else []),
        *(["a system-call filter"] if walls.filter else []),
        *(["Landlock"] if walls.landlock else []),
        "resource limits",
    ]
    said = f"Model-written code runs in processes of its own behind {listed(around)}"
    if not missing:
        return f"{said}, with no network and no files but Python's."
    return f"{said}, but {listed(missing)}; for more, use a container (docs/security.md)."


def listed(parts: tuple[str, ...] | list[str]) -> str:
    """Words in a row: a, b and c."""
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last


def strongest() -> Walls:
    """The strongest walls that can be built here.

    Raises:
        RunFailed: if no program can be run at all.
    """
    return tried()[0]


@cache
def tried() -> tuple[Walls, dict[str, Any]]:
    """The strongest walls that a worker could build, and what it found them to hold.

    Raises:
        RunFailed: if no worker could start.
    """
    if not hasattr(os, "fork"):
        raise RunFailed("Programs that a model wrote cannot be run here: this system has no fork.")
    failure = ""
    for wish in wishes():
        try:
            worker = Worker(Limits(), wish)
        except WorkerFailed as error:
            failure = str(error)
            continue
        worker.stop()
        return wish, worker.facts
    raise RunFailed(f"Programs that a model wrote cannot be run here: {failure}.")
