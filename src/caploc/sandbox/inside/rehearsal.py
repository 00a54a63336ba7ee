"""Ways out, each tried by a process of ours in the very isolation that programs get.

They lead to a witness outside (`caploc.sandbox.inside.witness`), which says afterwards what reached
it, so that a way out counts even if no call admitted to it.
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
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from caploc.sandbox.inside import frames
from caploc.sandbox.inside.kernel import LINUX, PR_GET_NO_NEW_PRIVS, call, system_call
from caploc.sandbox.inside.witness import KINDS, SIGNAL, Target, unix_addresses

Attempts = dict[str, Callable[[], object]]

# How a kernel says no to a call before it looks at what the call asks for. Any other answer means
# that the call got through.
REFUSALS = (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.ESRCH)
# F_SETSIG, F_SETOWN_EX (with F_OWNER_PID), FIOSETOWN, SIOCSPGRP, FIOASYNC.
SET_SIGNAL, SET_OWNER_EX, OWNER_CALLS, SET_ASYNC = 10, 15, (0x8901, 0x8902), 0x5452
PTRACE_SEIZE = 0x4206
LIBRARY = os.path.dirname(os.__file__)
COLUMNS = {"x86_64": 0, "aarch64": 1}
# Calls that no computation needs, by their numbers on each machine; asked with zeros, which do
# nothing. (Whether the kernel would refuse them anyway is not ours to know.)
UNUSUAL = {
    "io_setup": (206, 0), "io_uring_setup": (425, 425), "bpf": (321, 280), "keyctl": (250, 219),
    "add_key": (248, 217), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "memfd_create": (319, 279),
    "personality": (135, 92), "clock_settime": (227, 112), "init_module": (175, 105),
    "open_by_handle_at": (304, 265), "fanotify_init": (300, 262), "execve": (59, 221),
    "shmget": (29, 194), "mq_open": (240, 180), "splice": (275, 76),
}  # fmt: skip


def main(report_file: int, witness_file: int, target: Target, memory_bytes: int) -> None:
    """Try every way out, report for each capability what got through, and end at once."""
    open_ways = {
        capability: [name for name, attempt in attempts.items() if succeeds(attempt)]
        for capability, attempts in list_attempts(target, memory_bytes).items()
    }
    with socket.socket(fileno=witness_file) as asking:
        frames.send(asking, "what reached you?")
        for capability in frames.receive(asking):
            open_ways[capability].append("the witness was reached")
    os.write(report_file, json.dumps(open_ways).encode())
    os._exit(0)


def succeeds(attempt: Callable[[], object]) -> bool:
    """Tell whether an attempt gets through."""
    try:
        attempt()
    except (OSError, AttributeError):  # the latter where this system has no such call
        return False
    return True


def list_attempts(target: Target, memory_bytes: int) -> dict[str, Attempts]:
    """Return, for each capability, the ways to have it."""
    return {
        "network": try_network(target),
        "sockets": try_sockets(target),
        "reading": try_reading(target),
        "stat": {"stat": partial(os.stat, target.file), "access": partial(find, target.file)},
        "writing": try_writing(target.folder, target.file),
        "attributes": try_attributes(target.file),
        "library": try_writing(LIBRARY, os.__file__) | try_attributes(os.__file__),
        "signals": try_signals(target.process),
        "processes": try_processes(target),
        "kernel": {name: partial(reach, numbers) for name, numbers in UNUSUAL.items()},
        "rights": {"no_new_privs": check_new_rights, "setuid": try_root},
        "memory": {"mmap": lambda: mmap.mmap(-1, memory_bytes).close()},
    }


def try_network(target: Target) -> Attempts:
    """TCP and UDP to this machine itself."""
    address = ("127.0.0.1", target.port)

    def tcp() -> None:
        with socket.socket() as connection:
            connection.connect(address)

    def udp() -> None:
        with socket.socket(type=socket.SOCK_DGRAM) as connection:
            connection.sendto(b"x", address)

    return {"TCP": tcp, "UDP": udp}


def try_sockets(target: Target) -> Attempts:
    """Local sockets of every kind, by a new socket and by one of a pair."""

    def connect(kind: int, address: str) -> None:
        with socket.socket(socket.AF_UNIX, kind) as connection:
            connection.connect(address)
            connection.send(b"x")

    def send(kind: int, address: str) -> None:
        first, second = socket.socketpair(socket.AF_UNIX, kind)
        with first, second:
            first.sendto(b"x", address)
            # A pair of streams sends to its other end, whatever the address.
            second.setblocking(False)
            with suppress(BlockingIOError):
                second.recv(1)
                raise PermissionError

    def reconnect(kind: int, address: str) -> None:
        first, second = socket.socketpair(socket.AF_UNIX, kind)
        with first, second:
            first.connect(address)

    ways = {"socket": connect, "socketpair sendto": send, "socketpair connect": reconnect}
    attempts: Attempts = {
        f"{name} {kind.name} {number}": partial(way, kind, address)
        for name, way in ways.items()
        for kind in KINDS
        for number, address in enumerate(unix_addresses(target.folder, kind))
    }
    return attempts


def try_reading(target: Target) -> Attempts:
    """The contents of files, and names in folders."""
    paths = [target.file, "/etc/passwd", __file__, f"/proc/{target.process}/environ"]

    def list_folder(folder: str) -> None:
        own = [path for name in os.listdir(folder) if leads_to_python(path := f"{folder}/{name}")]
        if len(own) == len(os.listdir(folder)):  # nothing but the way to the library
            raise PermissionError

    ways: Attempts = {f"open {path}": partial(open_and_close, path, os.O_RDONLY) for path in paths}
    folders = (target.folder, "/etc", target.home)
    return ways | {f"list {path}": partial(list_folder, path) for path in folders}


def leads_to_python(path: str) -> bool:
    """Tell whether a path is Python's library or a folder on the way to it."""
    return any(f"{each}/".startswith(f"{path}/") for each in sys.path)


def find(path: str) -> None:
    """Ask whether a file is there.

    Raises:
        PermissionError: if it does not seem to be.
    """
    if not os.access(path, os.F_OK):
        raise PermissionError


def try_writing(folder: str, file: str) -> Attempts:
    """Change a file and its folder by every call that does; what is there stays as it is."""
    new = f"{folder}/new-{os.getpid()}"

    def remove_new(make: Callable[..., object], *arguments: object) -> None:
        make(*arguments)
        with suppress(OSError):
            (os.rmdir if os.path.isdir(new) and not os.path.islink(new) else os.unlink)(new)

    return {
        "open": partial(open_and_close, file, os.O_WRONLY),
        "truncate": lambda: os.truncate(file, os.stat(file).st_size),
        "create": partial(remove_new, open_and_close, new, os.O_WRONLY | os.O_CREAT),
        "mkdir": partial(remove_new, os.mkdir, new),
        "symlink": partial(remove_new, os.symlink, "nowhere", new),
        "link": partial(remove_new, os.link, file, new),
        "mkfifo": partial(remove_new, os.mkfifo, new),
        "link to here": partial(os.link, file, "linked"),
    }


def try_attributes(path: str) -> Attempts:
    """Change mode, dates and attributes, by path and by an open file."""

    def by_file(change: Callable[[int], object]) -> None:
        file = os.open(path, os.O_RDONLY)
        try:
            change(file)
        finally:
            os.close(file)

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

    def by_file(own: Callable[[int], object]) -> None:
        first, second = socket.socketpair()
        with first, second:
            fcntl.fcntl(first, SET_SIGNAL, SIGNAL)
            own(first.fileno())
            fcntl.fcntl(first, fcntl.F_SETFL, os.O_ASYNC)
            second.send(b"x")

    def own_ex(file: int) -> None:
        fcntl.fcntl(file, SET_OWNER_EX, (1).to_bytes(4, "little") + process.to_bytes(4, "little"))

    def by_ioctl(file: int, command: int) -> None:
        fcntl.ioctl(file, command, process.to_bytes(4, "little"))
        fcntl.ioctl(file, SET_ASYNC, (1).to_bytes(4, "little"))

    return {
        "kill": partial(os.kill, process, SIGNAL),
        "pidfd": lambda: signal.pidfd_send_signal(os.pidfd_open(process), SIGNAL),
        "F_SETOWN": partial(by_file, lambda file: fcntl.fcntl(file, fcntl.F_SETOWN, process)),
        "F_SETOWN_EX": partial(by_file, own_ex),
        **{
            f"ioctl {command:#x}": partial(by_file, partial(by_ioctl, command=command))
            for command in OWNER_CALLS
        },
    }


def try_processes(target: Target) -> Attempts:
    """Look into another process, and change it."""
    process = target.process
    own = ctypes.create_string_buffer(1)
    # One byte of ours and one at their address 0, which is looked at last: struct iovec, twice.
    pieces = (ctypes.c_ulong * 4)(ctypes.addressof(own), 1, 0, 1)
    here = ctypes.addressof(pieces)
    parts = (process, here, 1, here + 2 * ctypes.sizeof(ctypes.c_ulong), 1)
    return {
        "ptrace": partial(reach, (101, 117), PTRACE_SEIZE, target.bystander),
        "process_vm_readv": partial(reach, (310, 270), *parts, keep=pieces),
        "process_vm_writev": partial(reach, (311, 271), *parts, keep=pieces),
        "kcmp": partial(reach, (312, 272), process, process),
        "pidfd_open": partial(reach, (434, 434), process),
        "memory": partial(open_and_close, f"/proc/{process}/mem", os.O_RDWR),
        "files": partial(os.listdir, f"/proc/{process}/fd"),
        "limits": partial(reach, (302, 261), process, 7),
    }


def reach(numbers: tuple[int, int], *arguments: int, keep: object = None) -> None:
    """Make a system call with these arguments, then zeros; `keep` is what they point to.

    Raises:
        OSError: if it is refused as a whole.
    """
    column = COLUMNS.get(platform.machine()) if LINUX else None  # others number them otherwise
    if column is None:
        return  # what cannot be tried counts as open
    try:
        system_call(numbers[column], *arguments, *(0,) * (6 - len(arguments)))
    except OSError as error:
        if error.errno in REFUSALS:
            raise


def open_and_close(path: str, flags: int) -> None:
    """Open a file and no more."""
    os.close(os.open(path, flags, 0o600))


def check_new_rights() -> None:
    """Succeed if a program that this process starts could have more rights than it.

    Raises:
        PermissionError: if the kernel sees to it that none can, as only Linux does.
    """
    if LINUX and call("prctl", PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1:
        raise PermissionError


def try_root() -> None:
    """Become root, unless this is all the root there is in a namespace of its own, on Linux.

    Raises:
        PermissionError: if it cannot be had.
    """
    if LINUX and os.getuid() == 0:
        raise PermissionError
    os.setuid(0)
