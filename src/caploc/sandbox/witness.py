"""What a program could be after, outside of its isolation: files, sockets, ports, a process."""

import os
import signal
import socket
import subprocess
import tempfile
from contextlib import ExitStack, suppress
from typing import Any

KINDS = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET)
# It ends by the first signal that reaches it, or with us, and then leaves nothing behind.
BYSTANDER = ["sh", "-c", 'read line; rm -rf "$0"']


class Witness(ExitStack):
    """Makes an offer to everyone while it is open, and says what of it was reached.

    Attributes:
        offer: "folders", the first of which everyone may write, a "file" in it that everyone may
            read, "sockets" and "ports" of this machine (kind and address), a "process" of the user.
    """

    def __init__(self) -> None:
        """Open all of it; raises OSError if it cannot."""
        super().__init__()
        self._sockets: list[socket.socket] = []
        folder = self.enter_context(tempfile.TemporaryDirectory(prefix="caploc-"))
        os.chmod(folder, 0o777)
        command = [*BYSTANDER, folder]
        self._bystander = self.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        )
        self.callback(self._bystander.kill)
        file = f"{folder}/file"
        os.close(os.open(file, os.O_CREAT | os.O_WRONLY))
        os.chmod(file, 0o644)
        self.offer: dict[str, Any] = {
            "folders": [folder, "/etc", os.path.expanduser("~")],
            "file": file,
            "process": self._bystander.pid,
            "ports": [
                (int(kind), self._listen(socket.AF_INET, kind, ("127.0.0.1", 0)))
                for kind in KINDS[:2]
            ],
            "sockets": [
                (int(kind), self._listen(socket.AF_UNIX, kind, address))
                for kind in KINDS
                for address in (f"{folder}/{int(kind)}", f"\0{folder}/{int(kind)}")
            ],
        }
        self._before = self._read_state()

    def list_reached(self) -> set[str]:
        """List the capabilities of `caploc.sandbox.rehearsal` that somebody used on the offer."""
        reached = set()
        for each in self._sockets:
            with suppress(OSError):
                each.recv(1) if each.type == socket.SOCK_DGRAM else each.accept()[0].close()
                reached.add("local sockets" if each.family == socket.AF_UNIX else "the network")
        if self._bystander.poll() == -signal.SIGUSR1:
            reached.add("signals")
        return reached | ({"modes and attributes"} if self._read_state() != self._before else set())

    def _listen(self, family: int, kind: int, address: Any) -> Any:
        each = self.enter_context(socket.socket(family, kind))
        each.setblocking(False)
        each.bind(address)
        if kind != socket.SOCK_DGRAM:
            each.listen(9)
        if address[0] == "/":
            os.chmod(address, 0o777)
        self._sockets.append(each)
        return address if family == socket.AF_UNIX else each.getsockname()

    def _read_state(self) -> list[Any]:
        found = os.stat(self.offer["file"])
        names = os.listxattr(self.offer["file"])
        return [found.st_mode, found.st_mtime_ns, found.st_size, found.st_nlink, names]
