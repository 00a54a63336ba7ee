"""Two processes under one clock: what they print is counted, and whoever goes too far is ended."""

import os
import resource
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from caploc.sandbox.inside import family
from caploc.sandbox.limits import Limits

CHUNK = 1 << 16
# Seconds that the program has to end by itself once the judge has: how it ends is asked then.
GRACE = 0.1
# How often processes and memory are counted where the kernel does not do it.
LOOK_EVERY = 0.05


class DriverGone(Exception):
    """The driver closed its connection in the middle of a program."""


class Watch:
    """Watches the judge's process and the program's until both are over."""

    def __init__(
        self, limits: Limits, printed: int, woken: socket.socket, control: socket.socket
    ) -> None:
        """Start the clock.

        Args:
            limits: what ends the two.
            printed: what both print, to be read; not blocking.
            woken: readable whenever a child has ended.
            control: readable only once the driver is gone.
        """
        self._limits = limits
        self._printed = printed
        self._woken = woken
        self._over = time.monotonic() + limits.wall_seconds
        self._judged = False
        self._scratch = bytearray(CHUNK)
        self._count = 0
        self._open = True
        self._stopped: str | None = None
        self._running: dict[int, str] = {}
        self._ends: dict[str, tuple[int | None, float]] = {}
        self._poll = select.poll()
        for file in (printed, woken.fileno(), control.fileno()):
            self._poll.register(file, select.POLLIN)
        self._control = control.fileno()

    def add(self, role: str, process: int) -> None:
        """Watch one more process."""
        self._running[process] = role

    def until_over(self, look: Callable[[], str | None] | None) -> dict[str, Any]:
        """Wait; then say what stopped the two, if we did, and how each ended.

        Args:
            look: says why the two must stop now, if they must; asked again and again.

        Returns:
            "stopped": None, or the reason; "judge" and "candidate": exit code (minus the signal's
            number if killed; None if it stayed when the judge had left) and processor seconds.

        Raises:
            DriverGone: if the driver leaves meanwhile.
        """
        while self._running:
            ready = {file for file, _ in self._poll.poll(self._patience(look is not None))}
            if self._control in ready:
                raise DriverGone
            self._drain()
            self._reap()
            if time.monotonic() >= self._over:
                self._kill() if self._judged else self._stop("timeout")
            elif look is not None and self._running:
                self._stop(look())
        self._drain()
        self._scratch[:] = bytes(CHUNK)  # later programs inherit our memory
        return {"stopped": self._stopped, **self._ends}

    def end(self) -> None:
        """End whatever still runs, daemons too, and wait until it is gone."""
        self._kill()
        for process in self._running:
            os.waitpid(process, 0)
        self._running.clear()
        family.sweep()

    def _patience(self, looking: bool) -> int:
        left = self._over - time.monotonic()
        return max(0, int(1000 * (min(left, LOOK_EVERY) if looking else left)) + 1)

    def _stop(self, reason: str | None) -> None:
        if reason is not None:
            self._stopped = self._stopped or reason
            self._kill()

    def _kill(self) -> None:
        for process in self._running:
            family.kill(process)

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
            while self._woken.recv(CHUNK):
                pass
        with suppress(ChildProcessError):
            while True:
                process, status, used = os.wait4(-1, os.WNOHANG)
                if not process:
                    return
                self._ended(process, status, used)

    def _ended(self, process: int, status: int, used: resource.struct_rusage) -> None:
        role = self._running.pop(process, None)
        if role is None:  # a daemon's remains
            return
        stayed = self._judged and time.monotonic() >= self._over
        code = None if stayed else os.waitstatus_to_exitcode(status)
        self._ends[role] = code, used.ru_utime + used.ru_stime
        family.kill(process)  # its group, where that outlives it
        if role == "judge":
            self._judged = True
            self._over = min(self._over, time.monotonic() + GRACE)
