"""A question, a row, and how both are written: packed masks, JSON, seals."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from jaxtyping import Int

from caploc.heads import Mask

BITS_ALWAYS = 1024  # bytes; no model has more than so many attention heads
COLUMNS = b"c"  # what a mask written as its columns begins with
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

    def digest(self) -> str:
        """Same question, same digest, on every machine, at any time."""
        canonical = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
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


def parse_row(fields: Sequence[Any]) -> Row:
    """A row as read from the file.

    Raises:
        ValueError: if its item is no JSON.
        RecursionError: if it is nested beyond reason.
    """
    mask, example, number, outcome, item, responses, tokens, plain, seconds = fields
    value = math.nan if outcome is None else outcome
    return Row(mask, example, number, value, json.loads(item), responses, tokens, plain, seconds)


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
