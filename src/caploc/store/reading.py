"""A store's file, open for reading only: it may belong to a running process, or to anyone."""

import json
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from caploc.errors import StoreFailed
from caploc.files import is_regular, open_regular
from caploc.store.guard import JOURNAL, LOG, companion_file, connect
from caploc.store.rows import Question, Row, matches
from caploc.store.schema import fields_of, schema_of
from caploc.store.store import sealed_row, sentence, unusable

UNKNOWN = "unknown"  # dtype of a model that is not loaded

Known = dict[tuple[bytes, str], Row]


@contextmanager
def reading(path: Path) -> Iterator[tuple[sqlite3.Connection, int]]:
    """A connection that changes nothing, and the schema of the file.

    Where the folder cannot be written SQLite may be unable to read its journal or log; a copy is
    read then.

    Raises:
        StoreFailed: if the file cannot be read, is damaged, of a later schema or none of ours.
    """
    with ExitStack() as stack:
        try:
            database = open_database(path)
        except sqlite3.OperationalError as error:
            if not is_regular(path):
                raise StoreFailed(sentence(path, error)) from error
            path = copy_database(path, Path(stack.enter_context(TemporaryDirectory())))
            database = open_database(path, copy=True)
        except OSError as error:
            raise StoreFailed(unusable(path.parent, error)) from error
        try:
            yield database, schema_of(database, path)
        except sqlite3.Error as error:
            raise StoreFailed(sentence(path, error)) from error
        finally:
            database.close()


def copy_database(path: Path, place: Path) -> Path:
    """Copy a database, its journal and its log into a folder; the copy's path.

    Raises:
        StoreFailed: if there is no room.
    """
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

    Raises:
        StoreFailed: if one of the file's companions must not be opened.
        sqlite3.OperationalError: if it cannot be opened here.
    """
    mode = "rw" if copy else "ro"
    address = f"{path.absolute().as_uri()}?mode={mode}"
    database = connect(path, address)
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

    A question whose text is lost is known by its digest.

    Raises:
        StoreFailed: if it cannot be read, or a row is not what was written.
    """
    if not os.path.lexists(path):
        return {}
    with reading(path) as (database, schema):
        found: Known = {}
        texts = database.execute("SELECT id, digest, question FROM questions").fetchall()
        for number, digest, text in texts:
            readable = matches(digest, text) and same(json.loads(text), question)
            if not readable and digest != question.digest():
                continue
            for row in database.execute(
                f"SELECT {fields_of(schema)} FROM rows WHERE question = ?", (number,)
            ):
                found[row[0], row[1]] = sealed_row(path, digest, row)
    return found


def same(stored: dict[str, Any], question: Question) -> bool:
    """Whether a stored question is this one; of a model that is not loaded any dtype will do."""
    wanted = asdict(question)
    skipped = {"dtype"} if question.dtype == UNKNOWN else set()
    return all(stored.get(key) == wanted[key] for key in wanted.keys() - skipped)
