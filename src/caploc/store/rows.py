"""A question, a row, and the tables that hold them."""

import json
import math
import reprlib
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from caploc.components import Mask
from caploc.errors import BadData
from caploc.files import digest

BITS_ALWAYS = 1024  # bytes; no model has more than so many attention heads
COLUMNS = b"c"  # what a mask written as its columns begins with

Fields = tuple[bytes, str, int, float | None, str, str, float, int, float]


@dataclass(frozen=True, slots=True)
class Question:
    """Everything besides mask and example that can change an outcome, and nothing else."""

    model: str  # fingerprint of the weights
    dtype: str
    task: str
    task_version: str
    outcome: str
    mode: str = "zero"

    def digest(self) -> str:
        """Same question, same digest, on every machine, at any time."""
        return digest(asdict(self))


@dataclass(frozen=True, slots=True)
class Row:
    """One measured (mask, example) pair. `outcome` is NaN where it could not be scored."""

    mask: bytes
    example: str
    number: int
    outcome: float
    item: Any
    responses: str
    tokens: float
    plain_tokens: int
    seconds: float


def pack(mask: Mask) -> bytes:
    """A mask as the store keeps it: its bits, or where shorter (few of many parts) its columns."""
    bits = np.packbits(mask).tobytes()
    columns = np.flatnonzero(mask).astype("<u4").tobytes()
    # columns only where strictly shorter: two masks of one length are then written in one way
    if len(bits) <= max(BITS_ALWAYS, len(columns) + 1):
        return bits
    return COLUMNS + columns


def unpack(packed: bytes, parts: int | None = None) -> Int[np.ndarray, " knocked_out"]:
    """The columns that a packed mask over so many parts knocks out, ascending.

    Without `parts` a mask of up to 1,024 bytes is taken for bits, which is right for every mask of
    attention heads.
    """
    as_bits = len(packed) <= BITS_ALWAYS if parts is None else len(packed) == -(-parts // 8)
    if not as_bits and packed[:1] == COLUMNS:
        return np.frombuffer(packed[1:], dtype="<u4").astype(int)
    return np.flatnonzero(np.unpackbits(np.frombuffer(packed, dtype=np.uint8)))


def as_fields(row: Row) -> Fields:
    """A row as the file holds it: missing is None, numbers are plain, the item is JSON."""
    return (
        row.mask,
        row.example,
        int(row.number),
        None if np.isnan(row.outcome) else float(row.outcome) + 0.0,  # SQLite knows no -0.0
        json.dumps(row.item, default=as_plain),
        row.responses,
        float(row.tokens) + 0.0,
        int(row.plain_tokens),
        float(row.seconds) + 0.0,
    )


def as_row(fields: Sequence[Any]) -> Row:
    """The row of `FIELDS` as the file holds them."""
    mask, example, number, outcome, item, *others = fields
    value = math.nan if outcome is None else outcome
    return Row(mask, example, number, value, json.loads(item), *others)


def as_kept(item: Any) -> Any:
    """An item as it comes back from the file, so that a row is worth the same new and known.

    Numbers of NumPy are summed otherwise than plain ones (Python 3.12 compensates for rounding).
    """
    return json.loads(json.dumps(item, default=as_plain))


def as_plain(value: Any) -> Any:
    """NumPy numbers and arrays as JSON takes them."""
    try:
        return value.tolist() if hasattr(value, "tolist") else float(value)
    except (TypeError, ValueError):
        raise BadData(
            f"The task scores an answer with {reprlib.repr(value)}, which is no number."
        ) from None


SCHEMA = 6
QUESTIONS = """
CREATE TABLE questions (
    id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, question TEXT NOT NULL
)
"""
ROWS = """
CREATE TABLE rows (
    question INTEGER NOT NULL REFERENCES questions (id),
    mask BLOB NOT NULL,          -- packed bits, most significant first; 1 is knocked out (`pack`)
    example TEXT NOT NULL,       -- digest of the example's requests and document
    number INTEGER NOT NULL,     -- the example's place in its task
    outcome REAL,                -- NULL where it could not be scored
    item TEXT NOT NULL,          -- what the task's metric aggregates, JSON
    responses TEXT NOT NULL,     -- what the model answered, JSON
    tokens REAL NOT NULL,        -- tokens run for this row, in passes through all layers
    plain_tokens INTEGER NOT NULL, -- tokens of reading and saying it alone
    seconds REAL NOT NULL,       -- the row's share of its batch
    PRIMARY KEY (question, mask, example)
) WITHOUT ROWID
"""
FIELDS = "mask, example, number, outcome, item, responses, tokens, plain_tokens, seconds"
MARKS = ", ".join("?" * 10)
INSERT = f"INSERT OR REPLACE INTO rows (question, {FIELDS}) VALUES ({MARKS})"  # noqa: S608


def create_tables(database: sqlite3.Connection) -> None:
    """Make a new file a store."""
    with transaction(database):
        database.execute(QUESTIONS)
        database.execute(ROWS)
        database.execute(f"PRAGMA user_version={SCHEMA}")


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """All statements of the block or none, those that make tables included."""
    with database:
        database.execute("BEGIN IMMEDIATE")
        yield
