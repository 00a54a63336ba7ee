"""How a process is isolated: what it may still do, and all that it gives up for good."""

import ctypes
import fcntl
import math
import os
import random
import resource
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from caploc.sandbox.inside import filters, landlock, namespaces
from caploc.sandbox.inside.kernel import (
    LINUX,
    PR_CAPBSET_DROP,
    PR_SET_DUMPABLE,
    PR_SET_NO_NEW_PRIVS,
    PR_SET_PDEATHSIG,
    call,
    control_process,
)
from caploc.sandbox.isolation import Profile
from caploc.sandbox.limits import Limits

OPEN_FILES = 64
CAPABILITIES_VERSION = 0x20080522
# Chance must not change a verdict from run to run; every fork draws new chances otherwise.
SEED = 0
# Out of the way of 0, 1, 2, ..., and below the fewest that a system lets a process open.
HIGH_FILE = 100


@dataclass(frozen=True, slots=True)
class Place:
    """What one process is given: its open files in order, its folder, and its user.

    Attributes:
        files: descriptors that become 0, 1, 2, ...; all others are closed.
        folder: its working directory; None for a fresh one of its mount namespace.
        user: the user and group id to become; None to stay who we are.
        tasks: what RLIMIT_NPROC is set to.
    """

    files: Sequence[int]
    folder: str | None
    user: int | None
    tasks: int


def isolate(profile: Profile, limits: Limits, place: Place) -> None:
    """Turn this fresh child into one that may run anything.

    Raises:
        OSError: if a part of the isolation cannot be had.
    """
    parent = os.getppid()
    os.setsid()
    forget_signals()
    keep_only(place.files)
    if place.folder is None:
        namespaces.own_workplace(limits.file_bytes, place.user or 0)
    else:
        os.chdir(place.folder)
    set_limits(limits, place.tasks)
    if LINUX:
        shed_rights(place.user)
        # After the change of user, which forgets it.
        control_process(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
    if profile.landlock:
        landlock.confine([*namespaces.python_folders(), os.devnull], ["."])
    if profile.filter:
        filters.install(read_only=profile.read_only)
    os.environ.clear()
    sys.argv[:] = [""]
    random.seed(SEED)


def forget_signals() -> None:
    """Every signal as a fresh process has it."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def keep_only(files: Sequence[int]) -> None:
    """Renumber open files to 0, 1, 2, ... and close every other one."""
    # Out of the way first, so that none is overwritten before it has moved.
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD, HIGH_FILE) for file in files]
    for at, file in enumerate(moved):
        os.dup2(file, at)
    os.closerange(len(files), os.sysconf("SC_OPEN_MAX"))


def set_limits(limits: Limits, tasks: int) -> None:
    """Set every resource limit, soft and hard alike: the kernel kills at the hard one."""
    seconds = math.ceil(limits.cpu_seconds)
    wanted = {
        "RLIMIT_CPU": seconds,
        "RLIMIT_AS": limits.memory_bytes,
        "RLIMIT_FSIZE": limits.file_bytes,
        "RLIMIT_NOFILE": OPEN_FILES,
        "RLIMIT_NPROC": tasks,
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
    }
    for name, value in wanted.items():
        if hasattr(resource, name):
            kind = getattr(resource, name)
            _, hard = resource.getrlimit(kind)
            ceiling = value if hard == resource.RLIM_INFINITY else min(value, hard)
            with suppress(ValueError, OSError):  # macOS knows some limits and refuses to set them
                resource.setrlimit(kind, (ceiling, ceiling))


def shed_rights(user: int | None) -> None:
    """Give up every right of root for good, and become another user if one is given."""
    with suppress(OSError):  # refused to plain users, who have none; else up to the last number
        for capability in range(64):
            control_process(PR_CAPBSET_DROP, capability)
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    header = (ctypes.c_uint32 * 2)(CAPABILITIES_VERSION, 0)
    empty = (ctypes.c_uint32 * 6)()
    call("capset", ctypes.addressof(header), ctypes.addressof(empty))
    control_process(PR_SET_DUMPABLE, 0)
    control_process(PR_SET_NO_NEW_PRIVS, 1)
