"""Open files that others wrote: those anyone may have put in a folder, and those a user names.

A folder may come by mail. In the place of any of its files there may be a link to another file, a
pipe on which a reader waits for ever, a device, or a file of holes that claims a terabyte.
"""

import os
import shutil
import stat
import tomllib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EINVAL, ELOOP
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, BinaryIO, TextIO
from zipfile import BadZipFile

from safetensors import SafetensorError

from caploc.errors import BadData, StoreFailed

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
NOT_WAITING = getattr(os, "O_NONBLOCK", 0)  # for a writer, if a pipe took the file's place
CAREFULLY = NOT_WAITING | getattr(os, "O_NOFOLLOW", 0)  # nor through a link as the last step
# What the standard library raises for an archive that is not what it says.
UNZIPPING = (
    BadZipFile, zlib.error, KeyError, EOFError, NotImplementedError, RuntimeError, ValueError,
)  # fmt: skip
TABLES = 2**20  # bytes of a file of tables, at most
BYTES = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


class UnfitFile(OSError):
    """A file that is no regular one, or larger than it may be; its text says which, in words."""

    def __init__(self, reason: str, path: Path | str) -> None:
        super().__init__(EINVAL, reason, str(path))

    def __str__(self) -> str:
        return str(self.strerror)


def open_regular(path: Path | str, most: int | None = None, *, follow: bool = False) -> BinaryIO:
    """Open a regular file of at most `most` bytes for reading, through a link only with `follow`.

    Raises UnfitFile if it is anything else, or longer; OSError if it cannot be read.
    """
    check_regular(os.stat(path, follow_symlinks=follow), path, most)  # opening one may do something
    flags = os.O_RDONLY | (NOT_WAITING if follow else CAREFULLY) | BYTES
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno == ELOOP and not follow:
            raise UnfitFile("it is a link, not a file", path) from None
        raise
    try:
        check_regular(os.fstat(descriptor), path, most)  # it may be another file by now
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def check_regular(found: os.stat_result, path: Path | str, most: int | None = None) -> None:
    """Refuse what is no regular file of at most `most` bytes; raises UnfitFile."""
    kind = stat.S_IFMT(found.st_mode)
    if kind != stat.S_IFREG:
        raise UnfitFile(f"it is {KINDS.get(kind, 'of an unknown kind')}, not a file", path)
    if most is not None and found.st_size > most:
        raise UnfitFile(f"it is longer than {most:,} bytes", path)
    on_disk = getattr(found, "st_blocks", found.st_size) * 512
    if found.st_size > HOLED and on_disk < LEAST_ON_DISK * found.st_size:
        raise UnfitFile(f"it has {found.st_size:,} bytes, nearly all of them holes", path)


def is_regular(path: Path) -> bool:
    """Whether a regular file has this name, itself and not through a link."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def read_bytes(path: Path | str, most: int, *, follow: bool = False) -> bytes:
    """Read a file that `open_regular` opens, and raise as that does."""
    with open_regular(path, most, follow=follow) as file:
        content = file.read(most + 1)
    if len(content) > most:  # it has grown since
        raise UnfitFile(f"it is longer than {most:,} bytes", path)
    return content


def read_text(path: Path | str, most: int, *, follow: bool = False, encoding: str = "utf-8") -> str:
    """Read a file as `read_bytes` does, as text; raises UnicodeDecodeError too."""
    return read_bytes(path, most, follow=follow).decode(encoding)


def read_toml(path: Path) -> dict[str, Any]:
    """Read a file's tables; raises BadData if it is missing, too long, no text or no TOML."""
    try:
        return tomllib.loads(read_text(path, TABLES, follow=True))
    except FileNotFoundError:
        raise BadData(f"There is no file {path}; give the path of a study file.") from None
    except UnicodeDecodeError as error:
        raise BadData(
            f"{path} is no text in UTF-8 (byte {error.start}); save it as UTF-8."
        ) from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadData(f"{path} is no TOML: {error}.") from None
    except OSError as error:
        raise BadData(
            f"{path} cannot be read ({error.strerror}); such a file is short text."
        ) from None


@contextmanager
def writing(path: Path, kept: str) -> Iterator[None]:
    """Turn what the disk says while a file is written into StoreFailed; `kept` names what is."""
    try:
        yield
    except OSError as error:
        raise StoreFailed(
            f"{path} could not be written ({error.strerror}); {kept} kept. Free disk space or "
            "check the rights, then run the same command again."
        ) from error


@contextmanager
def whole_path(path: Path) -> Iterator[Path]:
    """Give `path.part` to write to, which becomes `path` when the block ends, or is gone.

    What has that name is deleted first: a link, and not what it points at. Raises OSError if it
    cannot be written.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        part.unlink(missing_ok=True)
        yield part
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


@contextmanager
def whole_text(path: Path) -> Iterator[TextIO]:
    """Open a text file that becomes `path` when the block ends, or is gone.

    After a loss of power `path` is the old file or the new one, whole. Raises OSError if it cannot
    be written.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | CAREFULLY | BYTES
    with (
        whole_path(path) as part,
        os.fdopen(os.open(part, flags, 0o666), "w", encoding="utf-8", newline="\n") as file,
    ):
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Give a folder to write into, which takes the target's place at the end of the block.

    After an exception of any kind neither it nor the target exists. Raises StoreFailed if the disk
    refuses.
    """
    stage = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        stage = Path(mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent))
        yield stage
        stage.chmod(0o755)  # mkdtemp keeps others out
        stage.replace(target)
    except (OSError, SafetensorError) as error:
        said = getattr(error, "strerror", None) or str(error).rstrip(".")
        raise StoreFailed(
            f"{target} could not be written ({said}); nothing was kept there. Free disk space or "
            "name another place."
        ) from error
    finally:
        if stage is not None:
            shutil.rmtree(stage, ignore_errors=True)
