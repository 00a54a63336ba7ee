"""Rows on disk: what was asked under which mask, what came back, what it was worth.

A row's key is its question (model, task, everything else that can change an outcome), its mask
and its example. Resuming a run and sharing rows between runs are therefore the same thing: a row
whose key is known is never asked again.

`Store` writes: one process at a time, into a write-ahead log (WAL), so that `kill -9` costs nothing
that was stored. `reading` only reads, also while a run writes.
"""

import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from pathlib import Path

from filelock import FileLock, Timeout

from caploc.errors import FolderTaken, StoreFailed
from caploc.store.rows import (
    FIELDS,
    INSERT,
    SCHEMA,
    Question,
    Row,
    as_fields,
    as_kept,
    as_row,
    create_tables,
    pack,
    transaction,
    unpack,
)

__all__ = ["SCHEMA", "Question", "Row", "Store", "as_kept", "folder_lock", "pack", "unpack"]

LOCK = ".lock"
BUSY_SECONDS = 30.0  # to wait for a reader, such as `caploc rows`

Known = dict[tuple[bytes, str], Row]


class Store:
    """The rows of a run folder. One process at a time writes it."""

    def __init__(self, path: Path) -> None:
        """Open or create `path`; no other process may have its folder open.

        Raises FolderTaken if another process is running in the folder; StoreFailed if the file
        cannot be opened, is damaged or of another schema.
        """
        self.path = path
        self.lock = folder_lock(path.parent)
        with ExitStack() as undo:
            undo.callback(self.lock.release)
            with guarded(path):
                self.database = undo.enter_context(closing(connect(path)))
                prepare(self.database, path)
            undo.pop_all()

    def question_id(self, question: Question) -> int:
        """The number under which a question's rows are kept; raises StoreFailed."""
        digest, text = question.digest(), json.dumps(asdict(question))
        write = "INSERT OR IGNORE INTO questions (digest, question) VALUES (?, ?)"
        find = "SELECT id FROM questions WHERE digest = ?"
        with guarded(self.path):
            with transaction(self.database):
                self.database.execute(write, (digest, text))
            (number,) = self.database.execute(find, (digest,)).fetchone()
        return int(number)

    def load(self, question: int) -> Known:
        """Return a question's rows by mask and example; raises StoreFailed."""
        every = f"SELECT {FIELDS} FROM rows WHERE question = ?"  # noqa: S608  (own columns)
        with guarded(self.path):
            return {row[:2]: as_row(row) for row in self.database.execute(every, (question,))}

    def add(self, question: int, rows: Sequence[Row]) -> None:
        """Keep rows, all or none; on return they survive the end of the process.

        Raises StoreFailed if the disk is full or read-only.
        """
        with guarded(self.path), transaction(self.database):
            self.database.executemany(INSERT, [(question, *as_fields(row)) for row in rows])

    def close(self) -> None:
        """Close the file, into which SQLite then folds its log, and let other processes in."""
        try:
            self.database.close()
        finally:
            self.lock.release()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(path: Path) -> sqlite3.Connection:
    """Open a file for writing.

    A rollback journal beside it is refused: a store never has one, SQLite would play it back, and
    it can name any file, which SQLite then deletes. Raises StoreFailed, sqlite3.Error, OSError.
    """
    journal = path.with_name(f"{path.name}-journal")
    if journal.exists():
        raise StoreFailed(
            f"{journal} is no file of caploc's, and SQLite could delete other files because of it; "
            "delete it, or use another --out."
        )
    return sqlite3.connect(path, timeout=BUSY_SECONDS)


def prepare(database: sqlite3.Connection, path: Path) -> None:
    """Put a file into WAL and make the tables of a new one; raises StoreFailed."""
    new = schema_of(database) == 0
    if new:
        database.execute("PRAGMA journal_mode=MEMORY")  # none on the disk, before the log is there
    else:
        check_schema(database, path)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=NORMAL")
    if new:
        create_tables(database)


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a file that is only read, and of which nothing changes.

    A run that has ended left one file. It is opened as immutable, so that SQLite looks at no file
    beside it and plays no rollback journal back, whoever made it. A run that is in progress, or was
    killed, has rows in its log alone; where there is a log, the file is opened with `mode=ro`:
    SQLite reads the log, and raises where there is a rollback journal too. Raises StoreFailed if
    the file cannot be read, is damaged or of another schema.
    """
    log = f"{path}-wal"
    how = "mode=ro" if os.path.exists(log) and os.path.getsize(log) else "immutable=1"
    address = f"{path.absolute().as_uri()}?{how}"
    try:
        with closing(sqlite3.connect(address, timeout=BUSY_SECONDS, uri=True)) as database:
            check_schema(database, path)
            yield database
    except sqlite3.Error as error:
        raise StoreFailed(sentence(path, error)) from error


def holds_rows(path: Path) -> bool:
    """Tell whether a file that may not be there holds a row; raises StoreFailed."""
    if not path.is_file():
        return False
    with reading(path) as database:
        return bool(database.execute("SELECT 1 FROM rows LIMIT 1").fetchone())


def schema_of(database: sqlite3.Connection) -> int:
    """The schema of a file, 0 for a new one."""
    (schema,) = database.execute("PRAGMA user_version").fetchone()
    return int(schema)


def check_schema(database: sqlite3.Connection, path: Path) -> None:
    """Refuse a file of another schema; raises StoreFailed."""
    if (schema := schema_of(database)) != SCHEMA:
        raise StoreFailed(
            f"{path} was written by another version of caploc (schema {schema}, this one reads "
            f"{SCHEMA}); use that version, or another --out."
        )


def folder_lock(folder: Path) -> FileLock:
    """The lock of a folder, taken, which keeps other processes out until it is released.

    The same thread may take it again, and lets it go as often: whoever runs several studies in a
    folder holds it between them. Raises FolderTaken if another process (or thread) is running in
    the folder; StoreFailed if the folder cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.resolve() / LOCK, is_singleton=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise FolderTaken(
            f"Another caploc process is running in {folder}; wait until it has ended, or stop it."
        ) from None
    except OSError as error:
        raise StoreFailed(unusable(folder, error)) from error
    return lock


@contextmanager
def guarded(path: Path) -> Iterator[None]:
    """Turn what the disk and SQLite say of a store's file into one sentence."""
    try:
        yield
    except sqlite3.Error as error:
        raise StoreFailed(sentence(path, error)) from error
    except OSError as error:
        raise StoreFailed(unusable(path.parent, error)) from error


def sentence(path: Path, error: sqlite3.Error) -> str:
    """What is wrong with a store's file, and what to do."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # Python's own errors have none
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return (
            f"The rows in {path} cannot be written or read ({error}): the file is damaged. Save "
            f"what can be read (`sqlite3 {path.name} .recover`, see the FAQ) or delete the file, "
            "then run the same command again."
        )
    return (
        f"The rows in {path} cannot be written or read ({error}); everything stored before is "
        "kept. Free disk space or check the file and its rights, then run the same command again."
    )


def unusable(folder: Path, error: OSError) -> str:
    """What to do about a folder that cannot be made or written."""
    return (
        f"{folder} cannot be used as a run folder ({error.strerror or error}); free disk space or "
        "make it writable and run the same command again (what it holds is kept), or choose "
        "another --out."
    )
