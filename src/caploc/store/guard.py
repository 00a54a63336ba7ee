"""Look at a database's files before SQLite does, which acts on them when it opens one.

Beside `rows.sqlite` SQLite looks for a rollback journal (`-journal`), which it plays back, a log of
newer pages (`-wal`), which it folds in, and their index (`-shm`). A journal can also name a
super-journal, which SQLite deletes at the end, wherever it lies: whoever made the journal chooses
which file is deleted. Other than that, journal and log can put pages into the database and make it
longer; what pages hold is checked when it is read.

The formats are those of https://www.sqlite.org/fileformat2.html. Runs leave behind a log when they
are killed on a disk of their own, and a journal on one of the network or at the moment in which a
database is made or changes from one to the other; none ever has a super-journal, which SQLite
writes for transactions over several databases.
"""

import os
import sqlite3
from pathlib import Path
from struct import unpack, unpack_from
from typing import BinaryIO

from caploc.errors import StoreFailed
from caploc.files import UnfitFile, open_regular
from caploc.store.pages import LOG_HEADER, LOG_MAGIC, MAGIC, frames, is_page_size, page_size

BUSY_SECONDS = 30.0  # to wait for a reader, such as `caploc rows`
JOURNAL, LOG, INDEX = "-journal", "-wal", "-shm"
JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
JOURNAL_HEADER = 28
OTHER_PAGES = "its pages are of another size than the file's"
LONGEST = 64 * 2**20  # bytes of one value; what a file from elsewhere may make us read at a time
ORDERS = {LOG_MAGIC + b"\x82": "<", LOG_MAGIC + b"\x83": ">"}  # of bytes in a log's checksums
LOOKS = 3  # at files that a running process may change between two: it folds its log in


def companion_file(path: Path, ending: str) -> Path:
    """The file that SQLite keeps beside a database, by its ending."""
    return path.with_name(f"{path.name}{ending}")


def check_database(path: Path, *, writing: bool = False) -> tuple[int, int] | None:
    """Refuse a database that SQLite had better not open; its device and inode, None if not there.

    Raises:
        StoreFailed: if one of its files is a link or no regular file, if its journal names another
            file, or if journal or log make it longer than what is in them; with `writing` also if
            it has a second name. The cause is an `UnfitFile`.
        OSError: if a file cannot be read.
    """
    for _ in range(LOOKS):
        try:
            return examine_files(path, writing)
        except UnfitFile as error:
            unfit = error
    raise StoreFailed(
        f"{unfit.filename} is not what a run leaves ({unfit}); SQLite is not let near it. If the "
        f"folder is yours, `caploc doctor {path.parent} --repair` saves every sound row and keeps "
        "the rest aside; if it came from elsewhere, do not use it."
    ) from unfit


def examine_files(path: Path, writing: bool) -> tuple[int, int] | None:
    """Look at a database's files; its device and inode, None if it is not there.

    Raises:
        UnfitFile: naming the first one that is not what a run leaves.
        OSError: if a file cannot be read.
    """
    found, size, each = None, 0, 0
    if os.path.lexists(path):
        with open_regular(path) as file:
            status = os.fstat(file.fileno())
            found, size = (status.st_dev, status.st_ino), status.st_size
            head = file.read(18)
        each = (page_size(head[16:18]) if head[:16] == MAGIC else None) or 0
        if writing and status.st_nlink > 1:
            raise UnfitFile("it has a second name, under which others may write it; copy it", path)
    for ending, check in ((JOURNAL, check_journal), (LOG, check_log), (INDEX, None)):
        place = companion_file(path, ending)
        if os.path.lexists(place):
            with open_regular(place) as file:
                if check is not None:
                    check(file, place, size, each)
    return found


def check_journal(file: BinaryIO, path: Path, size: int, each: int) -> None:
    """Refuse a rollback journal that does more than put back pages of its database.

    Raises:
        UnfitFile: if it names a super-journal, its pages are of another size, or it makes the
            database longer.
    """
    length = os.fstat(file.fileno()).st_size
    if length < JOURNAL_HEADER:
        return  # SQLite plays nothing back
    file.seek(length - len(JOURNAL_MAGIC))
    if file.read() == JOURNAL_MAGIC:
        raise UnfitFile("it names another file, which SQLite would delete", path)
    file.seek(0)
    head = file.read(JOURNAL_HEADER)
    pages, _, wide = unpack(">III", head[16:])
    if head[:8] != JOURNAL_MAGIC:
        return
    if each and wide not in (0, each):
        raise UnfitFile(OTHER_PAGES, path)
    if pages * (wide or each) > size:
        raise UnfitFile("it makes the file longer than it is", path)


def check_log(file: BinaryIO, path: Path, size: int, each: int) -> None:
    """Refuse a log that makes its database longer than the pages of both.

    A log whose header SQLite does not take for one is left to it, as is one that a torn write ends.

    Raises:
        UnfitFile: if it does, or its pages are of another size.
    """
    head = file.read(LOG_HEADER)
    if not is_log(head):
        return
    (wide,) = unpack_from(">I", head, 8)
    if not is_page_size(wide) or each not in (0, wide):
        raise UnfitFile(OTHER_PAGES, path)
    if not size:
        raise UnfitFile("it belongs to a file that is empty", path)
    most = highest = -(-size // wide)
    for number, total, salts, _ in frames(file, wide):
        if salts != head[16:24] or not number:  # where SQLite stops too
            break
        most, highest = most + 1, max(highest, number, total)
    if highest > most:
        raise UnfitFile("it makes the file longer than its pages", path)


def is_log(head: bytes) -> bool:
    """Whether SQLite takes this for the header of a log: its mark and its checksum are right."""
    order = ORDERS.get(head[:4])
    if order is None or len(head) < LOG_HEADER:
        return False
    return checksum(head[:24], order) == unpack_from(">II", head, 24)


def checksum(content: bytes, order: str) -> tuple[int, int]:
    """The two sums of a log's header."""
    words = unpack(f"{order}{len(content) // 4}I", content)
    one = other = 0
    for first, second in zip(words[::2], words[1::2], strict=True):
        one = (one + first + other) & 0xFFFFFFFF
        other = (other + second + one) & 0xFFFFFFFF
    return one, other


def connect(
    path: Path, address: str | None = None, *, timeout: float = BUSY_SECONDS
) -> sqlite3.Connection:
    """Connect to a database that was looked at; nothing of it has been read yet.

    `address` is a URI with further settings; without one the file is opened for writing.

    Raises:
        StoreFailed: as `check_database`, or if another file was put in its place meanwhile.
        OSError, sqlite3.Error: if it cannot be opened.
    """
    before = check_database(path, writing=address is None)
    database = sqlite3.connect(address or path, timeout=timeout, uri=address is not None)
    try:
        if before is not None and identity(path) != before:
            raise StoreFailed(f"{path} was replaced while it was opened; run the command again.")
        harden(database)
    except BaseException:
        database.close()
        raise
    return database


def identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of what has this name, of a link its own; None if nothing has."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def harden(database: sqlite3.Connection) -> None:
    """Let nothing in the file run or swell: it may come from anyone."""
    database.execute("PRAGMA trusted_schema=OFF")
    database.execute("PRAGMA cell_size_check=ON")
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
    database.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
