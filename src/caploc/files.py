"""Open files that others wrote: those anyone may have put in a folder, and those a user names.

A folder may come by mail. In the place of any of its files there may be a link to another file, a
pipe on which a reader waits for ever, a device, or a file of holes that claims a terabyte.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EINVAL, ELOOP
from pathlib import Path
from typing import BinaryIO, TextIO

KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFDIR: "a folder",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
HOLED = 2**34  # bytes from which on a file must lie on the disk; below, reading zeros takes seconds
LEAST_ON_DISK = 0.01  # of such a file; file systems that compress reach 5 % on rows
# Opening a pipe must not wait, and no last step of a path may be a link.
CAREFULLY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
BYTES = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


class UnfitFile(OSError):
    """A file that is no regular one, or larger than it may be; its text says which, in words."""

    def __init__(self, reason: str, path: Path) -> None:
        """Say what the path is."""
        super().__init__(EINVAL, reason, str(path))

    def __str__(self) -> str:
        """Return the reason alone."""
        return str(self.strerror)


def open_regular(path: Path, most: int | None = None) -> BinaryIO:
    """Open a regular file of at most `most` bytes for reading, never through a link.

    Raises:
        UnfitFile: if it is anything else, or longer.
        OSError: if it is not there or cannot be read.
    """
    check_regular(os.lstat(path), path, most)  # opening a device may do something
    try:
        descriptor = os.open(path, os.O_RDONLY | CAREFULLY | BYTES)
    except OSError as error:
        if error.errno == ELOOP:
            raise UnfitFile("it is a link", path) from None
        raise
    try:
        check_regular(os.fstat(descriptor), path, most)  # it may be another file by now
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def check_regular(found: os.stat_result, path: Path, most: int | None = None) -> None:
    """Refuse what is no regular file of at most `most` bytes.

    Raises:
        UnfitFile: saying what it is.
    """
    kind = stat.S_IFMT(found.st_mode)
    if kind != stat.S_IFREG:
        raise UnfitFile(f"it is {KINDS.get(kind, 'no file')}, and no run makes one there", path)
    if most is not None and found.st_size > most:
        raise UnfitFile(
            f"it has {found.st_size:,} bytes, and no run writes more than {most:,}", path
        )
    on_disk = getattr(found, "st_blocks", found.st_size) * 512
    if found.st_size > HOLED and on_disk < LEAST_ON_DISK * found.st_size:
        raise UnfitFile(f"it has {found.st_size:,} bytes, nearly all of them holes", path)


def is_regular(path: Path) -> bool:
    """Whether a regular file has this name, itself and not through a link."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def read_text(path: Path, most: int) -> str:
    """Read a regular file of at most `most` bytes as UTF-8.

    Raises:
        UnfitFile: if it is anything else, or longer.
        OSError: if it is not there or cannot be read.
        UnicodeDecodeError: if it is no UTF-8.
    """
    with open_regular(path, most) as file:
        content = file.read(most + 1)
    if len(content) > most:  # it has grown since
        raise UnfitFile(f"it has more than {most:,} bytes", path)
    return content.decode("utf-8")


def read_bounded(path: Path | str, most: int) -> bytes:
    """Read a file that the user names, at most `most` bytes of it; links are followed.

    A pipe, a device or a socket is never read: it may have no end, or wait for a writer for ever.

    Raises:
        OSError: if there is no such file, it may not be read, is longer than `most` bytes, or is
            no regular file; `strerror` says which.
    """
    refuse_special(path)
    # Not blocking, in case a pipe took the file's place since.
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        refuse_special(file.fileno())
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(None, f"it is longer than {most:,} bytes", str(path))
    return content


def refuse_special(path: Path | str | int) -> None:
    """Refuse what is not a regular file, nor a link to one.

    Raises:
        OSError: if there is no such file, or it is a folder, pipe, device or socket.
    """
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(None, "it is a folder", str(path))
    if not stat.S_ISREG(mode):
        raise OSError(None, "it is a pipe, device or socket", str(path))


def refuse_unfit(path: Path) -> None:
    """Refuse to open `path` for writing or locking if it is there and no regular file.

    Raises:
        UnfitFile: saying what it is.
    """
    with suppress(FileNotFoundError):
        check_regular(os.lstat(path), path)


@contextmanager
def whole_text(path: Path) -> Iterator[TextIO]:
    """Open a new file `path.part`, which becomes `path` when the block ends, or is gone.

    On return it survives a loss of power.

    Raises:
        OSError: if it cannot be written.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        part.unlink(missing_ok=True)  # a link by that name, not what it points at
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | CAREFULLY | BYTES
        with os.fdopen(os.open(part, flags, 0o666), "w", encoding="utf-8", newline="\n") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
