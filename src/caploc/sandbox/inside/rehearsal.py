"""What a process behind the walls can still do: tried, not assumed."""

import errno
import json
import mmap
import os
import socket

from caploc.sandbox.inside.kernel import call

PR_GET_NO_NEW_PRIVS = 39
PORT = 9


def main(report_file: int, memory_bytes: int) -> None:
    """Try everything, report what holds, and end at once."""
    facts = {
        "offline": offline(socket.SOCK_STREAM) and offline(socket.SOCK_DGRAM),
        "hidden": hidden(__file__),
        "unreached": unreached(os.getppid()),
        "memory": not fits(memory_bytes),
        "unprivileged": unprivileged(),
    }
    os.write(report_file, json.dumps(facts).encode())
    os._exit(0)


def offline(kind: int) -> bool:
    """Whether not even this machine itself can be reached; nothing need listen there."""
    try:
        with socket.socket(type=kind) as connection:
            code = connection.connect_ex(("127.0.0.1", PORT))
    except PermissionError:
        return True
    return code in (errno.ENETUNREACH, errno.EACCES, errno.EPERM)


def hidden(path: str) -> bool:
    """Whether a file that the user may read cannot be opened."""
    try:
        os.close(os.open(path, os.O_RDONLY))
    except OSError:
        return True
    return False


def unreached(process: int) -> bool:
    """Whether another process cannot be sent a signal; 0 is one out of sight."""
    try:
        if process:
            os.kill(process, 0)
    except OSError:
        return True
    return process == 0


def fits(memory_bytes: int) -> bool:
    """Whether more memory than allowed can be had."""
    try:
        mmap.mmap(-1, memory_bytes).close()
    except OSError:
        return False
    return True


def unprivileged() -> bool:
    """Whether no program that this process starts can have more rights than it."""
    try:
        return call("prctl", PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1
    except OSError:
        return False
