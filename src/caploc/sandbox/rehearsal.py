"""Ways out, each tried by a process of ours in the very isolation that programs get.

They lead to a witness outside, which offers what a program could be after and says afterwards what
reached it, so that a way out counts even if no call admitted to it.
"""

import ctypes
import errno
import fcntl
import json
import mmap
import os
import platform
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from caploc.sandbox import protocol
from caploc.sandbox.isolation import (
    LINUX,
    MACHINES,
    PR_GET_NO_NEW_PRIVS,
    UNUSUAL,
    call,
    control_process,
    keep_files,
)  # fmt: skip

Attempts = dict[str, Callable[[], object]]

# How a kernel says no to a call before it looks at what the call asks for. Any other answer means
# that the call got through.
REFUSALS = (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.ESRCH)
# F_SETSIG, F_SETOWN_EX (with F_OWNER_PID), FIOSETOWN, SIOCSPGRP, FIOASYNC.
SET_SIGNAL, SET_OWNER_EX, OWNER_CALLS, SET_ASYNC = 10, 15, (0x8901, 0x8902), 0x5452
PTRACE_SEIZE = 0x4206
LIBRARY = os.path.dirname(os.__file__)
# Ignored by whoever does not wait for it, as the witness does.
SIGNAL = signal.SIGURG
KINDS = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET)


@dataclass(frozen=True, slots=True)
class Offer:
    """What the witness offers; each is out of a program's reach in full isolation."""

    folder: str  # that everyone may write, with a file and sockets in it
    file: str  # that its owner may write and everyone may read
    process: int  # the witness
    bystander: int  # its child, for whoever is traced may not be able to answer
    port: int  # of TCP and UDP on this machine
    home: str  # the user's home folder


def start_witness(folder: str | None) -> tuple[Offer, socket.socket]:
    """Fork the witness, which leaves once it was asked; `folder` is where to make its own."""
    ours, theirs = socket.socketpair()
    process = os.fork()
    if process == 0:
        with suppress(BaseException):
            keep_files([theirs.fileno()])
            place = tempfile.mkdtemp(prefix="caploc-", dir=folder)
            try:
                serve_as_witness(socket.socket(fileno=0), place)
            finally:
                shutil.rmtree(place, ignore_errors=True)
        os._exit(0)
    theirs.close()
    try:
        place, file, bystander, port = protocol.receive(ours)
    except protocol.Gone as error:
        raise OSError(
            errno.EIO, "no temporary folder could be made to try the isolation"
        ) from error
    return Offer(place, file, process, bystander, port, os.path.expanduser("~")), ours


def serve_as_witness(asked: socket.socket, folder: str) -> None:
    """Offer files, sockets and itself; when asked, say which capabilities were used on them."""
    seen: set[str] = set()
    signal.signal(SIGNAL, lambda number, frame: seen.add("signals"))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.chmod(folder, 0o777)
    file = f"{folder}/file"
    os.close(os.open(file, os.O_CREAT | os.O_WRONLY))
    os.chmod(file, 0o644)
    before = read_state(file)
    sockets = open_sockets(folder)
    bystander = os.fork()
    if bystander == 0:
        asked.close()
        while True:
            signal.pause()
    protocol.send(asked, [folder, file, bystander, sockets[0].getsockname()[1]])
    try:
        protocol.receive(asked)
    finally:
        os.kill(bystander, signal.SIGKILL)
    for each in sockets:
        with suppress(OSError):
            each.recv(1) if each.type == socket.SOCK_DGRAM else each.accept()
            seen.add("network" if each.family == socket.AF_INET else "sockets")
    if read_state(file) != before:
        seen.add("attributes")
    shutil.rmtree(folder, ignore_errors=True)  # now: we may be ended once we have answered
    protocol.send(asked, sorted(seen))
    os.wait()  # for the bystander, whose end is first told to whoever traces it


def open_sockets(folder: str) -> list[socket.socket]:
    """Return TCP and UDP sockets of this machine, then local ones, all of which listen."""
    sockets = [socket.socket(socket.AF_INET, kind) for kind in KINDS[:2]]
    sockets[0].bind(("127.0.0.1", 0))
    with suppress(OSError):
        sockets[1].bind(sockets[0].getsockname())
    for kind in KINDS:
        for address in unix_addresses(folder, kind):
            with suppress(OSError):
                sockets.append(socket.socket(socket.AF_UNIX, kind))
                sockets[-1].bind(address)
                if address[0] != "\0":
                    os.chmod(address, 0o777)
    for each in sockets:
        each.setblocking(False)
        with suppress(OSError):
            each.listen(9)
    return sockets


def read_state(path: str) -> list[Any]:
    """Return what an attack on a file would change."""
    found = os.stat(path)
    names = os.listxattr(path) if LINUX else []
    return [found.st_mode, found.st_mtime_ns, found.st_size, found.st_nlink, names]


def unix_addresses(folder: str, kind: int) -> list[str]:
    """Return where the witness's local sockets of a kind are: a path, and on Linux a bare name."""
    path = f"{folder}/socket{int(kind)}"
    return [path, "\0" + path] if LINUX else [path]


def serve_rehearsal(report_file: int, witness_file: int, target: Offer, memory_bytes: int) -> None:
    """Try every way out, report for each capability what got through, and end at once."""
    open_ways = {
        capability: [name for name, attempt in attempts.items() if succeeds(attempt)]
        for capability, attempts in list_attempts(target, memory_bytes).items()
    }
    with socket.socket(fileno=witness_file) as asking:
        protocol.send(asking, "what reached you?")
        for capability in protocol.receive(asking):
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


def list_attempts(target: Offer, memory_bytes: int) -> dict[str, Attempts]:
    """Return, for each capability, the ways to have it."""

    def check_presence() -> None:
        if not os.access(target.file, os.F_OK):
            raise PermissionError

    return {
        "network": {
            name: partial(connect_and_send, socket.AF_INET, kind, ("127.0.0.1", target.port))
            for name, kind in (("TCP", socket.SOCK_STREAM), ("UDP", socket.SOCK_DGRAM))
        },
        "sockets": try_sockets(target),
        "reading": try_reading(target),
        "stat": {"stat": partial(os.stat, target.file), "access": check_presence},
        "writing": try_writing(target.folder, target.file),
        "attributes": try_attributes(target.file),
        "library": try_writing(LIBRARY, os.__file__) | try_attributes(os.__file__),
        "signals": try_signals(target.process),
        "processes": try_processes(target),
        "kernel": {name: partial(reach, numbers) for name, numbers in UNUSUAL.items()},
        "rights": {"no_new_privs": check_new_rights, "setuid": try_root},
        "memory": {"mmap": lambda: mmap.mmap(-1, memory_bytes).close()},
    }


def connect_and_send(family: int, kind: int, address: Any) -> None:
    """Send to an address by a new socket."""
    with socket.socket(family, kind) as connection:
        connection.connect(address)
        connection.send(b"x")


def try_sockets(target: Offer) -> Attempts:
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
        f"{name} {kind.name} {number}": partial(way, kind, address)
        for name, way in ways.items()
        for kind in KINDS
        for number, address in enumerate(unix_addresses(target.folder, kind))
    }


def try_reading(target: Offer) -> Attempts:
    """Read files, and names in folders."""
    paths = [target.file, "/etc/passwd", __file__, f"/proc/{target.process}/environ"]

    def list_folder(folder: str) -> None:
        found = [f"{folder}/{name}/" for name in os.listdir(folder)]
        # Nothing but Python's library, or the way to it, is what every program sees.
        if all(any(f"{each}/".startswith(path) for each in sys.path) for path in found):
            raise PermissionError

    ways: Attempts = {f"open {path}": partial(open_file, path, os.O_RDONLY) for path in paths}
    folders = (target.folder, "/etc", target.home)
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
            fcntl.fcntl(first, SET_SIGNAL, SIGNAL)
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
        "kill": partial(os.kill, process, SIGNAL),
        "pidfd": lambda: signal.pidfd_send_signal(os.pidfd_open(process), SIGNAL),
        **{name: partial(by_file, own) for name, own in owning.items()},
    }


def try_processes(target: Offer) -> Attempts:
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
        "memory": partial(open_file, f"/proc/{process}/mem", os.O_RDWR),
        "files": partial(os.listdir, f"/proc/{process}/fd"),
        "limits": partial(reach, (302, 261), process, 7),
    }


def reach(numbers: tuple[int | None, int | None], *arguments: int, keep: object = None) -> None:
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
