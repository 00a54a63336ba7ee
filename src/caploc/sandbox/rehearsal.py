"""Ways out, each tried by a process of ours in the very isolation that programs get.

They lead to what a program could be after: the driver offers it, and says afterwards what of it was
reached, so that a way out counts even if no call admitted to it.
"""

import ctypes
import errno
import fcntl
import json
import mmap
import os
import platform
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from caploc.sandbox.isolation import (
    LINUX,
    MACHINES,
    PR_GET_NO_NEW_PRIVS,
    UNUSUAL,
    call,
    control_process,
)
from caploc.sandbox.protocol import Offer

Attempts = dict[str, Callable[[], object]]

# How a kernel says no to a call before it looks at what the call asks for. Any other answer means
# that the call got through.
REFUSALS = (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.ESRCH)
# F_SETSIG, F_SETOWN_EX (with F_OWNER_PID), FIOSETOWN, SIOCSPGRP, FIOASYNC.
SET_SIGNAL, SET_OWNER_EX, OWNER_CALLS, SET_ASYNC = 10, 15, (0x8901, 0x8902), 0x5452
PTRACE_SEIZE = 0x4206
LIBRARY = os.path.dirname(os.__file__)


def serve_rehearsal(report_file: int, offer: Offer, memory_bytes: int) -> None:
    """Try every way out, report for each capability which ones got through, and end at once."""
    open_ways = {
        capability: [name for name, attempt in attempts.items() if succeeds(attempt)]
        for capability, attempts in list_attempts(offer, memory_bytes).items()
    }
    os.write(report_file, json.dumps(open_ways).encode())
    os._exit(0)


def succeeds(attempt: Callable[[], object]) -> bool:
    """Tell whether an attempt gets through."""
    try:
        attempt()
    except (OSError, AttributeError):  # the latter where this system has no such call
        return False
    return True


def list_attempts(offer: Offer, memory_bytes: int) -> dict[str, Attempts]:
    """Return, for each capability, the ways to have it."""

    def check_presence() -> None:
        if not os.access(offer.file, os.F_OK):
            raise PermissionError

    return {
        "network": {
            f"{kind} to {address}": partial(connect_and_send, socket.AF_INET, kind, tuple(address))
            for kind, address in offer.ports
        },
        "sockets": try_sockets(offer.sockets),
        "reading": try_reading(offer),
        "stat": {"stat": partial(os.stat, offer.file), "access": check_presence},
        "writing": try_writing(offer.folder, offer.file),
        "attributes": try_attributes(offer.file),
        "library": try_writing(LIBRARY, os.__file__) | try_attributes(os.__file__),
        "processes": try_processes(offer.process),
        "kernel": {name: partial(reach, numbers) for name, numbers in UNUSUAL.items()},
        "rights": {"no_new_privs": check_new_rights, "setuid": try_root},
        "memory": {"mmap": lambda: mmap.mmap(-1, memory_bytes).close()},
        "signals": try_signals(offer.process),  # at the end, as they end the process
    }


def connect_and_send(family: int, kind: int, address: Any) -> None:
    """Send to an address by a new socket."""
    with socket.socket(family, kind) as connection:
        connection.connect(address)
        connection.send(b"x")


def try_sockets(sockets: list[tuple[int, str]]) -> Attempts:
    """Reach local sockets of every kind, by a new socket and by one of a pair."""

    def by_pair(reconnect: bool, kind: int, address: str) -> None:
        first, second = socket.socketpair(socket.AF_UNIX, kind)
        with first, second:
            if reconnect:
                first.connect(address)
                return
            first.sendto(b"x", address)
            # A pair of streams sends to its other end, whatever the address.
            second.setblocking(False)
            with suppress(BlockingIOError):
                second.recv(1)
                raise PermissionError

    ways: dict[str, Callable[[int, str], None]] = {
        "socket": partial(connect_and_send, socket.AF_UNIX),
        "socketpair sendto": partial(by_pair, False),
        "socketpair connect": partial(by_pair, True),
    }
    return {
        f"{name} {socket.SocketKind(kind).name} {address!r}": partial(way, kind, address)
        for name, way in ways.items()
        for kind, address in sockets
    }


def try_reading(offer: Offer) -> Attempts:
    """Read files, and names in folders."""
    paths = [offer.file, "/etc/passwd", __file__, f"/proc/{offer.process}/environ"]

    def list_folder(folder: str) -> None:
        found = [f"{folder}/{name}/" for name in os.listdir(folder)]
        # Nothing but Python's library, or the way to it, is what every program sees.
        if all(any(f"{each}/".startswith(path) for each in sys.path) for path in found):
            raise PermissionError

    ways: Attempts = {f"open {path}": partial(open_file, path, os.O_RDONLY) for path in paths}
    folders = (offer.folder, "/etc", offer.home)
    return ways | {f"list {path}": partial(list_folder, path) for path in folders}


def try_writing(folder: str, file: str) -> Attempts:
    """Change a file and its folder by every call that does; what is there stays as it is."""
    new = f"{folder}/new-{os.getpid()}"

    def remove_new(make: Callable[..., object], *arguments: object) -> None:
        make(*arguments)
        with suppress(OSError):
            (os.rmdir if os.path.isdir(new) and not os.path.islink(new) else os.unlink)(new)

    return {
        "open": partial(open_file, file, os.O_WRONLY),
        "truncate": lambda: os.truncate(file, os.stat(file).st_size),
        "create": partial(remove_new, open_file, new, os.O_WRONLY | os.O_CREAT),
        "mkdir": partial(remove_new, os.mkdir, new),
        "symlink": partial(remove_new, os.symlink, "nowhere", new),
        "link": partial(remove_new, os.link, file, new),
        "mkfifo": partial(remove_new, os.mkfifo, new),
        "link to here": partial(os.link, file, "linked"),
    }


def try_attributes(path: str) -> Attempts:
    """Change mode, dates and attributes, by path and by an open file."""

    def by_file(change: Callable[[int], object]) -> None:
        with open(path, "rb") as file:
            change(file.fileno())

    def set_attribute(it: Any) -> None:
        os.setxattr(it, "user.caploc", b"x")
        os.removexattr(it, "user.caploc")

    # To what they are already: the library must stay as it is even where this succeeds.
    changes: dict[str, Callable[[Any], object]] = {
        "chmod": lambda it: os.chmod(it, os.stat(it).st_mode & 0o777),
        "utime": lambda it: os.utime(it, ns=(os.stat(it).st_atime_ns, os.stat(it).st_mtime_ns)),
        "chown": lambda it: os.chown(it, -1, os.stat(it).st_gid),
        "setxattr": set_attribute,
    }
    by_path = {name: partial(change, path) for name, change in changes.items()}
    return by_path | {f"f{name}": partial(by_file, change) for name, change in changes.items()}


def try_signals(process: int) -> Attempts:
    """Signal another process: directly, or by having a file's events sent to it."""
    one, number = (1).to_bytes(4, "little"), process.to_bytes(4, "little")

    def by_file(own: Callable[[int], object]) -> None:
        first, second = socket.socketpair()
        with first, second:
            fcntl.fcntl(first, SET_SIGNAL, signal.SIGUSR1)
            own(first.fileno())
            fcntl.fcntl(first, fcntl.F_SETFL, os.O_ASYNC)
            second.send(b"x")

    def by_ioctl(command: int, file: int) -> None:
        fcntl.ioctl(file, command, number)
        fcntl.ioctl(file, SET_ASYNC, one)

    owning: dict[str, Callable[[int], object]] = {
        "F_SETOWN": lambda file: fcntl.fcntl(file, fcntl.F_SETOWN, process),
        "F_SETOWN_EX": lambda file: fcntl.fcntl(file, SET_OWNER_EX, one + number),
        **{f"ioctl {command:#x}": partial(by_ioctl, command) for command in OWNER_CALLS},
    }
    return {
        **{name: partial(by_file, own) for name, own in owning.items()},
        "kill": partial(os.kill, process, signal.SIGUSR1),
        "pidfd": lambda: signal.pidfd_send_signal(os.pidfd_open(process), signal.SIGUSR1),
    }


def try_processes(process: int) -> Attempts:
    """Look into another process, and change it."""
    own = ctypes.create_string_buffer(1)
    # One byte of ours and one at their address 0, which is looked at last: struct iovec, twice.
    pieces = (ctypes.c_ulong * 4)(ctypes.addressof(own), 1, 0, 1)
    here = ctypes.addressof(pieces)
    parts = (process, here, 1, here + 2 * ctypes.sizeof(ctypes.c_ulong), 1)
    return {
        "ptrace": partial(reach, (101, 117), PTRACE_SEIZE, process),
        "process_vm_readv": partial(reach, (310, 270), *parts, keep=(own, pieces)),
        "process_vm_writev": partial(reach, (311, 271), *parts, keep=(own, pieces)),
        "kcmp": partial(reach, (312, 272), process, process),
        "pidfd_open": partial(reach, (434, 434), process),
        "memory": partial(open_file, f"/proc/{process}/mem", os.O_RDWR),
        "files": partial(os.listdir, f"/proc/{process}/fd"),
        "limits": partial(reach, (302, 261), process, 7),
    }


def reach(numbers: Sequence[int], *arguments: int, keep: object = None) -> None:
    """Make a system call with these arguments, then zeros; raises OSError if it is refused.

    `keep` is what the arguments point to.
    """
    if not LINUX or platform.machine() not in MACHINES:  # others number them otherwise
        return  # what cannot be tried counts as open
    _, column = MACHINES[platform.machine()]
    try:
        call("syscall", numbers[column], *arguments, *(0,) * (6 - len(arguments)))
    except OSError as error:
        if error.errno in REFUSALS:
            raise


def open_file(path: str, flags: int) -> None:
    """Open a file and no more."""
    os.close(os.open(path, flags, 0o600))


def check_new_rights() -> None:
    """Raise PermissionError if no program that this process starts can have more rights than it."""
    if LINUX and control_process(PR_GET_NO_NEW_PRIVS) == 1:  # as only Linux sees to
        raise PermissionError


def try_root() -> None:
    """Become root; on Linux a process that already is has only its namespace's, which is none."""
    if LINUX and os.getuid() == 0:
        raise PermissionError
    os.setuid(0)
