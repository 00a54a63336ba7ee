"""What a program could be after, outside of its isolation: files, sockets, ports, a process."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from caploc.sandbox.protocol import Offer

KINDS = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET)
# It ends when whoever started it does, or by the first signal that reaches it.
BYSTANDER = [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"]


class Witness:
    """Has made an offer, and says afterwards what of it was reached."""

    def __init__(
        self, offer: Offer, sockets: list[socket.socket], bystander: "subprocess.Popen[bytes]"
    ) -> None:
        self.offer = offer
        self._sockets, self._bystander, self._before = sockets, bystander, self._read_state()

    def list_reached(self) -> set[str]:
        """List the capabilities that somebody used on the offer."""
        reached = set()
        for each in self._sockets:
            with suppress(OSError):
                each.recv(1) if each.type == socket.SOCK_DGRAM else each.accept()[0].close()
                reached.add("sockets" if each.family == socket.AF_UNIX else "network")
        if self._bystander.poll() == -signal.SIGUSR1:
            reached.add("signals")
        return reached | ({"attributes"} if self._read_state() != self._before else set())

    def _read_state(self) -> list[Any]:
        found = os.stat(self.offer.file)
        names = os.listxattr(self.offer.file) if sys.platform == "linux" else []
        return [found.st_mode, found.st_mtime_ns, found.st_size, found.st_nlink, names]


@contextmanager
def open_witness() -> Iterator[Witness]:
    """Offer everyone a folder, a file in it, sockets and a process; raises OSError if it cannot."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="caploc-"))
        os.chmod(folder, 0o777)
        file = Path(folder, "file")
        file.touch()
        file.chmod(0o644)
        sockets = []

        def listen(family: int, kind: int, address: Any) -> Any:
            each = stack.enter_context(socket.socket(family, kind))
            each.setblocking(False)
            each.bind(address)
            if kind != socket.SOCK_DGRAM:
                each.listen(9)
            sockets.append(each)
            return each.getsockname()

        ports = [(int(kind), listen(socket.AF_INET, kind, ("127.0.0.1", 0))) for kind in KINDS[:2]]
        local = []
        for kind in KINDS:
            path = f"{folder}/socket{int(kind)}"
            # A path, and on Linux a bare name.
            for address in [path, "\0" + path] if sys.platform == "linux" else [path]:
                with suppress(OSError):  # macOS has not every kind
                    listen(socket.AF_UNIX, kind, address)
                    local.append((int(kind), address))
            if os.path.exists(path):
                os.chmod(path, 0o777)
        bystander = subprocess.Popen(BYSTANDER, stdin=subprocess.PIPE, start_new_session=True)
        stack.enter_context(bystander)
        stack.callback(bystander.kill)
        offer = Offer(folder, str(file), bystander.pid, ports, local, os.path.expanduser("~"))
        yield Witness(offer, sockets, bystander)
