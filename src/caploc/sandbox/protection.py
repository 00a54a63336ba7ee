"""What this machine puts between a program that a model wrote and its user."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

from caploc.errors import BadOption, RunFailed
from caploc.sandbox.protocol import Limits, Profile, list_profiles
from caploc.sandbox.worker import Worker, WorkerFailed

# "full": namespaces and the filter, and every way out that is tried is closed. "weak": the best
# that the machine gives.
Isolation = Literal["full", "weak"]
NAMESPACES = tuple(
    f"{kind} namespace" for kind in ("user", "pid", "net", "mount", "ipc", "uts", "cgroup")
)
# Always there, on every system that can run programs at all.
ALWAYS = ("own process", "own session", "resource limits", "empty environment", "no open files")
# Capability that a rehearsal tries → what is said of it if it is out of reach, and if it is not.
CAPABILITIES = {
    "network": ("the network", "the network can be reached"),
    "sockets": ("local sockets", "local sockets of other programs can be reached"),
    "reading": ("the user's files", "files that the user may read can be read"),
    "stat": ("names and dates of files", "names, sizes and dates of files can be seen"),
    "writing": ("writing files", "files that the user may write can be written"),
    "attributes": ("modes and attributes", "modes, dates and attributes of files can be changed"),
    "library": ("Python's library", "Python's own library can be changed"),
    "signals": ("signals", "other processes of the user can be signalled"),
    "processes": ("other processes' memory", "other processes of the user can be looked into"),
    "kernel": ("rare system calls", "rarely used parts of the kernel can be reached"),
    "rights": ("more rights", "nothing stops set-user-id programs"),
    "memory": ("memory beyond the limit", "memory is only counted now and then"),
}
REMEDY = (
    "Run caploc in a virtual machine or container that allows user namespaces, on Ubuntu have "
    "kernel.apparmor_restrict_unprivileged_userns set to 0, or accept it by name: "
    "--isolation weak (docs/security.md)."
)
required: Isolation = "full"


@dataclass(frozen=True, slots=True)
class Protection:
    """What stands around a program here."""

    active: tuple[str, ...]  # the mechanisms in use
    out_of_reach: tuple[str, ...]  # what a rehearsal tried in that isolation and could not have
    missing: tuple[str, ...]  # what it could, as a person would say it; empty in full isolation
    full: bool  # whether isolation is full
    statement: str  # all of it, in one or two sentences


class Explored(NamedTuple):
    """The strongest profile that this machine gives, and why it is not a stronger one."""

    profile: Profile
    active: tuple[str, ...]
    out_of_reach: tuple[str, ...]
    missing: tuple[str, ...]
    obstacle: str


def require_isolation(isolation: str) -> None:
    """Set what every sandbox of this process requires that does not say itself.

    Only who runs the process may say "weak": no run folder, study or task file can.

    Raises:
        BadOption: if it is neither "full" nor "weak".
    """
    global required
    if isolation not in ("full", "weak"):
        raise BadOption(f"--isolation must be full or weak; got {isolation!r}.")
    required = "full" if isolation == "full" else "weak"


def protection() -> Protection:
    """Say what this machine gives, tried once by a worker that is started for it."""
    try:
        profile, active, out_of_reach, missing, obstacle = explore()
    except RunFailed as error:
        return Protection((), (), ("programs cannot be run",), False, str(error))
    around = [
        *(["namespaces"] if profile.namespaces else []),
        *(["a system-call filter"] if profile.filter else []),
        *(["Landlock"] if profile.landlock else []),
        "resource limits",
    ]
    said = f"Model-written code runs in processes of its own behind {enumerate_words(around)}"
    if out_of_reach:
        said += f"; tried there and out of reach: {enumerate_words(out_of_reach)}"
    said += "."
    if not profile.full:
        refused = "" if required == "weak" else " So it is refused."
        said += f" But {enumerate_words(missing)} ({obstacle}).{refused} {REMEDY}"
    return Protection(active, out_of_reach, missing, profile.full, said)


def enumerate_words(parts: Sequence[str]) -> str:
    """Join words in a row: a, b and c."""
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last


def choose_profile(isolation: Isolation | None = None) -> Profile:
    """Return the strongest profile that can be had here.

    Args:
        isolation: what is required; None for what `require_isolation` said.

    Raises:
        BadOption: if it is weaker than required.
        RunFailed: if no program can be run at all.
    """
    found = explore()
    if not found.profile.full and (isolation or required) != "weak":
        raise BadOption(
            "Programs that a model wrote are not run here, because isolation would be weak "
            f"({found.obstacle}): {enumerate_words(found.missing)}. {REMEDY}"
        )
    return found.profile


@cache
def explore() -> Explored:
    """Start a worker by each profile, strongest first, until one holds; else raise RunFailed."""
    if not hasattr(os, "fork"):
        raise RunFailed("Programs that a model wrote cannot be run here: this system has no fork.")
    obstacle = failure = ""
    for profile in list_profiles():
        try:
            worker = Worker(Limits(), profile)
        except WorkerFailed as error:
            failure = str(error)
            obstacle = obstacle or failure
            continue
        worker.stop()
        ways = worker.seen["open_ways"]
        optional = {
            "system-call filter": profile.filter,
            "Landlock": profile.landlock,
            "no_new_privs": not ways["rights"],
            "own user id": worker.seen["granted"],
        }
        used = (name for name, is_used in optional.items() if is_used)
        return Explored(
            profile,
            (*(NAMESPACES if profile.namespaces else ()), *used, *ALWAYS),
            tuple(name for key, (name, _) in CAPABILITIES.items() if not ways[key]),
            tuple(said for key, (_, said) in CAPABILITIES.items() if ways[key]),
            obstacle or "this system has no namespaces and no filter that caploc knows",
        )
    raise RunFailed(f"Programs that a model wrote cannot be run here: {failure}.")
