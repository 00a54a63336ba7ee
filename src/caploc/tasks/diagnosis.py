"""What is wrong with a file of data, or a record of it: the line, in a few words."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from caploc.errors import BadData

LINES = (".json", ".jsonl")
QUOTED = 60  # characters of a line that a sentence repeats
PARQUET = b"PAR1"  # how a Parquet file begins, and how it ends


def fault_of(file: Path) -> str | None:
    """The first thing that keeps a file of data from being read; None if nothing is seen.

    A file of JSON holds an object a line, or one list of objects.
    """
    try:
        if file.suffix == ".parquet":
            return None if whole_parquet(file) else "it is no Parquet file, or cut off"
        fault = next(faults_of_text(file), None)
        if fault is None and file.suffix in LINES:
            fault = next(faults_of_lines(file), None)
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    return fault


def whole_parquet(file: Path) -> bool:
    """Whether a file begins and ends as Parquet does."""
    with file.open("rb") as content:
        begins = content.read(len(PARQUET)) == PARQUET
        content.seek(max(0, file.stat().st_size - len(PARQUET)))
        return begins and content.read() == PARQUET


def faults_of_text(file: Path) -> Iterator[str]:
    """Lines that are no text in UTF-8."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                yield (
                    f"line {number} is no UTF-8 (byte {line[error.start]:#04x} at place "
                    f"{error.start + 1}); save the file as UTF-8"
                )


def faults_of_lines(file: Path) -> Iterator[str]:
    """Lines that are no JSON objects; or the lack of any."""
    count = 0
    with file.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            count += 1
            if count == 1 and line.lstrip().startswith("["):
                yield from faults_of_list(file)
                return
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield f"line {number} is no JSON ({error}): {line.strip()[:QUOTED]!r}"
                continue
            if not isinstance(record, dict):
                yield f"line {number} is no object with columns: {line.strip()[:QUOTED]!r}"
    if not count:
        yield "it holds no record"


def faults_of_list(file: Path) -> Iterator[str]:
    """What is wrong with a file that should be one list of objects."""
    try:
        records = json.loads(file.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        yield f"it is no JSON ({error})"
        return
    for number, record in enumerate(records, 1):
        if not isinstance(record, dict):
            yield f"record {number} is no object with columns: {str(record)[:QUOTED]!r}"
    if not records:
        yield "it holds no record"


def local_files(definition: Mapping[str, Any]) -> list[Path]:
    """The files on this disk that a task's own definition reads."""
    given = (definition.get("dataset_kwargs") or {}).get("data_files")
    values = list(given.values()) if isinstance(given, Mapping) else [given]
    names = [name for value in values for name in (value if isinstance(value, list) else [value])]
    return [Path(name) for name in names if isinstance(name, str) and "://" not in name]


def check_complete(name: str, docs: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Refuse records that lack what others have and the task reads: they would ask for `None`.

    Raises:
        BadData: naming the first one.
    """
    for number, doc in enumerate(docs, 1):
        for column in columns:
            if column in doc and doc[column] is None:
                raise BadData(
                    f"Record {number} of task {name} has no {column!r}, which the task reads; "
                    "complete it, or take it out."
                )
