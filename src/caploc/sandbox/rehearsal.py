"""Ways out: a program that tries them in the very isolation that programs get, as one of them.

They lead to what `open_witness` of `caploc.sandbox.pool` offers. This text runs by itself, with
nothing but the standard library beside it. What the filter refuses whatever the machine (it is read
and proved in the tests) is tried by a few calls, which show that it is in force.
"""

import ctypes
import errno
import fcntl
import os
import platform
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

LIBC = ctypes.CDLL(None, use_errno=True)
# How a kernel says no to a call before it looks at what the call asks for. Any other answer means
# that the call got through.
REFUSALS = (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.ESRCH)
PTRACE_SEIZE, PR_GET_NO_NEW_PRIVS = 0x4206, 39


def find_open_ways(
    offer: dict[str, Any], unusual: dict[str, Sequence[int]], memory_bytes: int
) -> dict[str, list[str]]:
    """Try every way to each capability; return those that got through.

    `unusual` are system calls by name, with their numbers on both machines; `memory_bytes` is more
    than there should be.
    """
    file, process = offer["file"], offer["process"]
    paths = [file, "/etc/passwd", offer["package"], f"/proc/{process}/environ"]
    capabilities: dict[str, dict[str, Callable[[], object]]] = {
        "the network": {
            f"{kind} to {address}": partial(send, "socket", family, kind, address)
            for family, kind, address in offer["sockets"]
            if family == socket.AF_INET
        },
        "local sockets": {
            f"{way} {kind} {address!r}": partial(send, way, family, kind, address)
            for way in ("socket", "socketpair")
            for family, kind, address in offer["sockets"]
            if family == socket.AF_UNIX
        },
        "the user's files": {
            **{f"open {path}": partial(os.open, path, os.O_RDONLY) for path in paths},
            **{f"list {path}": partial(list_folder, path) for path in offer["folders"]},
        },
        "names and dates of files": {
            "stat": lambda: os.stat(file),
            "access": lambda: os.access(file, os.F_OK) or refuse(),
        },
        "writing files": try_writing(file),
        "modes and attributes": try_attributes(file),
        "Python's library": try_writing(os.__file__) | try_attributes(os.__file__),
        "other processes' memory": {
            "ptrace": lambda: reach((101, 117), PTRACE_SEIZE, process),
            "kcmp": lambda: reach((312, 272), process, process),
            "pidfd_open": lambda: reach((434, 434), process),
            "limits": lambda: reach((302, 261), process, 7),
            "memory": lambda: os.open(f"/proc/{process}/mem", os.O_RDWR),
            "files": lambda: os.listdir(f"/proc/{process}/fd"),
        },
        "rare system calls": {name: partial(reach, numbers) for name, numbers in unusual.items()},
        "more rights": {
            "no_new_privs": lambda: LIBC.prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 and refuse(),
            # A process that already is root has only its namespace's rights, which are none.
            "setuid": lambda: refuse() if os.getuid() == 0 else os.setuid(0),
        },
        "memory beyond the limit": {"calloc": lambda: bytes(memory_bytes)},
        # At the end, as they end the process.
        "signals": {
            "F_SETOWN": lambda: signal_by_file(process),
            "pidfd": lambda: signal.pidfd_send_signal(os.pidfd_open(process), signal.SIGUSR1),
            "kill": lambda: os.kill(process, signal.SIGUSR1),
        },
    }
    open_ways: dict[str, list[str]] = {capability: [] for capability in capabilities}
    for capability, attempts in capabilities.items():
        for name, attempt in attempts.items():
            with suppress(OSError, MemoryError):
                attempt()
                open_ways[capability].append(name)
    return open_ways


def refuse() -> NoReturn:
    """Say that nothing was gained."""
    raise PermissionError


def send(way: str, family: int, kind: int, address: Any) -> None:
    """Send to an address by a new socket, or by one of a pair."""
    pair = socket.socketpair(family, kind) if way == "socketpair" else [socket.socket(family, kind)]
    with pair[0] as first, pair[-1]:
        if way == "socketpair" and kind == socket.SOCK_DGRAM:
            first.sendto(b"x", address)
        first.connect(address)
        first.send(b"x")


def list_folder(folder: str) -> None:
    """Find in a folder more than Python's library, or the way to it, which every program sees."""
    found = [f"{folder}/{name}/" for name in os.listdir(folder)]
    if all(any(f"{each}/".startswith(path) for each in sys.path) for path in found):
        refuse()


def try_writing(file: str) -> dict[str, Callable[[], object]]:
    """Change a file and its folder; what is there stays as it is."""
    folder = os.path.dirname(file)

    def make_symlink() -> None:
        os.symlink("nowhere", new := f"{folder}/new-{os.getpid()}")
        os.unlink(new)

    return {
        "open": lambda: os.open(file, os.O_WRONLY),
        "truncate": lambda: os.truncate(file, os.stat(file).st_size),
        "create": lambda: tempfile.NamedTemporaryFile(dir=folder).close(),
        "mkdir": lambda: tempfile.TemporaryDirectory(dir=folder).cleanup(),
        "symlink": make_symlink,
        "link": lambda: os.link(file, "linked"),
    }


def try_attributes(path: str) -> dict[str, Callable[[], object]]:
    """Change mode, dates, owner and attributes, to what they are already."""

    def change_attribute() -> None:
        os.setxattr(path, "user.caploc", b"x")
        os.removexattr(path, "user.caploc")

    return {
        "chmod": lambda: os.chmod(path, os.stat(path).st_mode & 0o777),
        "utime": lambda: os.utime(path, ns=(os.stat(path).st_atime_ns, os.stat(path).st_mtime_ns)),
        "chown": lambda: os.chown(path, -1, os.stat(path).st_gid),
        "setxattr": change_attribute,
    }


def signal_by_file(process: int) -> None:
    """Have a file's events sent to another process."""
    first, second = socket.socketpair()
    with first, second:
        fcntl.fcntl(first, fcntl.F_SETOWN, process)
        fcntl.fcntl(first, fcntl.F_SETFL, os.O_ASYNC)
        second.send(b"x")


def reach(numbers: Sequence[int], *arguments: int) -> None:
    """Make a system call with these arguments, then zeros; raises OSError if it is refused."""
    number = numbers[platform.machine() == "aarch64"]
    longs = map(ctypes.c_long, (number, *arguments, *(0,) * (6 - len(arguments))))
    if LIBC.syscall(*longs) == -1 and ctypes.get_errno() in REFUSALS:
        refuse()
