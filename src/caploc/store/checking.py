"""Is a store what was written? Every page, question and row is looked at."""

import json
import math
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from caploc.errors import StoreFailed
from caploc.files import UnfitFile
from caploc.store.reading import reading
from caploc.store.rows import BITS_ALWAYS, COLUMNS, matches, seal
from caploc.store.schema import SCHEMA, fields_of
from caploc.tasks.requests import responses_from_json

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
        """Whether nothing is wrong."""
        return not self.faults

    @property
    def salvageable(self) -> bool:
        """Whether a new file from the sound rows helps; a lost question comes back when asked."""
        return bool(self.faults.keys() - {LOST_TEXT, LOST_QUESTION})


def check_store(path: Path, heads: Mapping[str, int] | None = None) -> Checked:
    """Look at a whole store; nothing is changed. `heads` of models, by fingerprint, if known.

    Raises:
        StoreFailed: if the file is of a later schema or none of ours.
    """
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
        fault = fault_of(digests.get(number), row, parts.get(number))
        if fault:
            found.faults[fault] += 1
        elif len(row[0]) <= BITS_ALWAYS:
            lengths.setdefault(number, set()).add(len(row[0]))
    mixed = sum(len(each) > 1 for each in lengths.values())
    if mixed:
        found.faults["questions with masks of several lengths"] += mixed


def first_line(said: object) -> str:
    """The first line that says something, of what SQLite says; it may quote what it read."""
    lines = [line for line in str(said).splitlines() if not line.startswith("***")]
    return (lines or [""])[0][:LONGEST_QUOTE]


def fault_of(digest: str | None, row: Sequence[Any], parts: int | None) -> str | None:
    """What is wrong with a row, if anything; the seal last, which any other fault breaks too."""
    if digest is None:
        return LOST_QUESTION
    fields, sealed = row[:9], row[9:]
    fault = next(faults_of(fields, parts), None)
    if fault is None and sealed and seal(digest, fields) != sealed[0]:
        return "rows that are not what was written (their seal does not match)"
    return fault


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
