"""The worker: it forks two processes for every program, watches them, and says how they ended.

It never reads a program or a test, so that its children inherit none: the driver hands it an open
socket for each program, over which the judge's process receives both.
"""

import os
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from caploc.sandbox.inside import candidate, family, frames, judge
from caploc.sandbox.inside.confinement import Place, isolate
from caploc.sandbox.inside.folders import remove
from caploc.sandbox.inside.namespaces import PidNamespaces
from caploc.sandbox.inside.watch import DriverGone, Watch
from caploc.sandbox.isolation import Profile
from caploc.sandbox.limits import Limits

ROLES = ("candidate", "judge")
# The open files that a process gets after 0, 1 and 2, and what it does with them.
Work = tuple[list[int], Callable[..., None]]


@dataclass(frozen=True, slots=True)
class Rules:
    """How the two processes of a program are set up on this machine.

    Attributes:
        limits: what each may use.
        profile: what isolates each.
        users: which user each becomes; None for whoever started the worker.
        tasks: what RLIMIT_NPROC is set to.
        folder: where to make a directory for each; None where mount namespaces give one.
        supervised: whether memory and processes must be counted from outside.
    """

    limits: Limits
    profile: Profile
    users: dict[str, int | None]
    tasks: int
    folder: str | None
    supervised: bool


class Zygote:
    """Forks, watches and ends the processes of one program after another."""

    def __init__(
        self, control: socket.socket, rules: Rules, namespaces: PidNamespaces | None
    ) -> None:
        """Get ready to serve the driver at the other end of `control`."""
        self._control = control
        self.rules = rules
        self._fork = os.fork if namespaces is None else namespaces.fork
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)

    def serve(self) -> None:
        """Judge programs until the driver leaves."""
        while True:
            data, files, _, _ = socket.recv_fds(self._control, 1, 1)
            if not data:
                return
            try:
                frames.send(self._control, self.run(files[0]))
            except (DriverGone, OSError):
                return

    def run(self, driver: int) -> dict[str, Any]:
        """One program, whose text and tests the judge gets from the open socket `driver`."""
        asking, answering = socket.socketpair()
        serve: dict[str, Work] = {
            "candidate": ([answering.fileno()], candidate.main),
            "judge": ([asking.fileno(), driver], judge.main),
        }
        return self.supervise(serve, [asking.detach(), answering.detach(), driver])

    def supervise(self, serve: dict[str, Work], ours: list[int]) -> dict[str, Any]:
        """Start a process for each role, close our own ends of its files, wait for all to end.

        Args:
            serve: for each role the files it gets, and what it does with them.
            ours: files to close once all have started.

        Returns:
            What `Watch.until_over` does, and under "isolated" the roles that came so far.
        """
        printed, printing = os.pipe()
        isolated, announce = os.pipe()
        os.set_blocking(printed, False)
        limits = self.rules.limits
        with ExitStack() as stack:
            for file in (printed, isolated):
                stack.callback(os.close, file)
            folders = {role: stack.enter_context(self._folder(role)) for role in serve}
            watch = Watch(limits, printed, self._woken, self._control)
            stack.callback(watch.end)
            for role, (files, work) in serve.items():
                passed = [0, printing, printing, *files, announce]
                watch.add(role, self._start(role, passed, folders[role], work))
            for file in (*ours, printing, announce):
                os.close(file)
            record = watch.until_over(self._look if self.rules.supervised else None)
            watch.end()
            started = os.read(isolated, len(ROLES)).decode()
            return {**record, "isolated": [role for role in serve if role[0] in started]}

    def _start(
        self, role: str, files: list[int], folder: str | None, work: Callable[..., None]
    ) -> int:
        process = self._fork()
        if process:
            return process
        # From here on nothing may return: this is the child.
        try:
            rules = self.rules
            place = Place(files, folder, rules.users[role], rules.tasks)
            isolate(rules.profile, rules.limits, place)
            announce = len(files) - 1
            os.write(announce, role[:1].encode())
            os.close(announce)
            work(*range(3, announce))
        finally:
            os._exit(1)

    @contextmanager
    def _folder(self, role: str) -> Iterator[str | None]:
        if self.rules.folder is None:
            yield None
            return
        folder = tempfile.mkdtemp(prefix=role, dir=self.rules.folder)
        try:
            user = self.rules.users[role]
            if user is not None:
                os.chown(folder, user, user)
            yield folder
        finally:
            remove(folder)

    def _look(self) -> str | None:
        relatives = family.below(os.getpid())
        limits = self.rules.limits
        if len(relatives) > limits.processes + len(ROLES):
            return "killed"
        resident = [0, *(each.resident for each in relatives)]
        # The judge may use as much as the program.
        too_much = max(resident) > limits.memory_bytes
        too_much = too_much or sum(resident) > len(ROLES) * limits.memory_bytes
        return "memory" if too_much else None
