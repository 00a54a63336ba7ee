"""The driver's hold on one worker process, and the verdict on what it saw."""

import json
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from caploc.sandbox import protocol
from caploc.sandbox.protocol import Limits, Profile, remove_folder

PACKAGE = Path(__file__).parent.parent
# A bare Python knows no installed package: the two that hold ours are put in place by hand.
START = """
import sys, types
package, control, settings = sys.argv[1:]
for name, path in (("caploc", package), ("caploc.sandbox", package + "/sandbox")):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
from caploc.sandbox.zygote import main
main(int(control), settings)
"""
EXECUTABLE = sys.executable
# No site-packages (-S, -s), no working directory on the path (-P), UTF-8 whatever the locale.
OPTIONS = ["-P", "-s", "-S", "-X", "utf8"]
# One seed for hashes: the order of a set must not change a verdict from run to run.
ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
# Some Pythons are not found by the system's loader without these.
KEPT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
# Seconds: for a worker to start on a busy machine, to answer beyond the wall limit, to leave.
START_PATIENCE = 60.0
ANSWER_PATIENCE = 30.0
STOP_PATIENCE = 10.0

LONGEST_DETAIL = 200
# Reason → what it means.
REASONS = {
    "passed": "the tests ran to their end",
    "failed": "an assertion of the tests did not hold",
    "error": "program or tests raised an exception, could not be read, or ended early",
    "timeout": "it took more processor time or more time by the clock than allowed",
    "memory": "it needed more memory than allowed",
    "output": "it printed more than allowed",
    "killed": "the system ended it, or the sandbox's worker died",
    "refused": "it is too long, or what program and tests say to each other is not plain data",
}
STOPPED = {
    "timeout": "still running after {limits.wall_seconds:g} seconds",
    "memory": "more than {limits.memory_bytes} bytes of memory",
    "output": "printed more than {limits.output_bytes} bytes",
    "killed": "more than {limits.processes} processes",
}


@dataclass(frozen=True, slots=True)
class Program:
    """A candidate program and the code that tests it.

    The tests are statements that raise unless the program is right; what they name and do not
    define is the program's.
    """

    text: str
    tests: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a program."""

    passed: bool  # whether the tests ran to their end
    reason: str  # a key of `REASONS`
    detail: str  # one short printable line for a person; empty for a pass


class WorkerFailed(Exception):
    """The worker could not start, or died."""


class NotIsolated(WorkerFailed):
    """A program did not run, because its process could not be isolated."""


class Worker:
    """One process that judges one program after another.

    Attributes:
        seen: what its rehearsal saw: "open_ways", for each capability the ways to it that were
            open, and "granted", whether programs have users of their own.
    """

    def __init__(self, limits: Limits, profile: Profile) -> None:
        """Start it; the thread that does so must live as long as the worker.

        Raises WorkerFailed if the profile cannot be had, or does not hold what it must.
        """
        if not EXECUTABLE:
            raise WorkerFailed("this Python does not say where its executable is")
        self._limits = limits
        self._control, theirs = socket.socketpair()
        self._folder = None if profile.namespaces else tempfile.mkdtemp(prefix="caploc-")
        if self._folder is not None:
            os.chmod(self._folder, 0o711)  # programs may run as another user
        settings = {
            "driver": os.getpid(),
            "limits": asdict(limits),
            "profile": asdict(profile),
            "folder": self._folder,
        }
        command = [EXECUTABLE, *OPTIONS, "-c", START, str(PACKAGE), str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                [*command, json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                env=ENVIRONMENT | {name: os.environ[name] for name in KEPT if name in os.environ},
                cwd="/",
                # The terminal's Ctrl-C is for the driver.
                start_new_session=True,
            )
        self._control.settimeout(START_PATIENCE)
        try:
            self.seen = self._greet()
        except BaseException:
            self.stop()
            raise
        finally:
            if self._process.stderr is not None:
                self._process.stderr.close()
        self._control.settimeout(limits.wall_seconds + ANSWER_PATIENCE)

    def _greet(self) -> dict[str, Any]:
        greeting = receive_or_none(self._control)
        if greeting is None:
            self._process.kill()
            _, printed = self._process.communicate()
            last = ["it said nothing", *printed.decode(errors="replace").splitlines()][-1]
            raise WorkerFailed(f"the sandbox's worker died: {last}")
        if "error" in greeting:
            raise WorkerFailed(greeting["error"])
        seen: dict[str, Any] = greeting["seen"]
        return seen

    def judge(self, program: Program) -> Verdict:
        """Have one program judged.

        Raises:
            WorkerFailed: if the worker is of no more use.
            NotIsolated: if the program did not run; another worker may have more luck.
        """
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                try:
                    socket.send_fds(self._control, [b"."], [theirs.fileno()])
                except OSError as error:
                    raise WorkerFailed("the sandbox's worker died") from error
            ours.settimeout(self._limits.wall_seconds + ANSWER_PATIENCE)
            # A judge that ends before it has read everything says so by how it ends.
            with suppress(OSError):
                protocol.send(ours, asdict(program))
            record = receive_or_none(self._control)
            if record is None:
                raise WorkerFailed("the sandbox's worker died")
            if record["isolated"] < 2:
                raise NotIsolated("a process could not be isolated")
            return conclude(receive_or_none(ours), record, self._limits)

    def interrupt(self) -> None:
        """Have whoever waits for it fail at once; from any thread."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        """End it and all that it started."""
        self._control.close()  # as a sign to leave nothing behind
        try:
            self._process.wait(STOP_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._folder is not None:
            remove_folder(self._folder)


def receive_or_none(connection: socket.socket) -> Any:
    """Return the next message; None if there is none, or nothing sensible."""
    try:
        return protocol.receive(connection)
    except (OSError, protocol.Gone, protocol.Malformed):
        return None


def write_verdict(reason: str, detail: str = "") -> Verdict:
    """Return a verdict whose detail is short, and harmless on a terminal."""
    line = " ".join(detail.split())
    shown = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in line)
    if len(shown) > LONGEST_DETAIL:
        shown = shown[: LONGEST_DETAIL - 1] + "…"
    return Verdict(reason == "passed", reason, shown)


def conclude(report: Any, record: dict[str, Any], limits: Limits) -> Verdict:
    """Return the verdict from the judge's report, if it sent one, and how both processes ended.

    That is the worker's `record`, made by `caploc.sandbox.zygote.Watch.wait`.
    """
    stopped = record["stopped"]
    if stopped:
        return write_verdict(stopped, STOPPED[stopped].format(limits=limits))
    match report:
        case {"reason": str(reason), "detail": str(detail)} if reason in REASONS:
            return write_verdict(reason, detail)
        case {"reason": "lost"}:
            who, (code, seconds) = "the program", record["candidate"]
        case _:
            who, (code, seconds) = "the test code", record["judge"]
    if code is None:
        return write_verdict("error", f"{who} closed its connection to the tests")
    if code >= 0:
        return write_verdict("error", f"{who} ended itself before the tests were over")
    # Nobody else kills it but a system out of memory, which it does not take much time to be. The
    # kernel's own clock for the limit is coarse: on a busy machine the two differ by a third.
    if -code == signal.SIGKILL and seconds > math.ceil(limits.cpu_seconds) / 2:
        used = f"{who} used {limits.cpu_seconds:g} seconds of processor time"
        return write_verdict("timeout", used)
    return write_verdict("killed", f"{who} was ended by {signal.Signals(-code).name}")
