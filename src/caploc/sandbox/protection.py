"""What this machine puts between a program that a model wrote and its user."""

import os
from dataclasses import dataclass
from functools import cache

from caploc.errors import BadOption, RunFailed
from caploc.sandbox.isolation import Isolation, Profile, profiles
from caploc.sandbox.limits import Limits
from caploc.sandbox.worker import Worker, WorkerFailed

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


@dataclass(frozen=True, slots=True)
class Protection:
    """What stands around a program here.

    Attributes:
        active: the mechanisms in use.
        out_of_reach: what a rehearsal tried in that isolation and could not have.
        missing: what it could, as a person would say it; empty in full isolation.
        full: whether isolation is full.
        statement: all of it, in one or two sentences.
    """

    active: tuple[str, ...]
    out_of_reach: tuple[str, ...]
    missing: tuple[str, ...]
    full: bool
    statement: str


@dataclass(frozen=True, slots=True)
class Explored:
    """The strongest profile that this machine gives.

    Attributes:
        profile: that profile.
        open_ways: for each of `CAPABILITIES` the ways to it that were open.
        granted: whether programs have users of their own.
        obstacle: why it is not a stronger one; empty if it is the strongest there is.
    """

    profile: Profile
    open_ways: dict[str, list[str]]
    granted: bool
    obstacle: str

    @property
    def out_of_reach(self) -> tuple[str, ...]:
        """What cannot be had."""
        return tuple(name for key, (name, _) in CAPABILITIES.items() if not self.open_ways[key])

    @property
    def missing(self) -> tuple[str, ...]:
        """What can be had, as a person would say it."""
        return tuple(said for name, (_, said) in CAPABILITIES.items() if self.open_ways[name])


LEVELS: dict[str, Isolation] = {"full": "full", "weak": "weak"}
required: Isolation = "full"


def require_isolation(isolation: str) -> None:
    """Set what every sandbox of this process requires that does not say itself.

    Only who runs the process may say "weak": no run folder, study or task file can.

    Raises:
        BadOption: if it is neither "full" nor "weak".
    """
    global required
    if isolation not in LEVELS:
        raise BadOption(f"--isolation must be full or weak; got {isolation!r}.")
    required = LEVELS[isolation]


def protection() -> Protection:
    """Say what this machine gives, tried once by a worker that is started for it."""
    try:
        found = explore()
    except RunFailed as error:
        return Protection((), (), ("programs cannot be run",), False, str(error))
    full, statement = found.profile.full, describe(found)
    return Protection(mechanisms(found), found.out_of_reach, found.missing, full, statement)


def mechanisms(found: Explored) -> tuple[str, ...]:
    """List the mechanisms in use."""
    optional = {
        "system-call filter": found.profile.filter,
        "Landlock": found.profile.landlock,
        "no_new_privs": not found.open_ways["rights"],
        "own user id": found.granted,
    }
    named = NAMESPACES if found.profile.namespaces else ()
    return (*named, *(name for name, used in optional.items() if used), *ALWAYS)


def describe(found: Explored) -> str:
    """Say how programs run here, what was tried, and what they could still do."""
    around = [
        *(["namespaces"] if found.profile.namespaces else []),
        *(["a system-call filter"] if found.profile.filter else []),
        *(["Landlock"] if found.profile.landlock else []),
        "resource limits",
    ]
    said = f"Model-written code runs in processes of its own behind {enumerate_words(around)}"
    if found.out_of_reach:
        said += f"; tried there and out of reach: {enumerate_words(found.out_of_reach)}"
    if found.profile.full:
        return f"{said}."
    refused = "" if required == "weak" else " So it is refused."
    return f"{said}. But {enumerate_words(found.missing)} ({found.obstacle}).{refused} {REMEDY}"


def enumerate_words(parts: tuple[str, ...] | list[str]) -> str:
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
    """Start a worker by each profile, strongest first, until one holds.

    Raises:
        RunFailed: if none does.
    """
    if not hasattr(os, "fork"):
        raise RunFailed("Programs that a model wrote cannot be run here: this system has no fork.")
    obstacle = failure = ""
    for profile in profiles():
        try:
            worker = Worker(Limits(), profile)
        except WorkerFailed as error:
            failure = str(error)
            obstacle = obstacle or failure
            continue
        worker.stop()
        why = obstacle or "this system has no namespaces and no filter that caploc knows"
        return Explored(profile, worker.seen["open_ways"], worker.seen["granted"], why)
    raise RunFailed(f"Programs that a model wrote cannot be run here: {failure}.")
