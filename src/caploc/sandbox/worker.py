"""The driver's hold on one worker process."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from caploc.sandbox.inside import frames
from caploc.sandbox.inside.folders import remove
from caploc.sandbox.isolation import Profile
from caploc.sandbox.limits import Limits
from caploc.sandbox.verdicts import Program, Verdict, conclude

PACKAGE = Path(__file__).parent.parent
# A bare Python knows no installed package: the two that hold ours are put in place by hand.
START = """
import sys, types
package, control, settings = sys.argv[1:]
for name, path in (("caploc", package), ("caploc.sandbox", package + "/sandbox")):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
from caploc.sandbox.inside.start import main
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


class WorkerFailed(Exception):
    """The worker could not start, or died."""


class NotIsolated(WorkerFailed):
    """A program did not run, because its process could not be isolated."""


class Worker:
    """One process that judges one program after another.

    Attributes:
        seen: what its rehearsal saw: `caploc.sandbox.inside.start.build_zygote`.
    """

    def __init__(self, limits: Limits, profile: Profile) -> None:
        """Start it; the thread that does so must live as long as the worker.

        Raises:
            WorkerFailed: if the profile cannot be had, or does not hold what it must.
        """
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
        with theirs:
            self._process = start(theirs.fileno(), json.dumps(settings))
        self._control.settimeout(START_PATIENCE)
        try:
            self.seen = self._greeting()
        except BaseException:
            self.stop()
            raise
        finally:
            if self._process.stderr is not None:
                self._process.stderr.close()
        self._control.settimeout(limits.wall_seconds + ANSWER_PATIENCE)

    def _greeting(self) -> dict[str, Any]:
        try:
            greeting = self._answer()
        except WorkerFailed as error:
            raise WorkerFailed(last_words(self._process)) from error
        if "error" in greeting:
            raise WorkerFailed(greeting["error"])
        seen: dict[str, Any] = greeting["seen"]
        return seen

    def _answer(self) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = frames.receive(self._control)
        except (OSError, frames.Gone, frames.Malformed) as error:
            raise WorkerFailed("the sandbox's worker died") from error
        return answer

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
                frames.send(ours, asdict(program))
            record = self._answer()
            if len(record["isolated"]) < 2:
                raise NotIsolated("a process could not be isolated")
            return conclude(report(ours), record, self._limits)

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
            remove(self._folder)


def start(control: int, settings: str) -> subprocess.Popen[bytes]:
    """A fresh Python process that serves over an open socket."""
    if not EXECUTABLE:
        raise WorkerFailed("this Python does not say where its executable is")
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    return subprocess.Popen(
        [EXECUTABLE, *OPTIONS, "-c", START, str(PACKAGE), str(control), settings],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=[control],
        env={**ENVIRONMENT, **kept},
        cwd="/",
        # The terminal's Ctrl-C is for the driver.
        start_new_session=True,
    )


def last_words(process: subprocess.Popen[bytes]) -> str:
    """The last line that a worker which does not answer has printed; ends it."""
    process.kill()
    _, printed = process.communicate()
    lines = printed.decode(errors="replace").splitlines()
    return f"the sandbox's worker died: {lines[-1] if lines else 'it said nothing'}"


def report(judge: socket.socket) -> Any:
    """What the judge's process, which has ended, left to be read; None if nothing sensible."""
    try:
        return frames.receive(judge)
    except (OSError, frames.Gone, frames.Malformed):
        return None
