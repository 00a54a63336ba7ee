"""The processes below this one: who they are, how much memory they hold, and their end."""

import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROCESSES = Path("/proc")
PAGE = os.sysconf("SC_PAGESIZE")


@dataclass(frozen=True, slots=True)
class Relative:
    """A process: its number, its parent's, and the memory it holds, in bytes."""

    process: int
    parent: int
    resident: int


def everyone() -> list[Relative]:
    """Every process on the machine that can be seen."""
    if (PROCESSES / "self").exists():
        return from_proc()
    asked = ["ps", "-A", "-o", "pid=,ppid=,rss="]
    lines = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.splitlines()
    numbers = [[int(word) for word in line.split()] for line in lines]
    return [Relative(process, parent, kib * 1024) for process, parent, kib in numbers]


def from_proc() -> list[Relative]:
    """`everyone`, on Linux."""
    found = []
    for name in filter(str.isdigit, os.listdir(PROCESSES)):
        with suppress(OSError):  # it has just ended
            # The program's name stands in brackets and may itself hold any character.
            fields = (PROCESSES / name / "stat").read_text("latin-1").rpartition(")")[2].split()
            found.append(Relative(int(name), int(fields[1]), int(fields[21]) * PAGE))
    return found


def below(ancestor: int) -> list[Relative]:
    """All descendants of a process."""
    children: dict[int, list[Relative]] = {}
    for each in everyone():
        children.setdefault(each.parent, []).append(each)
    found: list[Relative] = []
    open_parents = [ancestor]
    while open_parents:
        more = children.pop(open_parents.pop(), [])
        found += more
        open_parents += [each.process for each in more]
    return found


def sweep() -> None:
    """End all that is left below this process, and wait until it is gone.

    As its reaper, this process inherits what daemons leave behind (on Linux).
    """
    while any_left():
        for each in below(os.getpid()):
            kill(each.process)


def any_left() -> bool:
    """Take note of children that ended; whether there are others."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
        return True
    return False


def kill(process: int) -> None:
    """Kill a process and its group; nothing happens if it is gone."""
    for end in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            end(process, signal.SIGKILL)
