"""Rows on disk: what was asked under which mask, what came back, what it was worth.

A row's key is its question (model, task, everything else that can change an outcome), its mask
and its example. Resuming a run and sharing rows between runs are therefore the same thing: a row
whose key is known is never asked again.
"""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from caploc.errors import FolderTaken, StoreFailed
from caploc.heads import Mask

SCHEMA = 2
BITS_ALWAYS = 1024  # bytes; no model has more than so many attention heads
TABLES = """
CREATE TABLE IF NOT EXISTS questions (
    id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, question TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS rows (
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
) WITHOUT ROWID;
"""


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
        canonical = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return blake2b(canonical.encode(), digest_size=16).hexdigest()


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
    return bits if len(bits) <= max(BITS_ALWAYS, len(columns) + 1) else b"c" + columns


class Store:
    """The rows of a run folder. One process at a time writes it."""

    def __init__(self, path: Path) -> None:
        """Open or create `path`; nothing else may have its folder open.

        Raises:
            FolderTaken: if another process is running in the folder.
            StoreFailed: if the file cannot be opened, is damaged or of another schema.
        """
        self.path = path
        with self.guarded():
            path.parent.mkdir(parents=True, exist_ok=True)
            self.lock = FileLock(path.parent / ".lock")
            try:
                self.lock.acquire(timeout=0)
            except Timeout:
                raise FolderTaken(
                    f"Another caploc process is running in {path.parent}; wait for it, stop it, "
                    "or choose another --out."
                ) from None
            try:
                self.database = sqlite3.connect(path)
                self.prepare()
            except BaseException:
                self.lock.release()
                raise

    def prepare(self) -> None:
        """Create the tables of a new file; check the schema of an old one."""
        self.database.execute("PRAGMA journal_mode=WAL")
        self.database.execute("PRAGMA synchronous=NORMAL")
        (version,) = self.database.execute("PRAGMA user_version").fetchone()
        if version not in (0, SCHEMA):
            raise StoreFailed(
                f"{self.path} was written by another version of caploc (schema {version}, this "
                f"one reads {SCHEMA}); use that version, or another --out."
            )
        self.database.executescript(TABLES)
        self.database.execute(f"PRAGMA user_version={SCHEMA}")

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Turn what the disk and SQLite say into one sentence."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise StoreFailed(
                f"The rows in {self.path} cannot be written or read ({error}); everything stored "
                "before is kept. Free disk space or check the file and its rights, then run the "
                "same command again."
            ) from error
        except OSError as error:
            raise StoreFailed(
                f"{self.path.parent} cannot be used as a run folder ({error.strerror}); "
                "choose another --out."
            ) from error

    def question_id(self, question: Question) -> int:
        """The number under which a question's rows are kept."""
        with self.guarded(), self.database:
            self.database.execute(
                "INSERT OR IGNORE INTO questions (digest, question) VALUES (?, ?)",
                (question.digest(), json.dumps(asdict(question))),
            )
            (number,) = self.database.execute(
                "SELECT id FROM questions WHERE digest = ?", (question.digest(),)
            ).fetchone()
        return int(number)

    def load(self, question: int) -> dict[tuple[bytes, str], Row]:
        """Every row of a question by mask and example."""
        with self.guarded():
            found = self.database.execute(
                "SELECT mask, example, number, outcome, item, responses, tokens, "
                "plain_tokens, seconds "
                "FROM rows WHERE question = ?",
                (question,),
            )
            return {(fields[0], fields[1]): as_row(fields) for fields in found}

    def add(self, question: int, rows: Sequence[Row]) -> None:
        """Keep rows, all or none; on return they survive a crash of the program.

        Raises:
            StoreFailed: if the disk is full or read-only.
        """
        with self.guarded(), self.database:
            self.database.executemany(
                "INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        question,
                        row.mask,
                        row.example,
                        row.number,
                        None if np.isnan(row.outcome) else row.outcome,
                        json.dumps(row.item, default=as_plain),
                        row.responses,
                        row.tokens,
                        row.plain_tokens,
                        row.seconds,
                    )
                    for row in rows
                ],
            )

    def close(self) -> None:
        """Close the file and let other processes in."""
        self.database.close()
        self.lock.release()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def as_plain(value: Any) -> Any:
    """NumPy numbers and arrays as JSON takes them."""
    return value.tolist() if hasattr(value, "tolist") else float(value)


def as_row(fields: tuple[Any, ...]) -> Row:
    """A row as read from the file."""
    mask, example, number, outcome, item, responses, tokens, plain, seconds = fields
    return Row(
        mask,
        example,
        number,
        float("nan") if outcome is None else outcome,
        json.loads(item),
        responses,
        tokens,
        plain,
        seconds,
    )
