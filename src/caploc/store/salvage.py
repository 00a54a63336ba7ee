"""A new store from every sound row of a damaged one."""

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from caploc.errors import StoreFailed
from caploc.store.checking import faults_of
from caploc.store.guard import INDEX, JOURNAL, LOG, companion_file, connect
from caploc.store.pages import Record, records
from caploc.store.rows import matches, seal
from caploc.store.schema import AT_ONCE, INSERT, clear, prepare
from caploc.store.store import folder_lock, unusable

UNKNOWN = "lost with a damaged page"  # what stands for the text of a question that is lost
SEALED, UNSEALED, FIRST = 11, 10, 9  # columns of a row: with a seal, of schema 2 and of schema 1


@dataclass(frozen=True)
class Salvaged:
    """What was saved of a damaged store, and where the damaged one lies.

    `refused` counts different records that look like rows and are not what was written; rows on
    pages that are gone cannot be counted. `unnamed` rows belong to questions whose text is lost:
    the same command, which asks them again, recognises them by their seals.
    """

    rows: int
    questions: int
    unnamed: int
    refused: int
    damaged: Path


def salvage(path: Path) -> Salvaged:
    """Read every sound row into a new file and put it in the damaged one's place.

    Rows come from the pages themselves, the log's included, so that a damaged page costs its own
    rows and no others. Rows of schema 3 on are checked by their seals; older ones by what their
    values may be.

    Raises:
        FolderTaken: if a process is running in the folder.
        StoreFailed: if the new file cannot be written; the damaged one is then as it was.
    """
    lock = folder_lock(path.parent)
    part = path.with_name(f"{path.name}.part")
    try:
        clear(part)
        rows, questions, unnamed, refused = rebuilt(path, part)
        kept = set_aside(path)
        part.replace(path)
    except (OSError, sqlite3.Error) as error:
        with suppress(OSError):
            clear(part)
        if isinstance(error, OSError):
            raise StoreFailed(unusable(path.parent, error)) from error
        raise StoreFailed(
            f"No new file could be written beside {path} ({error}); free disk space, then run "
            "`caploc doctor --repair` again. The damaged file is as it was."
        ) from error
    finally:
        lock.release()
    return Salvaged(rows, questions, unnamed, refused, kept)


def rebuilt(path: Path, part: Path) -> tuple[int, int, int, int]:
    """Fill a new file; rows and questions in it, rows of lost questions, records refused."""
    database = connect(part)
    try:
        database.execute("PRAGMA journal_mode=DELETE")
        prepare(database, part)
        digests = questions_of(path)
        refused = set[int]()
        found = sound_rows(path, {n: digest for n, (digest, _) in digests.items()}, refused)
        while batch := list(islice(found, AT_ONCE)):
            database.executemany(INSERT, batch)
            database.commit()
        used = {number for (number,) in database.execute("SELECT DISTINCT question FROM rows")}
        named = [(n, *digests[n]) for n in digests if n in used or digests[n][1] != UNKNOWN]
        database.executemany("INSERT INTO questions (id, digest, question) VALUES (?, ?, ?)", named)
        database.commit()
        (rows,) = database.execute("SELECT count(*) FROM rows").fetchone()
        (unnamed,) = database.execute(
            "SELECT count(*) FROM rows WHERE question NOT IN (SELECT id FROM questions)"
        ).fetchone()
    finally:
        database.close()
    return rows, len(named), unnamed, len(refused)


def questions_of(path: Path) -> dict[int, tuple[str, str]]:
    """Digest and text of each question, from its row or, where that is lost, from the index."""
    found: dict[int, tuple[str, str]] = {}
    for record in records(path):
        if len(record) == 4 and isinstance(record[0], int) and matches(record[2], record[3]):
            found[record[0]] = (record[2], record[3])
        elif len(record) == 2 and is_digest(record[0]) and isinstance(record[1], int):
            found.setdefault(record[1], (record[0], json.dumps(UNKNOWN)))
    return found


def is_digest(value: Any) -> bool:
    """Whether a value looks like a question's digest."""
    return isinstance(value, str) and len(value) == 32 and not set(value) - set("0123456789abcdef")


def sound_rows(path: Path, digests: dict[int, str], refused: set[int]) -> Iterator[Record]:
    """Rows as they are inserted, each perhaps several times; fingerprints of what is none."""
    for record in records(path):
        if len(record) not in (SEALED, UNSEALED, FIRST) or not isinstance(record[0], int):
            continue
        row = sound(record, digests.get(record[0]))
        if row is None:
            refused.add(hash(record))
        else:
            yield row


def sound(record: Record, digest: str | None) -> Record | None:
    """A record as a row that can be inserted; None if it is not what was written."""
    sealed = len(record) == SEALED
    number, *fields = record[:UNSEALED]
    if len(record) == FIRST:
        fields.insert(-1, fields[-2])  # every row was run alone: what it took is its plain tokens
    for place in (3, 6, 8):  # SQLite keeps a real number without a fraction as a whole one
        if isinstance(fields[place], int):
            fields[place] = float(fields[place])
    if any(faults_of(fields, None)):
        return None
    if not sealed:
        return None if digest is None else (number, *fields, seal(digest, fields))
    if digest is not None and seal(digest, fields) != record[-1]:
        return None
    return (number, *fields, record[-1])


def set_aside(path: Path) -> Path:
    """Rename the damaged file, its journal and its log; the name is new."""
    kept = spare(path)
    for ending in (JOURNAL, LOG):
        with suppress(FileNotFoundError):
            companion_file(path, ending).replace(companion_file(kept, ending))
    companion_file(path, INDEX).unlink(missing_ok=True)
    path.replace(kept)
    return kept


def spare(path: Path) -> Path:
    """A name for a damaged file that none has: `rows.sqlite.damaged`, `.damaged2` and so on."""
    number, kept = 1, path.with_name(f"{path.name}.damaged")
    while os.path.lexists(kept):
        number += 1
        kept = path.with_name(f"{path.name}.damaged{number}")
    return kept
