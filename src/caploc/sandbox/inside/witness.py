"""The witness of a rehearsal: it offers what a program could be after, and says what reached it."""

import errno
import os
import shutil
import signal
import socket
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from caploc.sandbox.inside import frames
from caploc.sandbox.inside.confinement import keep_only
from caploc.sandbox.inside.kernel import LINUX

# Ignored by whoever does not wait for it, as the witness does.
SIGNAL = signal.SIGURG
KINDS = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET)


@dataclass(frozen=True, slots=True)
class Target:
    """What the witness offers; each is out of a program's reach in full isolation.

    Attributes:
        folder: a folder that everyone may write, with a file, a link and sockets in it.
        process: the witness.
        bystander: its child, which sleeps; whoever traces a process may keep it from answering.
        port: of TCP and UDP on this machine.
        home: the user's home folder.
    """

    folder: str
    process: int
    bystander: int
    port: int
    home: str

    @property
    def file(self) -> str:
        """A file that its owner may write and everyone may read."""
        return f"{self.folder}/file"


def start_witness(folder: str | None) -> tuple[Target, socket.socket]:
    """Fork the witness, which leaves once it was asked; `folder` is where to make its own.

    Raises:
        OSError: if it cannot offer anything.
    """
    ours, theirs = socket.socketpair()
    process = os.fork()
    if process == 0:
        with suppress(BaseException):
            keep_only([theirs.fileno()])
            place = tempfile.mkdtemp(prefix="caploc-", dir=folder)
            try:
                serve_as_witness(socket.socket(fileno=0), place)
            finally:
                shutil.rmtree(place, ignore_errors=True)
        os._exit(0)
    theirs.close()
    try:
        place, bystander, port = frames.receive(ours)
    except frames.Gone as error:
        raise OSError(
            errno.EIO, "no temporary folder could be made to try the isolation"
        ) from error
    return Target(place, process, bystander, port, os.path.expanduser("~")), ours


def serve_as_witness(asked: socket.socket, folder: str) -> None:
    """Offer files, sockets and itself; when asked, say which capabilities were used on them."""
    seen: set[str] = set()
    signal.signal(SIGNAL, lambda number, frame: seen.add("signals"))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.chmod(folder, 0o777)
    file = f"{folder}/file"
    os.close(os.open(file, os.O_CREAT | os.O_WRONLY))
    os.chmod(file, 0o644)
    before = state(file)
    sockets = open_sockets(folder)
    bystander = os.fork()
    if bystander == 0:
        asked.close()
        while True:
            signal.pause()
    frames.send(asked, [folder, bystander, sockets[0].getsockname()[1]])
    try:
        frames.receive(asked)
    finally:
        os.kill(bystander, signal.SIGKILL)
    for each in sockets:
        with suppress(OSError):
            each.recv(1) if each.type == socket.SOCK_DGRAM else each.accept()
            seen.add("network" if each.family == socket.AF_INET else "sockets")
    if state(file) != before:
        seen.add("attributes")
    shutil.rmtree(folder, ignore_errors=True)  # now: we may be ended once we have answered
    frames.send(asked, sorted(seen))
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


def state(path: str) -> list[Any]:
    """Return what an attack on a file would change."""
    found = os.stat(path)
    names = os.listxattr(path) if LINUX else []
    return [found.st_mode, found.st_mtime_ns, found.st_size, found.st_nlink, names]


def unix_addresses(folder: str, kind: int) -> list[str]:
    """Return where the witness's local sockets of a kind are: a path, and on Linux a bare name."""
    path = f"{folder}/socket{int(kind)}"
    return [path, "\0" + path] if LINUX else [path]
