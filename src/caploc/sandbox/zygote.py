"""The worker: it forks two processes for every program, watches them, and says how they ended.

It never reads a program or a test, so that its children inherit none: the driver hands it an open
socket for each program, over which the judge's process receives both.
"""

import errno
import gc
import json
import os
import platform
import select
import signal
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

from caploc.sandbox import isolation, protocol
from caploc.sandbox.isolation import PR_SET_PDEATHSIG, control_process, isolate
from caploc.sandbox.judge import serve_program, serve_tests
from caploc.sandbox.protocol import CHUNK, Limits, Profile, remove_folder

# What programs import most, loaded once. In the small root, and under Landlock, shared libraries
# are out of sight: a module that needs one can only be imported if it has been loaded here.
PRELOADED = """
    bisect bz2 cmath collections copy dataclasses datetime decimal enum fractions functools hashlib
    heapq itertools json lzma math operator random re statistics string typing unicodedata zlib
""".split()

ROLES: dict[str, Callable[..., None]] = {"candidate": serve_program, "judge": serve_tests}
# Users inside the namespaces, where root could lend any. Without namespaces each worker takes two
# from here, far from any real one.
INNER_USERS = {"judge": 1, "candidate": 2}
FIRST_USER = 2_000_000_000
# Processes of the worker's own user, beside the program's, in its user namespace. Where the limit
# on processes counts all that the user runs, it leaves room for what starts later.
OWN_TASKS = 3
ROOM = 256
# Seconds that the program has to end by itself once the judge has: how it ends is asked then.
GRACE = 0.1


def main(control_file: int, settings: str) -> None:
    """Serve the driver over an open socket, with the settings of `caploc.sandbox.pool.Worker`."""
    asked = json.loads(settings)
    with socket.socket(fileno=control_file) as control:
        control_process(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != asked["driver"]:
            return
        for name in PRELOADED:
            with suppress(ImportError):
                import_module(name)
        try:
            zygote = Zygote(control, Limits(**asked["limits"]), asked["profile"], asked["folder"])
        except OSError as error:
            protocol.send(control, {"error": str(error)})
            return
        gc.freeze()  # what every program inherits need not be copied to be looked at
        with suppress(OSError):
            protocol.send(control, {})
            while True:
                data, files, _, _ = socket.recv_fds(control, 1, 1)
                if not data:
                    return
                protocol.send(control, zygote.run(files[0]))


class Zygote:
    """Forks, watches and ends the processes of one program after another."""

    def __init__(
        self, control: socket.socket, limits: Limits, profile: Profile, folder: str | None
    ) -> None:
        """Isolate this process, in a new one if need be; raises OSError if that cannot be had."""
        if (machine := platform.machine()) not in isolation.MACHINES:
            raise OSError(errno.ENOSYS, f"no system-call filter is known for {machine}")
        self._control, self._profile, self._folder = control, profile, folder
        self._fork: Callable[[], int] = os.fork
        if profile == "namespaces":
            self._users = INNER_USERS if isolation.enter_namespaces() else {}
            control_process(PR_SET_PDEATHSIG, signal.SIGKILL)
            own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
            self._fork = partial(isolation.fork_into_namespace, own)
            isolation.build_root()
            own_tasks = OWN_TASKS
        else:
            self._users = take_spare_users()
            # The driver's end is that of its connection: we leave in order, and nothing behind.
            signal.signal(signal.SIGTERM, lambda *_: control.shutdown(socket.SHUT_RDWR))
            control_process(PR_SET_PDEATHSIG, signal.SIGTERM)
            own_tasks = ROOM + sum(map(str.isdigit, os.listdir("/proc")))
        # Programs of the same user may not look into us.
        control_process(isolation.PR_SET_DUMPABLE, 0)
        tasks = limits.processes + (0 if self._users else own_tasks)
        self._limits = replace(limits, processes=tasks)
        self._woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def run(self, driver: int) -> dict[str, Any]:
        """Run one program, which the judge gets from the open socket `driver`; see `watch`."""
        asking, answering = socket.socketpair()
        printed, printing = os.pipe()
        os.set_blocking(printed, False)
        with ExitStack() as stack:
            stack.callback(os.close, printed)
            for role in ROLES if self._folder else ():
                stack.callback(remove_folder, f"{self._folder}/{role}")
            running: dict[int, str] = {}
            stack.callback(end, running)
            given = {"candidate": [answering.fileno()], "judge": [asking.fileno(), driver]}
            for role, files in given.items():
                running[self._start(role, [0, printing, printing, *files])] = role
            for file in (asking.detach(), answering.detach(), driver, printing):
                os.close(file)
            return watch(running, self._limits, printed, self._woken, self._control.fileno())

    def _start(self, role: str, files: list[int]) -> int:
        process = self._fork()
        if process:
            return process
        # From here on nothing may return: this is the child.
        try:
            folder, user = self._folder and f"{self._folder}/{role}", self._users.get(role)
            isolate(self._profile, self._limits, files, folder, user)
            ROLES[role](*range(3, len(files)))
        finally:
            os._exit(1)


def watch(
    running: dict[int, str], limits: Limits, printed: int, woken: int, control: int
) -> dict[str, Any]:
    """Put the processes of both roles under one clock, and end them if they go too far.

    `printed` is what they print to, `woken` is readable whenever a child has ended, and `control`
    only once the driver is gone. Returns what "stopped" them, if we did, and how each role ended:
    an exit code (minus the signal's number if killed; None if it stayed when the judge had left)
    and processor seconds.
    """
    over, room, stopped = time.monotonic() + limits.wall_seconds, limits.output_bytes, ""
    ends: dict[str, tuple[int | None, float]] = {}
    # Not select(2): a driver with many files open may hand over one of a number beyond 1,023.
    poll = select.poll()
    for file in (printed, woken, control):
        poll.register(file, select.POLLIN)
    while running:
        left = max(0.0, over - time.monotonic())
        ready = dict(poll.poll(int(1000 * left) + 1))
        if control in ready:
            raise ConnectionError
        if ready.get(printed) == select.POLLHUP:  # closed at the other end, so ready for ever
            poll.unregister(printed)
        drain(woken, CHUNK)
        ends |= reap(running, os.WNOHANG)
        room -= drain(printed, room)
        if "judge" in ends:
            over = min(over, time.monotonic() + GRACE)
        if room < 0 or time.monotonic() >= over:
            stayed = "judge" in ends
            stopped = "output" if room < 0 else "" if stayed else "timeout"
            for role, (code, seconds) in end(running).items():
                ends[role] = None if stayed else code, seconds
    return {"stopped": stopped, **ends}


def drain(file: int, most: int) -> int:
    """Read what is there, but little more than so many bytes; return how many there were."""
    scratch, count = bytearray(CHUNK), 0
    with suppress(BlockingIOError):
        while count <= most and (got := os.readv(file, [scratch])):
            count += got
    scratch[:] = bytes(CHUNK)  # later programs inherit our memory
    return count


def reap(running: dict[int, str], options: int) -> dict[str, tuple[int, float]]:
    """Take those that have ended out of `running`; return how, and their processor seconds."""
    ends = {}
    for process, role in list(running.items()):
        ended, status, used = os.wait4(process, options)
        if ended:
            del running[process]
            ends[role] = os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
    return ends


def end(running: dict[int, str]) -> dict[str, tuple[int, float]]:
    """End whatever still runs, and wait until it is gone; returns as `reap` does."""
    for process in running:
        os.kill(process, signal.SIGKILL)
    return reap(running, 0)


def take_spare_users() -> dict[str, int]:
    """Return two users that nobody is for root to become; none for others, who stay themselves."""
    if os.geteuid() != 0:
        return {}
    first = FIRST_USER + 2 * os.getpid()
    process = os.fork()
    if process == 0:
        with suppress(OSError):
            isolation.shed_rights(first)
            os._exit(not all(os.access(each, os.R_OK) for each in isolation.PYTHON_FOLDERS))
        os._exit(1)
    _, status = os.waitpid(process, 0)
    if status != 0:
        raise OSError(
            errno.EPERM,
            "root cannot become another user who can read Python "
            f"({os.path.dirname(os.__file__)}); run caploc as an ordinary user",
        )
    return {"judge": first, "candidate": first + 1}
