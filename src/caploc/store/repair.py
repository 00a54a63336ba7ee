"""Is a store what was written? Look at every page, question and row; save the sound ones."""

import json
import math
import os
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

from caploc.errors import StoreFailed
from caploc.files import UnfitFile
from caploc.store import folder_lock, reading, unusable
from caploc.store.pages import INDEX, JOURNAL, LOG, Record, companion_file, connect, records
from caploc.store.rows import (
    AT_ONCE,
    BITS_ALWAYS,
    COLUMNS,
    INSERT,
    SCHEMA,
    clear,
    fields_of,
    matches,
    prepare,
    seal,
)
from caploc.tasks.task import responses_from_json

DIGEST = re.compile("[0-9a-f]{32}")
SHOWN = 5  # complaints of SQLite's own that are repeated
LONGEST_QUOTE = 80  # characters
LOST_TEXT = "questions whose text is lost or changed (the same command mends it)"
LOST_QUESTION = "rows whose question is lost (the same command finds them again)"


@dataclass
class Checked:
    """What was found. `faults` count what is wrong, in words; a store without any is sound."""

    schema: int | None = None
    rows: int = 0
    questions: int = 0
    unscored: int = 0  # rows without an outcome, which is no fault
    faults: Counter[str] = field(default_factory=Counter)

    @property
    def sound(self) -> bool:
        return not self.faults

    @property
    def salvageable(self) -> bool:
        """Whether a new file from the sound rows helps; a lost question comes back when asked."""
        return bool(self.faults.keys() - {LOST_TEXT, LOST_QUESTION})


def check_store(path: Path, heads: Mapping[str, int] | None = None) -> Checked:
    """Look at a whole store; `heads` of models, by fingerprint, if known. Raises StoreFailed."""
    found = Checked()
    try:
        with reading(path) as (database, found.schema):
            try:
                examine_pages(database, found, heads or {})
            except sqlite3.DatabaseError as error:
                found.faults[f"pages cannot be read ({first_line(error)})"] += 1
    except StoreFailed as error:
        if not isinstance(error.__cause__, sqlite3.DatabaseError | UnfitFile):
            raise
        found.faults[f"the file cannot be opened ({first_line(error.__cause__)})"] += 1
    return found


def examine_pages(database: sqlite3.Connection, found: Checked, heads: Mapping[str, int]) -> None:
    """Pages, then questions, then rows."""
    database.text_factory = lambda content: content.decode(errors="replace")
    said = [line for (line,) in database.execute(f"PRAGMA integrity_check({SHOWN})")]
    found.faults.update(f"SQLite: {first_line(line)}" for line in said if line != "ok")
    digests: dict[int, str] = {}
    parts: dict[int, int | None] = {}
    for number, digest, text in database.execute("SELECT id, digest, question FROM questions"):
        found.questions += 1
        digests[number] = digest
        if matches(digest, text):
            parts[number] = heads.get(json.loads(text)["model"])
        else:
            found.faults[LOST_TEXT] += 1
    lengths: dict[int, set[int]] = {}
    fields = fields_of(found.schema or SCHEMA)
    for number, *row in database.execute(f"SELECT question, {fields} FROM rows"):
        found.rows += 1
        found.unscored += row[3] is None
        if fault := fault_of(digests.get(number), row, parts.get(number)):
            found.faults[fault] += 1
        elif len(row[0]) <= BITS_ALWAYS:
            lengths.setdefault(number, set()).add(len(row[0]))
    if mixed := sum(len(each) > 1 for each in lengths.values()):
        found.faults["questions with masks of several lengths"] += mixed


def fault_of(digest: str | None, row: Sequence[Any], parts: int | None) -> str | None:
    """What is wrong with a row, if anything; the seal last, which any other fault breaks too."""
    if digest is None:
        return LOST_QUESTION
    fault = next(faults_of(row[:9], parts), None)
    if fault is None and row[9:] and seal(digest, row[:9]) != row[9]:
        return "rows that are not what was written (their seal does not match)"
    return fault


def first_line(said: object) -> str:
    """The first line that says something, of what SQLite says; it may quote what it read."""
    lines = (line for line in str(said).splitlines() if not line.startswith("***"))
    return next(lines, "")[:LONGEST_QUOTE]


def faults_of(fields: Sequence[Any], parts: int | None) -> Iterator[str]:
    """What is wrong with a row's values."""
    mask, example, number, outcome, item, responses, *cost = fields
    if not isinstance(mask, bytes) or not fits(mask, parts):
        yield "rows whose mask is of the wrong length"
    if not (isinstance(example, str) and isinstance(number, int) and number >= 0):
        yield "rows whose example is none"
    if not (outcome is None or isinstance(outcome, float) and math.isfinite(outcome)):
        yield "rows whose outcome is no finite number"
    if not all(isinstance(each, int | float) and 0 <= each < math.inf for each in cost):
        yield "rows whose cost is no number"
    try:
        json.loads(item)
        responses_from_json(responses)
    except (TypeError, ValueError, KeyError, RecursionError):
        yield "rows whose item or responses cannot be read"


def fits(mask: bytes, parts: int | None) -> bool:
    """Whether a mask may be one over so many parts (None: any number)."""
    columns = mask[:1] == COLUMNS and len(mask) % 4 == 1
    if parts is None:
        return bool(mask)
    spare = 8 * len(mask) - parts
    as_bits = 0 <= spare < 8 and not mask[-1] & ((1 << spare) - 1)
    return as_bits or columns and len(mask) - 1 <= 4 * parts


# what stands for the text of a question that is lost
LOST = json.dumps("lost with a damaged page")
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
    values may be. Raises FolderTaken if a process is running in the folder; StoreFailed if the new
    file cannot be written; the damaged one is then as it was.
    """
    lock = folder_lock(path.parent)
    part = path.with_name(f"{path.name}.part")
    try:
        clear(part)
        if not os.path.lexists(path):  # its log may still hold rows
            path.touch(exist_ok=False)
        counts = rebuilt(path, part)
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
    return Salvaged(*counts, kept)


def rebuilt(path: Path, part: Path) -> tuple[int, int, int, int]:
    """Fill a new file; rows and questions in it, rows of lost questions, records refused."""
    digests, refused = questions_of(path), set[int]()
    with closing(connect(part)) as database:
        database.execute("PRAGMA journal_mode=DELETE")
        prepare(database, part)
        found = sound_rows(path, {n: digest for n, (digest, _) in digests.items()}, refused)
        while batch := list(islice(found, AT_ONCE)):
            database.executemany(INSERT, batch)
            database.commit()
        used = {number for (number,) in database.execute("SELECT DISTINCT question FROM rows")}
        named = [(n, *digests[n]) for n in digests if n in used or digests[n][1] != LOST]
        database.executemany("INSERT INTO questions (id, digest, question) VALUES (?, ?, ?)", named)
        database.commit()
        counting = "SELECT count(*), sum(question NOT IN (SELECT id FROM questions)) FROM rows"
        rows, unnamed = database.execute(counting).fetchone()
    return rows, len(named), unnamed or 0, len(refused)


def questions_of(path: Path) -> dict[int, tuple[str, str]]:
    """Digest and text of each question, from its row or, where that is lost, from the index."""
    found: dict[int, tuple[str, str]] = {}
    for record in records(path):
        if len(record) == 4 and isinstance(record[0], int) and matches(record[2], record[3]):
            found[record[0]] = (record[2], record[3])
        elif len(record) == 2 and DIGEST.fullmatch(str(record[0])) and isinstance(record[1], int):
            found.setdefault(record[1], (record[0], LOST))
    return found


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
    number, *fields = record[:UNSEALED]
    if len(record) == FIRST:
        fields.insert(-1, fields[-2])  # every row was run alone: what it took is its plain tokens
    for place in (3, 6, 8):  # SQLite keeps a real number without a fraction as a whole one
        if isinstance(fields[place], int):
            fields[place] = float(fields[place])
    if any(faults_of(fields, None)):
        return None
    if len(record) == SEALED:
        same = digest is None or seal(digest, fields) == record[-1]
        return (number, *fields, record[-1]) if same else None
    return None if digest is None else (number, *fields, seal(digest, fields))


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
    names = (path.with_name(f"{path.name}.damaged{n}") for n in chain([""], count(2)))
    return next(each for each in names if not os.path.lexists(each))
