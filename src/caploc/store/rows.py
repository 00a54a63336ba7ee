"""A question, a row, and the tables that hold them: written, brought up to date, and refused."""

import json
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from caploc.errors import StoreFailed
from caploc.heads import Mask
from caploc.store.pages import INDEX, JOURNAL, LOG, companion_file, connect

BITS_ALWAYS = 1024  # bytes; no model has more than so many attention heads
COLUMNS = b"c"  # what a mask written as its columns begins with
# What a mask with amounts begins with, and its parts; no mask of heads has these 64 bits first.
AMOUNTS = b"\xffamounts"
AMOUNT = np.dtype([("column", "<u4"), ("amount", "<f8")])
SEAL_BYTES = 8

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
    repeat: int = 0  # how often it was asked before, to see whether the answers stay the same

    def digest(self) -> str:
        """Same question, same digest, on every machine, at any time."""
        fields = asdict(self)
        if not self.repeat:  # stores written before any question was repeated have no such field
            del fields["repeat"]
        canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        return blake2b(canonical.encode(), digest_size=16).hexdigest()


def matches(digest: Any, text: Any) -> bool:
    """Tell whether a question's text, as JSON, is that of its digest."""
    try:
        return bool(Question(**json.loads(text)).digest() == digest)
    except (TypeError, ValueError, RecursionError):
        return False


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
    """A mask as the store keeps it: its bits, or where shorter (few of many parts) its columns.

    With a part that is not knocked out wholly it is the columns and the amount of each.
    """
    if mask.dtype != bool and (mask % 1).any():
        held = np.flatnonzero(mask)
        return AMOUNTS + np.array([*zip(held, mask[held], strict=True)], AMOUNT).tobytes()
    mask = mask.astype(bool)
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
    if packed.startswith(AMOUNTS):
        return np.frombuffer(packed[len(AMOUNTS) :], AMOUNT)["column"].astype(int)
    as_bits = len(packed) <= BITS_ALWAYS if parts is None else len(packed) == -(-parts // 8)
    if not as_bits and packed[:1] == COLUMNS:
        return np.frombuffer(packed[1:], dtype="<u4").astype(int)
    return np.flatnonzero(np.unpackbits(np.frombuffer(packed, dtype=np.uint8)))


def unpack_amounts(packed: bytes) -> list[float]:
    """How much is knocked out of each column of `unpack`; empty where all are wholly."""
    if not packed.startswith(AMOUNTS):
        return []
    return [*map(float, np.frombuffer(packed[len(AMOUNTS) :], AMOUNT)["amount"])]


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


def seal(digest: str, fields: Sequence[Any]) -> bytes:
    """A checksum of a row and of its question's digest, which tells a damaged row from a sound one.

    It is no signature: whoever writes a file on purpose can seal what they like.
    """
    checksum = blake2b(digest_size=SEAL_BYTES)
    for value in (digest, *fields):
        content = value if isinstance(value, bytes) else repr(value).encode()
        checksum.update(len(content).to_bytes(8, "little") + content)
    return checksum.digest()


def as_kept(item: Any) -> Any:
    """An item as it comes back from the file, so that a row is worth the same new and known.

    Numbers of NumPy are summed otherwise than plain ones (Python 3.12 compensates for rounding).
    """
    return json.loads(json.dumps(item, default=as_plain))


def as_plain(value: Any) -> Any:
    """NumPy numbers and arrays as JSON takes them."""
    return value.tolist() if hasattr(value, "tolist") else float(value)


SCHEMA = 3
SEALED = 3  # the first schema whose rows have a seal
AT_ONCE = 5_000  # rows that a migration holds in memory
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
    seal BLOB NOT NULL,          -- checksum of the row and its question (`rows.seal`)
    PRIMARY KEY (question, mask, example)
) WITHOUT ROWID
"""
FIELDS = "mask, example, number, outcome, item, responses, tokens, plain_tokens, seconds"
INSERT = f"INSERT OR REPLACE INTO rows (question, {FIELDS}, seal) VALUES ({', '.join('?' * 11)})"


def fields_of(schema: int) -> str:
    """The columns of a row in a file of this schema, the seal last where rows have one."""
    fields = FIELDS if schema > 1 else FIELDS.replace("plain_tokens", "tokens")
    return f"{fields}, seal" if schema >= SEALED else fields


def prepare(database: sqlite3.Connection, path: Path) -> None:
    """Create the tables of a new file, or update those of an older one; raises StoreFailed."""
    version = schema_of(database, path)
    if version == 0:
        with transaction(database):
            database.execute(QUESTIONS)
            database.execute(ROWS)
            database.execute(f"PRAGMA user_version={SCHEMA}")
    elif version < SCHEMA:
        keep_copy(database, path, version)
        with transaction(database):
            for step in range(version, SCHEMA):
                MIGRATIONS[step](database)
            database.execute(f"PRAGMA user_version={SCHEMA}")


def schema_of(database: sqlite3.Connection, path: Path) -> int:
    """The schema of a file, 0 for one without tables; raises StoreFailed."""
    (version,) = database.execute("PRAGMA user_version").fetchone()
    try:
        objects = database.execute(
            "SELECT type, name, sql FROM sqlite_schema WHERE type <> 'index' OR sql IS NOT NULL"
        ).fetchall()
    except UnicodeDecodeError:
        raise sqlite3.DatabaseError("the names of its tables are no text") from None
    if version > SCHEMA or version < 0:
        raise StoreFailed(
            f"{path} was written by a later version of caploc (schema {version}, this one reads up "
            f"to {SCHEMA}); use that version, or another --out."
        )
    tables = {"questions": QUESTIONS, "rows": FORMER.get(version, ROWS)} if version else {}
    known = {name: normalize_statement(sql) for name, sql in tables.items()}
    for kind, name, sql in objects:
        if kind != "table" or normalize_statement(sql or "") != known.get(name):
            raise StoreFailed(
                f"{path} holds a {kind} {str(name)[:40]!r} that no run of caploc writes; do not "
                "use the file: take a copy from where it was made, or another --out."
            )
    if len(objects) != len(known):
        raise StoreFailed(f"{path} lacks tables of a store; use another --out.")
    return int(version)


def normalize_statement(sql: str) -> str:
    """A statement without its comments and spaces.

    Quotes go from around a table's name alone: inside others `--` begins no comment.
    """
    unquoted = re.sub(r'"(rows|questions)"', r"\1", sql, count=1)
    without = re.sub(r"--[^\n]*", "", unquoted)
    return re.sub(r"\s+", "", without).replace("IFNOTEXISTS", "")


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """All statements of the block or none, those that make tables included."""
    with database:
        database.execute("BEGIN IMMEDIATE")
        yield


def keep_copy(database: sqlite3.Connection, path: Path, version: int) -> None:
    """Copy the file as it is beside itself, `rows.sqlite.schema1`, whole or not at all."""
    copy = path.with_name(f"{path.name}.schema{version}")
    part = copy.with_name(f"{copy.name}.part")
    clear(part)
    try:
        with closing(connect(part)) as target:
            database.backup(target)
        part.replace(copy)
    except BaseException:
        clear(part)
        raise


def clear(part: Path) -> None:
    """Delete a database that was not finished, and what SQLite kept beside it."""
    for ending in ("", JOURNAL, LOG, INDEX):
        companion_file(part, ending).unlink(missing_ok=True)


def price_alone(database: sqlite3.Connection) -> None:
    """From 1 to 2: rows say what they would take alone; then they were all run alone."""
    database.execute("ALTER TABLE rows RENAME TO former")
    database.execute(FORMER[2])
    database.execute(
        "INSERT INTO rows SELECT question, mask, example, number, outcome, item, responses, "
        "tokens, tokens, seconds FROM former"
    )
    database.execute("DROP TABLE former")


def seal_rows(database: sqlite3.Connection) -> None:
    """From 2 to 3: every row gets a seal."""
    database.execute("ALTER TABLE rows RENAME TO former")
    database.execute(ROWS)
    digests = dict(database.execute("SELECT id, digest FROM questions"))
    found = database.execute(f"SELECT question, {FIELDS} FROM former")
    while batch := found.fetchmany(AT_ONCE):
        database.executemany(
            INSERT, [(*row, seal(digests.get(row[0], ""), row[1:])) for row in batch]
        )
    database.execute("DROP TABLE former")


MIGRATIONS: dict[int, Callable[[sqlite3.Connection], None]] = {1: price_alone, 2: seal_rows}
FORMER: dict[int, str] = {  # the table of rows as it was
    2: "\n".join(line for line in ROWS.splitlines() if not line.strip().startswith("seal"))
}
FORMER[1] = "\n".join(
    line.replace("tokens REAL", "tokens INTEGER")
    for line in FORMER[2].splitlines()
    if not line.strip().startswith("plain_tokens")
)
