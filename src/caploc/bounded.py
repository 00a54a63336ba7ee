"""Reads files that others wrote: regular ones, of a size that memory holds."""

import os
import stat
from pathlib import Path


def read_bounded(path: Path | str, most: int) -> bytes:
    """Return a file's content, at most `most` bytes.

    A pipe, a device or a socket is never read: it may have no end, or wait for a writer for ever.

    Raises:
        OSError: if there is no such file, it may not be read, is longer than `most` bytes, or is
            no regular file; `strerror` says which.
    """
    check_regular(path)
    # Not blocking, in case a pipe took the file's place since.
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        check_regular(file.fileno())
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(None, f"it is longer than {most:,} bytes", str(path))
    return content


def check_regular(path: Path | str | int) -> None:
    """Refuse what is not a regular file.

    Raises:
        OSError: if there is no such file, or it is a folder, pipe, device or socket.
    """
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(None, "it is a folder", str(path))
    if not stat.S_ISREG(mode):
        raise OSError(None, "it is a pipe, device or socket", str(path))
