"""The start of a worker: build the walls, try them, and serve."""

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
from caploc.sandbox.inside.behind import shed_rights
from caploc.sandbox.inside.family import everyone
from caploc.sandbox.inside.kernel import (
    LINUX,
    PR_SET_CHILD_SUBREAPER,
    PR_SET_DUMPABLE,
    PR_SET_PDEATHSIG,
    control_process,
)
from caploc.sandbox.inside.watch import DriverGone
from caploc.sandbox.inside.zygote import ROLES, Rules, Zygote
from caploc.sandbox.limits import Limits
from caploc.sandbox.walls import Walls

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
        settings: JSON: "driver" (its process), "limits" and "walls" (their fields), and "folder"
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
            limits, walls = Limits(**asked["limits"]), Walls(**asked["walls"])
            zygote, facts = built(control, limits, walls, asked["folder"])
        except (OSError, frames.Malformed) as error:
            frames.send(control, {"error": str(error)})
            return
        gc.freeze()  # what every program inherits need not be copied to be looked at
        with suppress(DriverGone):
            frames.send(control, {"facts": facts})
            zygote.serve()


def built(
    control: socket.socket, limits: Limits, walls: Walls, folder: str | None
) -> tuple[Zygote, dict[str, Any]]:
    """A zygote behind its walls, in a process of its own if need be, and what they hold.

    Raises:
        OSError: if a wall cannot be built.
        frames.Malformed: if the rehearsal did not get behind them.
    """
    inner = None
    if walls.namespaces:
        lent = namespaces.enter()
        control_process(PR_SET_PDEATHSIG, signal.SIGKILL)
        inner = namespaces.PidNamespaces()
        namespaces.build_root(namespaces.python_folders())
        users = INNER_USERS if lent else None
    else:
        users = spare_users()
        leave_with_the_driver()
    if LINUX:
        control_process(PR_SET_CHILD_SUBREAPER, 1)
        control_process(PR_SET_DUMPABLE, 0)  # programs of the same user may not look into us
    owner: dict[str, int | None] = dict.fromkeys(ROLES)
    rules = Rules(
        limits=limits,
        walls=walls,
        users=owner if users is None else {**owner, **users},
        tasks=limits.processes + (0 if users else own_tasks(walls)),
        folder=folder,
        supervised=False,
    )
    zygote = Zygote(control, rules, inner)
    facts = {**rehearsed(zygote, limits), "lent": users is not None}
    bound = facts["memory"] and (walls.filter or walls.namespaces)
    zygote.rules = replace(rules, supervised=not bound)
    return zygote, facts


def leave_with_the_driver() -> None:
    """Have its end come as an exception, which leaves nothing behind, and not as our own end."""

    def leave(number: int, frame: object) -> None:
        raise DriverGone

    signal.signal(signal.SIGTERM, leave)
    if LINUX:
        control_process(PR_SET_PDEATHSIG, signal.SIGTERM)


def rehearsed(zygote: Zygote, limits: Limits) -> dict[str, Any]:
    """Send a process of our own behind the walls and have it try them.

    Raises:
        frames.Malformed: if it did not come so far.
    """
    reading, writing = os.pipe()
    work = partial(rehearsal.main, memory_bytes=limits.memory_bytes)
    try:
        zygote.supervise({"candidate": ([writing], work)}, [writing])
        answer = os.read(reading, 4096)
    finally:
        os.close(reading)
    if not answer:
        raise frames.Malformed("a process could not get behind the walls")
    facts: dict[str, Any] = json.loads(answer)
    return facts


def own_tasks(walls: Walls) -> int:
    """What RLIMIT_NPROC counts beside a program's own processes, where it has no own user."""
    if walls.namespaces:
        return OWN_TASKS
    return ROOM + len(everyone())


def spare_users() -> dict[str, int] | None:
    """Two users that nobody is, if root may become them and they can still read Python."""
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
    return {"judge": first, "candidate": first + 1} if status == 0 else None
