"""Messages over a socket: four bytes of length, then JSON."""

import json
import socket
import struct
from typing import Any

HEADER = struct.Struct("!I")
# The most that one message may hold. What is larger is refused before it is read.
LONGEST = 16 * 2**20


class Gone(Exception):
    """The other side closed the connection."""


class Malformed(Exception):
    """What came is no message; the text says why."""


def send(connection: socket.socket, message: Any) -> None:
    """Send one message.

    Raises:
        OSError: if the other side is gone.
    """
    body = json.dumps(message, separators=(",", ":")).encode()
    connection.sendall(HEADER.pack(len(body)) + body)


def receive(connection: socket.socket) -> Any:
    """Wait for one message.

    Raises:
        Gone: if the other side is.
        Malformed: if it is too long or not JSON.
    """
    (length,) = HEADER.unpack(exactly(connection, HEADER.size))
    if length > LONGEST:
        raise Malformed(f"a message of {length} bytes; {LONGEST} are allowed")
    try:
        return json.loads(exactly(connection, length))
    except (ValueError, RecursionError) as error:
        raise Malformed("a message that is not JSON") from error


def exactly(connection: socket.socket, count: int) -> bytearray:
    """Read so many bytes.

    Raises:
        Gone: if the other side closes before.
    """
    body = bytearray(count)
    view = memoryview(body)
    while view:
        try:
            got = connection.recv_into(view)
        except ConnectionError as error:
            raise Gone from error
        if not got:
            raise Gone
        view = view[got:]
    return body
