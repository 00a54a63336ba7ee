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
        self._control, self._limits, self._profile = control, limits, profile
        self._folder = folder
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
        self._tasks = limits.processes + (0 if self._users else own_tasks)
        self._woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def run(self, driver: int) -> dict[str, Any]:
        """Run one program, whose text and tests the judge gets from the open socket `driver`.

        What is returned is `ChildWatch.wait`'s, and under "isolated" how many processes were.
        """
        asking, answering = socket.socketpair()
        printed, printing = os.pipe()
        isolated, announce = os.pipe()
        os.set_blocking(printed, False)
        with ExitStack() as stack:
            for file in (printed, isolated):
                stack.callback(os.close, file)
            watch = ChildWatch(self._limits, printed, self._woken, self._control.fileno())
            roles: dict[str, tuple[list[int], Callable[..., None]]] = {
                "candidate": ([answering.fileno()], serve_program),
                "judge": ([asking.fileno(), driver], serve_tests),
            }
            for role in roles if self._folder else ():
                stack.callback(remove_folder, f"{self._folder}/{role}")
            stack.callback(watch.end)
            for role, (files, serve) in roles.items():
                passed = [0, printing, printing, *files, announce]
                watch.running[self._start(role, passed, serve)] = role
            for file in (asking.detach(), answering.detach(), driver, printing, announce):
                os.close(file)
            return {**watch.wait(), "isolated": len(os.read(isolated, len(roles)))}

    def _start(self, role: str, files: list[int], serve: Callable[..., None]) -> int:
        process = self._fork()
        if process:
            return process
        # From here on nothing may return: this is the child.
        try:
            folder, user = self._folder and f"{self._folder}/{role}", self._users.get(role)
            isolate(self._profile, self._limits, files, folder, user, self._tasks)
            announce = len(files) - 1
            os.write(announce, b".")
            os.close(announce)
            serve(*range(3, announce))
        finally:
            os._exit(1)


class ChildWatch:
    """Puts the judge's process and the program's under one clock, and ends what goes too far.

    It reads what both print from `printed`; `woken` is readable whenever a child has ended, and
    `control` only once the driver is gone.
    """

    def __init__(self, limits: Limits, printed: int, woken: int, control: int) -> None:
        self.running: dict[int, str] = {}  # processes and their roles, to be added to
        self._limits, self._printed, self._woken = limits, printed, woken
        self._control, self._open = control, True
        # Not select(2): a driver with many files open may hand over one of a number beyond 1,023.
        self._poll = select.poll()
        for file in (printed, woken, control):
            self._poll.register(file, select.POLLIN)
        self._over = time.monotonic() + limits.wall_seconds
        self._stopped = ""
        self._scratch, self._count = bytearray(CHUNK), 0
        self._ends: dict[str, tuple[int | None, float]] = {}

    def wait(self) -> dict[str, Any]:
        """Wait; then say what "stopped" the two, if we did, and how each role ended.

        That is an exit code (minus the signal's number if killed; None if it stayed when the judge
        had left) and processor seconds.
        """
        while self.running:
            left = self._over - time.monotonic()
            ready = {file for file, _ in self._poll.poll(max(0, int(1000 * left)) + 1)}
            if self._control in ready:
                raise ConnectionError
            self._drain()
            self._reap()
            if time.monotonic() >= self._over:
                self._stop("" if "judge" in self._ends else "timeout")
        self._drain()
        self._scratch[:] = bytes(CHUNK)  # later programs inherit our memory
        return {"stopped": self._stopped, **self._ends}

    def end(self) -> None:
        """End whatever still runs, and wait until it is gone."""
        self._stop("")
        while self.running:
            os.waitpid(self.running.popitem()[0], 0)

    def _stop(self, reason: str) -> None:
        self._stopped = self._stopped or reason
        for process in self.running:
            os.kill(process, signal.SIGKILL)

    def _drain(self) -> None:
        with suppress(BlockingIOError):
            while self._open:
                got = os.readv(self._printed, [self._scratch])
                self._count += got
                if self._count > self._limits.output_bytes:
                    self._stop("output")
                    return
                if not got:  # closed at the other end, so ready for ever
                    self._poll.unregister(self._printed)
                    self._open = False

    def _reap(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self._woken, CHUNK):
                pass
        for process, role in list(self.running.items()):
            ended, status, used = os.wait4(process, os.WNOHANG)
            if ended:
                del self.running[process]
                stayed = "judge" in self._ends and time.monotonic() >= self._over
                code = None if stayed else os.waitstatus_to_exitcode(status)
                self._ends[role] = code, used.ru_utime + used.ru_stime
                if role == "judge":
                    self._over = min(self._over, time.monotonic() + GRACE)


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
