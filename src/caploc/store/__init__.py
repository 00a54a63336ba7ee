"""Rows on disk: what was asked under which mask, what came back, what it was worth.

A row's key is its question (model, task, everything else that can change an outcome), its mask
and its example. Resuming a run and sharing rows between runs are therefore the same thing: a row
whose key is known is never asked again.

The rows of a run folder are open for writing, or for reading only, whoever the file belongs to.
"""

import json
import math
import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
from filelock import FileLock, Timeout

from caploc.errors import FolderTaken, StoreFailed
from caploc.files import UnfitFile, check_regular, is_regular, open_regular
from caploc.store.pages import JOURNAL, LOG, companion_file, connect, identity, is_open
from caploc.store.rows import (
    INSERT,
    SCHEMA,
    Question,
    Row,
    as_fields,
    as_kept,
    fields_of,
    matches,
    pack,
    prepare,
    schema_of,
    seal,
    transaction,
    unpack,
)

__all__ = ["SCHEMA", "Question", "Row", "Store", "as_kept", "folder_lock", "pack", "unpack"]

LOCK = ".lock"
# Folders whose lock whoever started this thread holds, for this thread's work.
HELD: ContextVar[frozenset[Path]] = ContextVar("HELD", default=frozenset())
# File systems of other machines: WAL's index is shared memory, which they have not.
NETWORK = (
    "nfs", "cifs", "smb", "9p", "lustre", "gpfs", "beegfs", "ceph", "afs", "glusterfs", "panfs",
    "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs", "fuse.gcsfuse",
)  # fmt: skip


class Store:
    """The rows of a run folder. One process at a time writes it."""

    def __init__(self, path: Path) -> None:
        """Open or create `path`; no other process may have its folder open.

        Raises FolderTaken if another process is running in the folder; StoreFailed if the file
        cannot be opened, is damaged or of a later schema.
        """
        self.path = path
        self.lock = folder_lock(path.parent)
        with ExitStack() as undo:
            undo.callback(self.lock.release)
            with self.guarded():
                self.database = connect(path)
                undo.callback(self.database.close)
                schema_of(self.database, path)  # before anything is written
                self.database.execute(f"PRAGMA journal_mode={journal(path)}")
                self.database.execute("PRAGMA synchronous=NORMAL")
                prepare(self.database, path)
                self.identity = identity(path)
            undo.pop_all()

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Turn what the disk and SQLite say into one sentence."""
        try:
            yield
        except sqlite3.Error as error:
            raise StoreFailed(sentence(self.path, error)) from error
        except OSError as error:
            raise StoreFailed(unusable(self.path.parent, error)) from error

    def question_id(self, question: Question) -> int:
        """The number under which a question's rows are kept; raises StoreFailed."""
        digest, text = question.digest(), json.dumps(asdict(question))
        find = "SELECT id, question FROM questions WHERE digest = ?"
        write = (
            "INSERT INTO questions (id, digest, question) VALUES (?, ?, ?) "
            "ON CONFLICT (digest) DO UPDATE SET question = excluded.question"
        )
        with self.guarded():
            found = self.database.execute(find, (digest,)).fetchone()
            if found is None or found[1] != text:
                number = self.orphaned(digest) if found is None else found[0]
                with transaction(self.database):
                    self.database.execute(write, (number, digest, text))
                found = self.database.execute(find, (digest,)).fetchone()
        if found is None:
            raise StoreFailed(damaged(self.path, "a question is lost"))
        return int(found[0])

    def orphaned(self, digest: str) -> int | None:
        """The number of this question if its text was lost with a damaged page: its rows tell.

        A new question gets none of such numbers; None lets SQLite choose.
        """
        numbers = self.database.execute(
            "SELECT DISTINCT question FROM rows WHERE question NOT IN (SELECT id FROM questions)"
        ).fetchall()
        for (number,) in numbers:
            row = self.database.execute(
                f"SELECT {fields_of(SCHEMA)} FROM rows WHERE question = ? LIMIT 1", (number,)
            ).fetchone()
            if seal(digest, row[:-1]) == row[-1]:
                return int(number)
        if not numbers:
            return None
        (most,) = self.database.execute("SELECT max(id) FROM questions").fetchone()
        return int(max([most or 0, *(number for (number,) in numbers)])) + 1

    def digest_of(self, question: int) -> str:
        find = "SELECT digest FROM questions WHERE id = ?"
        found = self.database.execute(find, (question,)).fetchone()
        if found is None:
            raise StoreFailed(damaged(self.path, "a question is lost"))
        return str(found[0])

    def count_rows(self) -> int:
        """Count the rows of all questions; raises StoreFailed if the file cannot be read."""
        with self.guarded():
            (rows,) = self.database.execute("SELECT count(*) FROM rows").fetchone()
        return int(rows)

    def load(self, question: int, keys: Iterable[tuple[bytes, str]] | None = None) -> "Known":
        """Return a question's rows by mask and example: all, or those of the keys.

        Raises StoreFailed if the file cannot be read, or a row is not what was written.
        """
        every = f"SELECT {fields_of(SCHEMA)} FROM rows WHERE question = ?"
        one = f"{every} AND mask = ? AND example = ?"
        asked = [(every, ())] if keys is None else ((one, key) for key in keys)
        with self.guarded():
            digest = self.digest_of(question)
            found = (self.database.execute(ask, (question, *key)) for ask, key in asked)
            rows = chain.from_iterable(found)
            return {(row[0], row[1]): sealed_row(self.path, digest, row) for row in rows}

    def add(self, question: int, rows: Sequence[Row]) -> None:
        """Keep rows, all or none; on return they survive a crash.

        Raises StoreFailed if the disk is full or read-only, or the file was taken away.
        """
        with self.guarded():
            if identity(self.path) != self.identity:  # what is written would go with this process
                raise StoreFailed(
                    f"{self.path} was deleted or replaced while a run was writing it; what was in "
                    "it is lost unless it was moved: put it back if it was, then run the same "
                    "command again."
                )
            digest = self.digest_of(question)
            fields = [as_fields(row) for row in rows]
            with transaction(self.database):
                self.database.executemany(
                    INSERT, [(question, *each, seal(digest, each)) for each in fields]
                )

    def close(self) -> None:
        """Close the file and let other processes in."""
        try:
            self.database.close()
        finally:
            self.lock.release()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def folder_lock(folder: Path) -> FileLock:
    """The lock of a folder, taken, which keeps other processes out until it is released.

    The same thread may take it again: whoever runs several studies in a folder holds it between
    them, and with `hold_folder` for threads that run them. Raises FolderTaken if another process
    (or thread) is running in the folder; StoreFailed if the folder cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        place = folder.resolve() / LOCK
        with suppress(FileNotFoundError):
            check_regular(os.lstat(place), place)
        lock = FileLock(place, is_singleton=True)
        if lock.is_locked or place not in HELD.get():  # by this thread, which lets it go as often
            lock.acquire(timeout=0)
    except Timeout:
        raise FolderTaken(
            f"Another caploc process is running in {folder}; wait until it has ended, or stop it."
        ) from None
    except OSError as error:
        raise StoreFailed(unusable(folder, error)) from error
    return lock


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Keep a folder's lock while the block runs, also for threads with a copy of this context."""
    lock, before = folder_lock(folder), HELD.get()
    held = HELD.set(before | {folder.resolve() / LOCK})
    try:
        yield
    finally:
        HELD.reset(held)
        lock.release()


def journal(path: Path) -> str:
    """How SQLite keeps what is not yet in the file: a log beside it, where the disk is our own."""
    return "DELETE" if file_system(path.parent).startswith(NETWORK) else "WAL"


def file_system(folder: Path) -> str:
    """The type of the file system that holds a folder, such as ext4; empty if it is not known."""
    place = str(folder.resolve())
    try:
        mounted = psutil.disk_partitions(all=True)
    except (OSError, NotImplementedError):
        return ""
    holding = [
        (len(part.mountpoint), number, part.fstype)
        for number, part in enumerate(mounted)  # of two mounted at one place the later one counts
        if place == part.mountpoint or place.startswith(part.mountpoint.rstrip("/\\") + "/")
    ]
    return max(holding, default=(0, 0, ""))[2].lower()


def sealed_row(path: Path, digest: str, row: Sequence[Any]) -> Row:
    """A row as a file holds it, its seal last if the file has seals; raises StoreFailed."""
    try:
        if row[9:] and seal(digest, row[:9]) != row[9]:
            raise ValueError
        mask, example, number, outcome, item, *others = row[:9]
        value = math.nan if outcome is None else outcome
        return Row(mask, example, number, value, json.loads(item), *others)
    except (ValueError, TypeError, RecursionError):
        raise StoreFailed(damaged(path, "a row is not what was written")) from None


def sentence(path: Path, error: sqlite3.Error) -> str:
    """What is wrong with a store's file, and what to do."""
    primary = getattr(error, "sqlite_errorcode", 0) & 0xFF  # Python's own errors have no code
    undecodable = str(error).startswith("Could not decode")
    if undecodable or primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return damaged(path, "text that is none" if undecodable else str(error))
    return (
        f"The rows in {path} cannot be written or read ({error}); everything stored before is "
        "kept. Free disk space or check the file and its rights, then run the same command again."
    )


def damaged(path: Path, why: str) -> str:
    """What to do about a file that is not as it was written."""
    return (
        f"The rows in {path} cannot be written or read ({why}): the file is damaged. "
        f"`caploc doctor {path.parent} --repair` saves every sound row and keeps the damaged file "
        "aside; then run the same command again."
    )


def unusable(folder: Path, error: OSError) -> str:
    """What to do about a folder that cannot be made or written."""
    said = error.strerror or str(error)
    if isinstance(error, UnfitFile):
        said = f"{error.filename}: {error}"  # which a run does not make
    return (
        f"{folder} cannot be used as a run folder ({said}); free disk space or "
        "make it writable and run the same command again (what it holds is kept), or choose "
        "another --out."
    )


UNKNOWN = "unknown"  # dtype of a model that is not loaded

Known = dict[tuple[bytes, str], Row]


@contextmanager
def reading(path: Path) -> Iterator[tuple[sqlite3.Connection, int]]:
    """A connection that changes nothing, and the schema of the file.

    Where the folder cannot be written SQLite may be unable to read its journal or log; a copy is
    read then. Raises StoreFailed if the file cannot be read, is damaged, of a later schema or none
    of ours.
    """
    with ExitStack() as stack:
        try:
            database = open_database(path)
        except sqlite3.OperationalError as error:
            if not is_regular(path) or is_open(path):
                raise StoreFailed(sentence(path, error)) from error
            path = copy_database(path, Path(stack.enter_context(TemporaryDirectory())))
            database = open_database(path, copy=True)
        except OSError as error:
            raise StoreFailed(unusable(path.parent, error)) from error
        stack.enter_context(closing(database))
        try:
            yield database, schema_of(database, path)
        except sqlite3.Error as error:
            raise StoreFailed(sentence(path, error)) from error


def copy_database(path: Path, place: Path) -> Path:
    """Copy a database, its journal and its log; the copy's path. Raises StoreFailed."""
    try:
        for ending in ("", JOURNAL, LOG):
            with (
                suppress(FileNotFoundError),
                open_regular(companion_file(path, ending)) as file,
                (place / f"{path.name}{ending}").open("wb") as copy,
            ):
                shutil.copyfileobj(file, copy)
    except OSError as error:
        raise StoreFailed(unusable(path.parent, error)) from error
    return place / path.name


def open_database(path: Path, *, copy: bool = False) -> sqlite3.Connection:
    """A connection that has read the file's first page, a read-only one except to a copy.

    Raises StoreFailed if one of the file's companions must not be opened;
    sqlite3.OperationalError if it cannot be opened here.
    """
    database = connect(path, f"{path.absolute().as_uri()}?mode={'rw' if copy else 'ro'}")
    try:
        database.execute("PRAGMA user_version").fetchone()
    except sqlite3.OperationalError:
        database.close()
        raise
    except sqlite3.DatabaseError:
        pass  # damaged: whoever reads on is told
    return database


def stored_rows(path: Path, question: Question) -> Known:
    """The rows of a question in a file; none if there is no file.

    A question whose text is lost is known by its digest; of a model that is not loaded any dtype
    will do. Raises StoreFailed if it cannot be read, or a row is not what was written.
    """
    if not os.path.lexists(path):
        return {}
    wanted = asdict(question)
    if question.dtype == UNKNOWN:
        del wanted["dtype"]
    with reading(path) as (database, schema):
        found: Known = {}
        texts = database.execute("SELECT id, digest, question FROM questions").fetchall()
        every = f"SELECT {fields_of(schema)} FROM rows WHERE question = ?"
        for number, digest, text in texts:
            same = matches(digest, text) and wanted.items() <= json.loads(text).items()
            if same or digest == question.digest():
                for row in database.execute(every, (number,)):
                    found[row[0], row[1]] = sealed_row(path, digest, row)
    return found
