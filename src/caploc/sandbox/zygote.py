"""The worker: it forks two processes for every program, watches them, and says how they ended.

It never reads a program or a test, so that its children inherit none: the driver hands it an open
socket for each program, over which the judge's process receives both.
"""

import errno
import gc
import json
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from caploc.sandbox import isolation, protocol
from caploc.sandbox.isolation import LINUX, PR_SET_PDEATHSIG, control_process, isolate
from caploc.sandbox.judge import serve_program, serve_tests
from caploc.sandbox.protocol import Limits, Offer, Profile, remove_folder
from caploc.sandbox.rehearsal import LIBRARY, serve_rehearsal

# What programs import most, loaded once. In the small root, and under Landlock, shared libraries
# are out of sight: a module that needs one can only be imported if it has been loaded here.
PRELOADED = """
    bisect bz2 cmath collections copy dataclasses datetime decimal enum fractions functools hashlib
    heapq itertools json lzma math operator random re statistics string typing unicodedata zlib
""".split()
ROLES = ("candidate", "judge")
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
# How often processes and memory are counted where the kernel does not do it.
LOOK_EVERY = 0.05
PROCESSES = Path("/proc")
PAGE = os.sysconf("SC_PAGESIZE")
CHUNK = 1 << 16

# The open files that a process gets after 0, 1 and 2, and what it does with them.
Work = tuple[list[int], Callable[..., None]]


class DriverGone(Exception):
    """The driver closed its connection in the middle of a program, or ended."""


def main(control_file: int, settings: str) -> None:
    """Serve the driver over an open socket, with the settings of `caploc.sandbox.pool.Worker`."""
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
            zygote = Zygote(control, limits, profile, asked["folder"])
            open_ways = zygote.rehearse(Offer(**asked["offer"]))
        except OSError as error:
            protocol.send(control, {"error": str(error)})
            return
        gc.freeze()  # what every program inherits need not be copied to be looked at
        with suppress(DriverGone):
            protocol.send(control, {"open_ways": open_ways, "granted": zygote.granted})
            zygote.serve()


class Zygote:
    """Forks, watches and ends the processes of one program after another."""

    def __init__(
        self, control: socket.socket, limits: Limits, profile: Profile, folder: str | None
    ) -> None:
        """Isolate this process, in a new one if need be; raises OSError if that cannot be had."""
        self._control, self._limits, self._profile = control, limits, profile
        self._folder, self._supervised = folder, False
        self._fork: Callable[[], int] = os.fork
        users: dict[str, int] | None
        if profile.namespaces:
            users = INNER_USERS if isolation.enter_namespaces() else None
            control_process(PR_SET_PDEATHSIG, signal.SIGKILL)
            self._fork = isolation.fork_into_namespaces()
            isolation.build_root()
            own_tasks = OWN_TASKS
        else:
            users = take_spare_users()
            # The driver's end is that of its connection: we leave in order, and nothing behind.
            signal.signal(signal.SIGTERM, lambda *_: control.shutdown(socket.SHUT_RDWR))
            if LINUX:
                control_process(PR_SET_PDEATHSIG, signal.SIGTERM)
            own_tasks = ROOM + len(list_processes())
        if LINUX:
            control_process(isolation.PR_SET_CHILD_SUBREAPER, 1)
            # Programs of the same user may not look into us.
            control_process(isolation.PR_SET_DUMPABLE, 0)
        self.granted = users is not None
        self._users = users or {}
        self._tasks = limits.processes + (0 if self.granted else own_tasks)
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)

    def rehearse(self, offer: Offer) -> dict[str, list[str]]:
        """Have an isolated process of our own try every way out; say for each capability which led.

        Raises OSError if no process can be isolated.
        """
        reading, writing = os.pipe()
        work = partial(serve_rehearsal, offer=offer, memory_bytes=self._limits.memory_bytes)
        try:
            self._supervise({"candidate": ([writing], work)}, [writing])
            answer = os.read(reading, CHUNK)
        finally:
            os.close(reading)
        if not answer:
            raise OSError(errno.EPERM, "a process could not be isolated")
        open_ways: dict[str, list[str]] = json.loads(answer)
        bound = self._profile.filter or self._profile.namespaces
        self._supervised = bool(open_ways["memory"]) or not bound
        return open_ways

    def serve(self) -> None:
        """Judge programs until the driver leaves."""
        while True:
            data, files, _, _ = socket.recv_fds(self._control, 1, 1)
            if not data:
                return
            try:
                protocol.send(self._control, self.run(files[0]))
            except (DriverGone, OSError):
                return

    def run(self, driver: int) -> dict[str, Any]:
        """Run one program, whose text and tests the judge gets from the open socket `driver`."""
        asking, answering = socket.socketpair()
        work: dict[str, Work] = {
            "candidate": ([answering.fileno()], serve_program),
            "judge": ([asking.fileno(), driver], serve_tests),
        }
        return self._supervise(work, [asking.detach(), answering.detach(), driver])

    def _supervise(self, work: dict[str, Work], ours: list[int]) -> dict[str, Any]:
        """Start a process for each role, close our own ends of its files, wait for all to end.

        What is returned is `ChildWatch.wait`'s, and under "isolated" how many were.
        """
        printed, printing = os.pipe()
        isolated, announce = os.pipe()
        os.set_blocking(printed, False)
        with ExitStack() as stack:
            for file in (printed, isolated):
                stack.callback(os.close, file)
            watch = ChildWatch(self._limits, printed, self._woken.fileno(), self._control.fileno())
            folders: dict[str, str | None] = dict.fromkeys(work)
            if self._folder is not None:
                for role in work:
                    folders[role] = folder = tempfile.mkdtemp(prefix=role, dir=self._folder)
                    stack.callback(remove_folder, folder)
                    if self.granted:
                        os.chown(folder, self._users[role], self._users[role])
            stack.callback(watch.end)
            for role, (files, do) in work.items():
                passed = [0, printing, printing, *files, announce]
                watch.running[self._start(role, passed, folders[role], do)] = role
            for file in (*ours, printing, announce):
                os.close(file)
            record = watch.wait(self._count_use if self._supervised else None)
            watch.end()
            return {**record, "isolated": len(os.read(isolated, len(ROLES)))}

    def _start(
        self, role: str, files: list[int], folder: str | None, do: Callable[..., None]
    ) -> int:
        process = self._fork()
        if process:
            return process
        # From here on nothing may return: this is the child.
        try:
            user = self._users.get(role)
            isolate(self._profile, self._limits, files, folder, user, self._tasks)
            announce = len(files) - 1
            os.write(announce, b".")
            os.close(announce)
            do(*range(3, announce))
        finally:
            os._exit(1)

    def _count_use(self) -> str:
        below = list_below(os.getpid())
        if len(below) > self._limits.processes + len(ROLES):
            return "killed"
        resident = [0, *(held for _, _, held in below)]
        # The judge may use as much as the program.
        most = self._limits.memory_bytes
        return "memory" if max(resident) > most or sum(resident) > len(ROLES) * most else ""


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
        self._judged, self._stopped = False, ""
        self._scratch, self._count = bytearray(CHUNK), 0
        self._ends: dict[str, tuple[int | None, float]] = {}

    def wait(self, look: Callable[[], str] | None) -> dict[str, Any]:
        """Wait; then say what "stopped" the two, if we did, and how each role ended.

        That is an exit code (minus the signal's number if killed; None if it stayed when the judge
        had left) and processor seconds. `look` says, again and again, why they must stop if so.
        """
        while self.running:
            left = self._over - time.monotonic()
            patience = left if look is None else min(left, LOOK_EVERY)
            ready = {file for file, _ in self._poll.poll(max(0, int(1000 * patience)) + 1)}
            if self._control in ready:
                raise DriverGone
            self._drain()
            self._reap()
            if time.monotonic() >= self._over:
                self._kill() if self._judged else self._stop("timeout")
            elif look is not None and self.running:
                self._stop(look())
        self._drain()
        self._scratch[:] = bytes(CHUNK)  # later programs inherit our memory
        return {"stopped": self._stopped, **self._ends}

    def end(self) -> None:
        """End whatever still runs, daemons too, and wait until it is gone.

        As its reaper, this process inherits what daemons leave behind (on Linux).
        """
        self._kill()
        for process in self.running:
            os.waitpid(process, 0)
        self.running.clear()
        with suppress(ChildProcessError):  # which says that there are no children
            while True:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
                for process, _, _ in list_below(os.getpid()):
                    kill(process)

    def _stop(self, reason: str) -> None:
        if reason:
            self._stopped = self._stopped or reason
            self._kill()

    def _kill(self) -> None:
        for process in self.running:
            kill(process)

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
        with suppress(ChildProcessError):
            while True:
                process, status, used = os.wait4(-1, os.WNOHANG)
                if not process:
                    return
                role = self.running.pop(process, None)
                if role is None:  # a daemon's remains
                    continue
                code = os.waitstatus_to_exitcode(status)
                stayed = self._judged and time.monotonic() >= self._over
                self._ends[role] = None if stayed else code, used.ru_utime + used.ru_stime
                kill(process)  # its group, where that outlives it
                if role == "judge":
                    self._judged = True
                    self._over = min(self._over, time.monotonic() + GRACE)


def list_processes() -> list[tuple[int, int, int]]:
    """List every process that can be seen: its number, its parent's, the memory it holds."""
    if not (PROCESSES / "self").exists():  # macOS
        command = ["ps", "-A", "-o", "pid=,ppid=,rss="]
        shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        rows = (map(int, line.split()) for line in shown.splitlines())
        return [(process, parent, kib * 1024) for process, parent, kib in rows]
    found = []
    for name in filter(str.isdigit, os.listdir(PROCESSES)):
        with suppress(OSError):  # it has just ended
            # The program's name stands in brackets and may itself hold any character.
            fields = (PROCESSES / name / "stat").read_text("latin-1").rpartition(")")[2].split()
            found.append((int(name), int(fields[1]), int(fields[21]) * PAGE))
    return found


def list_below(ancestor: int) -> list[tuple[int, int, int]]:
    """List all descendants of a process, as `list_processes` does."""
    left = list_processes()
    found: list[tuple[int, int, int]] = []
    parents = {ancestor}
    while more := [each for each in left if each[1] in parents]:
        found += more
        left = [each for each in left if each[1] not in parents]
        parents = {process for process, _, _ in more}
    return found


def kill(process: int) -> None:
    """Kill a process and its group; nothing happens if it is gone."""
    for end in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            end(process, signal.SIGKILL)


def take_spare_users() -> dict[str, int] | None:
    """Return two users that nobody is for root to become; None for others, who stay themselves."""
    if not LINUX or os.geteuid() != 0:
        return None
    first = FIRST_USER + 2 * os.getpid()
    process = os.fork()
    if process == 0:
        with suppress(OSError):
            isolation.shed_rights(first)
            folders = isolation.python_folders()
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
