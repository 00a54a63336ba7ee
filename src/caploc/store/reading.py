"""A store's file, open for reading only: it may belong to a running process, or to anyone."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from caploc.errors import StoreFailed
from caploc.store.schema import harden, schema_of
from caploc.store.store import BUSY_SECONDS, sentence


@contextmanager
def reading(path: Path) -> Iterator[tuple[sqlite3.Connection, int]]:
    """A connection that changes nothing, and the schema of the file.

    Where the folder cannot be written SQLite may be unable to read its log; a copy is read then.

    Raises:
        StoreFailed: if the file cannot be read, is damaged, of a later schema or none of ours.
    """
    with TemporaryDirectory() as place:
        try:
            database = connected(path)
        except sqlite3.OperationalError as error:
            if not path.is_file():
                raise StoreFailed(sentence(path, error)) from error
            for name in (path.name, f"{path.name}-wal"):
                if (path.parent / name).is_file():
                    shutil.copyfile(path.parent / name, Path(place) / name)
            path = Path(place) / path.name
            database = connected(path)
        try:
            yield database, schema_of(database, path)
        except sqlite3.Error as error:
            raise StoreFailed(sentence(path, error)) from error
        finally:
            database.close()


def connected(path: Path) -> sqlite3.Connection:
    """A read-only connection that has read the file's first page.

    Raises:
        sqlite3.OperationalError: if it cannot be opened here.
    """
    address = f"{path.absolute().as_uri()}?mode=ro"
    database = sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS)
    try:
        harden(database)
        database.execute("PRAGMA user_version").fetchone()
    except sqlite3.OperationalError:
        database.close()
        raise
    except sqlite3.DatabaseError:
        pass  # damaged: whoever reads on is told
    return database
