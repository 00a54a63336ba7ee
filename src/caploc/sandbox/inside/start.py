"""The start of a worker: build the isolation, rehearse it, and serve."""

import errno
import gc
import json
import os
import signal
import socket
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

from caploc.sandbox.inside import frames, namespaces, rehearsal
from caploc.sandbox.inside.confinement import shed_rights
from caploc.sandbox.inside.family import everyone
from caploc.sandbox.inside.kernel import (
    LINUX,
    PR_SET_CHILD_SUBREAPER,
    PR_SET_DUMPABLE,
    PR_SET_PDEATHSIG,
    control_process,
)
from caploc.sandbox.inside.rehearsal import LIBRARY
from caploc.sandbox.inside.watch import DriverGone
from caploc.sandbox.inside.witness import Target, start_witness
from caploc.sandbox.inside.zygote import ROLES, Rules, Zygote
from caploc.sandbox.isolation import Profile
from caploc.sandbox.limits import Limits

# What programs import most, loaded once. In the small root, and under Landlock, shared libraries
# are out of sight: a module that needs one can only be imported if it has been loaded here.
PRELOADED = """
    bisect bz2 cmath collections copy dataclasses datetime decimal enum fractions functools hashlib
    heapq itertools json lzma math operator random re statistics string typing unicodedata zlib
""".split()
# Users inside the namespaces, where root could lend any.
INNER_USERS = {"judge": 1, "candidate": 2}
# Without namespaces each worker takes two from here, far from any real one.
FIRST_USER = 2_000_000_000
# Processes of the worker's own user, beside the program's, in its user namespace.
OWN_TASKS = 3
# Where the limit on processes counts all that the user runs, it leaves room for what starts later.
ROOM = 256


def main(control_file: int, settings: str) -> None:
    """Serve the driver over an open socket.

    Args:
        control_file: the socket's number.
        settings: JSON: "driver" (its process), "limits" and "profile" (their fields), and "folder"
            (for temporary directories; null where mount namespaces give them).
    """
    asked = json.loads(settings)
    with socket.socket(fileno=control_file) as control:
        if LINUX:
            control_process(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != asked["driver"]:
            return
        for name in PRELOADED:
            with suppress(ImportError):
                import_module(name)
        try:
            limits, profile = Limits(**asked["limits"]), Profile(**asked["profile"])
            zygote, seen = build_zygote(control, limits, profile, asked["folder"])
        except (OSError, frames.Malformed) as error:
            frames.send(control, {"error": str(error)})
            return
        gc.freeze()  # what every program inherits need not be copied to be looked at
        with suppress(DriverGone):
            frames.send(control, {"seen": seen})
            zygote.serve()


def build_zygote(
    control: socket.socket, limits: Limits, profile: Profile, folder: str | None
) -> tuple[Zygote, dict[str, Any]]:
    """Isolate this process, in a new one if need be, and rehearse what programs could do.

    Returns:
        The zygote, and what its rehearsal saw: "open_ways", for each capability of
        `caploc.sandbox.inside.rehearsal` the ways to it that were open, and "granted", whether
        programs have users of their own.

    Raises:
        OSError: if a part of the isolation cannot be had, or does not hold what it must.
        frames.Malformed: if the rehearsal did not come so far.
    """
    target, witness = start_witness(folder)
    inner = None
    if profile.namespaces:
        granted = namespaces.enter()
        control_process(PR_SET_PDEATHSIG, signal.SIGKILL)
        inner = namespaces.PidNamespaces()
        namespaces.build_root(namespaces.python_folders())
        users = INNER_USERS if granted else None
    else:
        users = spare_users()
        leave_with_the_driver()
    if LINUX:
        control_process(PR_SET_CHILD_SUBREAPER, 1)
        control_process(PR_SET_DUMPABLE, 0)  # programs of the same user may not look into us
    owner: dict[str, int | None] = dict.fromkeys(ROLES)
    rules = Rules(
        limits=limits,
        profile=profile,
        users=owner if users is None else {**owner, **users},
        tasks=limits.processes + (0 if users else own_tasks(profile)),
        folder=folder,
        supervised=False,
    )
    zygote = Zygote(control, rules, inner)
    open_ways = rehearse(zygote, target, witness, limits)
    bound = not open_ways["memory"] and (profile.filter or profile.namespaces)
    zygote.rules = replace(rules, supervised=not bound)
    return zygote, {"open_ways": open_ways, "granted": users is not None}


def leave_with_the_driver() -> None:
    """Have its end come as an exception, which leaves nothing behind, and not as our own end."""

    def leave(number: int, frame: object) -> None:
        raise DriverGone

    signal.signal(signal.SIGTERM, leave)
    if LINUX:
        control_process(PR_SET_PDEATHSIG, signal.SIGTERM)


def rehearse(
    zygote: Zygote, target: Target, witness: socket.socket, limits: Limits
) -> dict[str, list[str]]:
    """Have an isolated process of our own try every way out; say for each capability what worked.

    Raises:
        OSError: if the library could be changed, or anything got out of full isolation.
        frames.Malformed: if it did not come so far.
    """
    reading, writing = os.pipe()
    work = partial(rehearsal.main, target=target, memory_bytes=limits.memory_bytes)
    try:
        files = [writing, witness.detach()]
        zygote.supervise({"candidate": (files, work)}, files)
        answer = os.read(reading, 1 << 16)
    finally:
        os.close(reading)
    if not answer:
        raise frames.Malformed("a process could not be isolated")
    open_ways: dict[str, list[str]] = json.loads(answer)
    if open_ways["library"]:
        raise OSError(
            errno.EPERM,
            f"programs could change Python's own library, {LIBRARY} (by "
            f"{open_ways['library'][0]}), which belongs to whoever runs them",
        )
    leaks = [f"{each}: {ways[0]}" for each, ways in open_ways.items() if ways]
    if zygote.rules.profile.full and leaks:
        raise OSError(errno.EPERM, f"a rehearsal got out of it ({', '.join(leaks)})")
    return open_ways


def own_tasks(profile: Profile) -> int:
    """What RLIMIT_NPROC counts beside a program's own processes, where it has no own user."""
    if profile.namespaces:
        return OWN_TASKS
    return ROOM + len(everyone())


def spare_users() -> dict[str, int] | None:
    """Return two users that nobody is for root to become; None for others, who stay themselves.

    Raises:
        OSError: if root cannot become them, or they could not read Python.
    """
    if not LINUX or os.geteuid() != 0:
        return None
    first = FIRST_USER + 2 * os.getpid()
    process = os.fork()
    if process == 0:
        with suppress(OSError):
            shed_rights(first)
            folders = namespaces.python_folders()
            os._exit(not (folders and all(os.access(each, os.R_OK) for each in folders)))
        os._exit(1)
    _, status = os.waitpid(process, 0)
    if status != 0:
        raise OSError(
            errno.EPERM,
            f"root cannot become another user who can read Python ({LIBRARY}); run caploc as an "
            "ordinary user",
        )
    return {"judge": first, "candidate": first + 1}
