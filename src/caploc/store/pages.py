"""A SQLite database read without SQLite: is it safe to open, and what is left of its rows?

Beside `rows.sqlite` SQLite looks for a rollback journal (`-journal`), which it plays back, a log of
newer pages (`-wal`), which it folds in, and their index (`-shm`), as soon as it opens the file. A
journal can also name a super-journal, which SQLite deletes at the end, wherever it lies: whoever
made the journal chooses which file is deleted. Other than that, journal and log can put pages into
the database and make it longer; what pages hold is checked when it is read. Runs leave behind a log
when they are killed on a disk of their own, and a journal on one of the network or at the moment in
which a database is made or changes from one to the other; none ever has a super-journal, which
SQLite writes for transactions over several databases.

Records are read straight from the pages, whatever became of the tree above them: a table with a
primary key of its own keeps them in index pages, one with row ids in table pages. Nothing here is
trusted: lengths are checked, what does not add up is passed over, and the work is bounded by the
file's size. The formats are those of https://www.sqlite.org/fileformat2.html.
"""

import os
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from struct import unpack, unpack_from
from threading import Lock
from typing import Any, BinaryIO, NamedTuple

from caploc.errors import StoreFailed
from caploc.files import UnfitFile, open_regular

INTERIOR_INDEX, LEAF_INDEX, LEAF_TABLE = 0x02, 0x0A, 0x0D
MAGIC = b"SQLite format 3\0"
HEADER, USUAL_PAGE = 100, 4096
LOG_HEADER, FRAME_HEADER = 32, 24
LOG_MAGIC = b"\x37\x7f\x06"  # a fourth byte tells the order of bytes in its checksums
LONGEST_LOG = 4 * 2**30  # bytes of a log that is looked through; SQLite folds one in at 4 MiB
LONGEST = 64 * 2**20  # bytes of a record, and of one value that SQLite may read
MOST_READ = 64  # times that a page is read as one of overflow; where all is sound, once
LONGEST_HEAD = 128  # bytes that tell the types of a record's columns; a row's takes up to 60
WHOLE = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}  # bytes of an integer by its serial type

Record = tuple[Any, ...]


class Broken(Exception):
    """What is read here is no record."""


@dataclass(frozen=True)
class Pages:
    """A file's pages, numbered from 1, those of its log in place of older ones."""

    file: BinaryIO
    length: int
    size: int
    reserved: int
    newer: Mapping[int, int]  # where in the log a page's content begins
    log: BinaryIO | None = None
    read: Counter[int] = field(default_factory=Counter)  # how often a page was read as overflow

    @property
    def numbers(self) -> Iterator[int]:
        """The pages of the file, then those that only its log has: a damaged one may claim any."""
        filed = -(-self.length // self.size)
        following = 1
        for start, end in stretches(self.file, self.length):
            last = -(-end // self.size)
            yield from range(max(following, start // self.size + 1), last + 1)
            following = last + 1
        yield from sorted(number for number in self.newer if number > filed)

    @property
    def usable(self) -> int:
        """Bytes of a page that hold content."""
        return self.size - self.reserved

    def page(self, number: int) -> bytes:
        """One page's bytes; fewer where the file is cut off."""
        if self.log is not None and number in self.newer:
            self.log.seek(self.newer[number])
            return self.log.read(self.size)
        self.file.seek((number - 1) * self.size)
        return self.file.read(self.size)

    def records(self) -> Iterator[Record]:
        """Every record of every page that could be one, in the order of pages."""
        for number in self.numbers:
            page = self.page(number)
            start = HEADER if number == 1 else 0
            kind = page[start] if len(page) > start else 0
            if kind in (INTERIOR_INDEX, LEAF_INDEX, LEAF_TABLE):
                yield from self.records_of(page, start, kind)

    def records_of(self, page: bytes, start: int, kind: int) -> Iterator[Record]:
        """The records of a page whose header is at `start`."""
        header = start + (12 if kind == INTERIOR_INDEX else 8)
        if len(page) < header:
            return
        (cells,) = unpack_from(">H", page, start + 3)
        for place in range(header, min(header + 2 * cells, len(page) - 1), 2):
            (offset,) = unpack_from(">H", page, place)
            try:
                yield self.record(page, offset, kind)
            except (Broken, IndexError):
                continue

    def record(self, page: bytes, offset: int, kind: int) -> Record:
        """The record of a cell, a row id first where there is one; raises Broken, IndexError."""
        offset += 4 if kind == INTERIOR_INDEX else 0
        length, offset = number_at(page, offset)
        if kind != LEAF_TABLE:
            return values(self.payload(page, offset, length, kind))
        row_id, offset = number_at(page, offset)
        return row_id, *values(self.payload(page, offset, length, kind))

    def payload(self, page: bytes, offset: int, length: int, kind: int) -> bytes:
        """A cell's content, with what lies on overflow pages."""
        if length > LONGEST:
            raise Broken
        usable = self.usable
        most = usable - 35 if kind == LEAF_TABLE else (usable - 12) * 64 // 255 - 23
        if length <= most:
            return whole(page[offset : offset + length], length)
        least = (usable - 12) * 32 // 255 - 23
        here = least + (length - least) % (usable - 4)
        here = here if here <= most else least
        content = bytearray(page[offset : offset + here])
        (following,) = unpack(">I", whole(page[offset + here : offset + here + 4], 4))
        while following and len(content) < length:
            self.read[following] += 1
            rest = self.page(following)
            more = rest[4 : min(usable, 4 + length - len(content))]
            if not more or self.read[following] > MOST_READ:
                raise Broken
            content += more
            (following,) = unpack(">I", rest[:4])
        return whole(bytes(content), length)


def records(path: Path) -> Iterator[Record]:
    """Records of a file as it lies, then of the file with its log on top; many come twice."""
    place = companion_file(path, LOG)
    # Not mapped into memory: a file that gets shorter meanwhile would end the process.
    with ExitStack() as stack:
        log, newer, usual = None, dict[int, int](), USUAL_PAGE
        if os.path.lexists(place):
            log = stack.enter_context(open_regular(place, LONGEST_LOG))
            newer, usual = read_log(log)
        file = stack.enter_context(open_regular(path))
        head, length = file.read(HEADER), os.fstat(file.fileno()).st_size
        whole_header = head[:16] == MAGIC
        size = page_size(head) or usual
        reserved = head[20] if whole_header and len(head) > 20 and head[20] < size // 8 else 0
        for each in ({}, newer) if newer else ({},):
            yield from Pages(file, length, size, reserved, each, log).records()


def stretches(file: BinaryIO, length: int) -> Iterator[tuple[int, int]]:
    """Where a file's bytes lie on the disk, without holes; all of it where no one can tell."""
    if not hasattr(os, "SEEK_DATA"):
        yield 0, length
        return
    place = 0
    while place < length:
        try:
            start = os.lseek(file.fileno(), place, os.SEEK_DATA)
        except OSError:  # only a hole is left
            return
        place = os.lseek(file.fileno(), start, os.SEEK_HOLE)
        yield start, place


class Frame(NamedTuple):
    """The head of a frame of a log: which page follows it, and where."""

    number: int  # 0 in what is none
    total: int  # pages of the file after the commit, 0 in the midst of one
    salts: bytes  # those of the log's header, or left from a log before
    offset: int


def frames(log: BinaryIO, size: int) -> Iterator[Frame]:
    """Every frame of a log with pages of this size; the last may be cut off."""
    place = LOG_HEADER
    while True:
        log.seek(place)
        head = log.read(FRAME_HEADER)
        if len(head) < FRAME_HEADER:
            return
        number, total = unpack_from(">II", head)
        yield Frame(number, total, head[8:16], place + FRAME_HEADER)
        place += FRAME_HEADER + size


def read_log(log: BinaryIO) -> tuple[dict[int, int], int]:
    """Where the newest copy of each page lies in a log's last start, and the size of its pages."""
    head = log.read(LOG_HEADER)
    if len(head) < LOG_HEADER or head[:3] != LOG_MAGIC:
        return {}, USUAL_PAGE
    (size,) = unpack_from(">I", head, 8)
    if not is_page_size(size):
        return {}, USUAL_PAGE
    end = os.fstat(log.fileno()).st_size - size
    newest = {
        frame.number: frame.offset
        for frame in frames(log, size)
        if frame.salts == head[16:24] and frame.number and frame.offset <= end
    }
    return newest, size


def page_size(head: bytes) -> int:
    """Bytes of a page as a database's header tells; 0 if it tells nonsense or is none."""
    size = int.from_bytes(head[16:18], "big")
    size = 65536 if size == 1 else size
    return size if head[:16] == MAGIC and is_page_size(size) else 0


def is_page_size(size: int) -> bool:
    """Whether SQLite has pages of so many bytes."""
    return 512 <= size <= 65536 and not size & (size - 1)


def number_at(page: bytes, offset: int) -> tuple[int, int]:
    """A number of 1 to 9 bytes, and the place after it."""
    value = 0
    for place in range(offset, offset + 8):
        value = value << 7 | page[place] & 0x7F
        if page[place] < 0x80:
            return value, place + 1
    return value << 8 | page[offset + 8], offset + 9


def whole(content: bytes, length: int) -> bytes:
    """The content, if it is as long as it should be."""
    if len(content) != length:
        raise Broken
    return content


def values(payload: bytes) -> Record:
    """The columns of a record."""
    length, place = number_at(payload, 0)
    if length > LONGEST_HEAD:
        raise Broken
    body, found = length, []
    while place < length:
        kind, place = number_at(payload, place)
        value, body = value_at(payload, body, kind)
        found.append(value)
    if place != length or body != len(payload):
        raise Broken
    return tuple(found)


def value_at(payload: bytes, place: int, kind: int) -> tuple[Any, int]:
    """One column's value by its serial type, and the place after it."""
    if kind in (0, 8, 9):
        return (None if kind == 0 else kind - 8), place
    if kind in WHOLE:
        end = place + WHOLE[kind]
        return int.from_bytes(whole(payload[place:end], WHOLE[kind]), "big", signed=True), end
    if kind == 7:
        return unpack(">d", whole(payload[place : place + 8], 8))[0], place + 8
    if kind < 12:
        raise Broken
    length = (kind - 12) // 2
    content = whole(payload[place : place + length], length)
    try:
        return (content.decode() if kind % 2 else content), place + length
    except UnicodeDecodeError:
        raise Broken from None


BUSY_SECONDS = 30.0  # to wait for a reader, such as `caploc rows`
JOURNAL, LOG, INDEX = "-journal", "-wal", "-shm"
JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
JOURNAL_HEADER = 28
OTHER_PAGES = "its pages are of another size than the file's"
ORDERS = {LOG_MAGIC + b"\x82": "<", LOG_MAGIC + b"\x83": ">"}  # of bytes in a log's checksums
LOOKS = 3  # at files that a running process may change between two: it folds its log in
# Databases that this process has open, by device and inode. Whoever closes any handle of a file
# takes all locks of the process from it; SQLite elsewhere would then cut the index and delete the
# log of a run that goes on. So nothing but SQLite touches them.
OPEN: Counter[tuple[int, int]] = Counter()
OPENING = Lock()


def companion_file(path: Path, ending: str) -> Path:
    """The file that SQLite keeps beside a database, by its ending."""
    return path.with_name(f"{path.name}{ending}")


def check_database(path: Path, *, writing: bool = False) -> tuple[int, int] | None:
    """Refuse a database that SQLite had better not open; its device and inode, None if not there.

    Raises StoreFailed if one of its files is a link or no regular file, if its journal names
    another file, or if journal or log make it longer than what is in them; with `writing` also if
    it has a second name (the cause is an `UnfitFile`); OSError if a file cannot be read.
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

    Raises UnfitFile, naming the first that is not what a run leaves; OSError if it is unreadable.
    """
    found, size, each = None, 0, 0
    if os.path.lexists(path):
        status, head, ours = os.lstat(path), b"", is_open(path)
        if not ours:
            with open_regular(path) as file:
                status, head = os.fstat(file.fileno()), file.read(18)
        found, size = (status.st_dev, status.st_ino), status.st_size
        each = page_size(head)
        if writing and status.st_nlink > 1:
            raise UnfitFile("it has a second name, under which others may write it; copy it", path)
        if ours:
            return found
    for ending, check in ((JOURNAL, check_journal), (LOG, check_log), (INDEX, None)):
        place = companion_file(path, ending)
        if os.path.lexists(place):
            with open_regular(place) as file:
                if check is not None:
                    check(file, place, size, each)
    return found


def check_journal(file: BinaryIO, path: Path, size: int, each: int) -> None:
    """Refuse a rollback journal that does more than put back pages of its database (UnfitFile)."""
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
    Raises UnfitFile if it does, or its pages are of another size.
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


class Database(sqlite3.Connection):
    """A connection to a file that was looked at."""

    file: tuple[int, int] | None = None

    def close(self) -> None:
        """Close it; when none of this process is left, the next one is looked at anew."""
        super().close()
        with OPENING:
            if self.file is not None:
                OPEN.subtract([self.file])
            self.file = None


def connect(path: Path, address: str | None = None) -> Database:
    """Connect to a database that was looked at; nothing of it has been read yet.

    `address` is a URI with further settings; without one the file is opened for writing. Raises
    StoreFailed as `check_database`, or if another file was put in its place meanwhile; OSError,
    sqlite3.Error if it cannot be opened.
    """
    with OPENING:
        before = check_database(path, writing=address is None)
        database = sqlite3.connect(
            address or path, timeout=BUSY_SECONDS, uri=address is not None, factory=Database
        )
        database.file = now = identity(path)
        if now is not None:
            OPEN[now] += 1
    try:
        if before is not None and now != before:
            raise StoreFailed(f"{path} was replaced while it was opened; run the command again.")
        # Let nothing in the file run or swell: it may come from anyone.
        database.execute("PRAGMA trusted_schema=OFF")
        database.execute("PRAGMA cell_size_check=ON")
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
        database.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    except BaseException:
        database.close()
        raise
    return database


def is_open(path: Path) -> bool:
    """Whether this process has the database of this name open."""
    found = identity(path)
    return found is not None and OPEN[found] > 0


def identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of what has this name, of a link its own; None if nothing has."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
