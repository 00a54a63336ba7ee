"""Files of pairs: a prompt and its right answer in each line, as JSON or CSV."""

import csv
import json
from collections.abc import Iterator
from io import StringIO

from caploc.errors import BadData
from caploc.naming import PAIRS, at_home, is_file

COLUMNS = ("prompt", "answer")
BEYOND = "\0"  # no column's name: fields of a row that the header has no name for
FORM = '{"prompt": "The capital of France is", "answer": " Paris"}'


def is_pairs(name: str) -> bool:
    """Tell whether a task's name is that of a file of pairs."""
    return name.endswith(PAIRS) and is_file(at_home(name))


def read_pairs(name: str) -> list[tuple[str, str]]:
    """Read a file of pairs.

    Raises BadData, with file and line, for what is empty, no JSON, or without one of the columns.
    """
    path = at_home(name)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise BadData(f"{name} cannot be read ({error}); write it in UTF-8.") from None
    rows = read_csv(name, text) if path.suffix == ".csv" else read_json_lines(name, text)
    pairs = [pair_of(name, number, row) for number, row in rows]
    if not pairs:
        raise BadData(f"{name} is empty; give a line for each pair, such as {FORM}.")
    return pairs


def read_json_lines(name: str, text: str) -> Iterator[tuple[int, object]]:
    """Yield what each line holds, with its number."""
    for number, line in enumerate(text.split("\n"), 1):  # JSON may hold other ends of lines
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except ValueError:
            raise BadData(
                f"{name}, line {number} is no JSON: {line[:40]!r}; each line is a pair, such as "
                f"{FORM}."
            ) from None


def read_csv(name: str, text: str) -> Iterator[tuple[int, object]]:
    """Yield each row by its columns, with the number of its last line."""
    try:
        reader = csv.DictReader(StringIO(text, newline=""), restkey=BEYOND, strict=True)
        for row in reader:
            if BEYOND in row:
                raise BadData(
                    f"{name}, line {reader.line_num} has more fields than the header: "
                    f"{', '.join(map(repr, row[BEYOND]))}; quote a text that holds a comma."
                )
            yield reader.line_num, {key: text for key, text in row.items() if text is not None}
    except csv.Error as error:
        raise BadData(f"{name}, line {reader.line_num + 1} is no CSV ({error}).") from None


def pair_of(name: str, number: int, row: object) -> tuple[str, str]:
    """Take prompt and answer from a row."""
    if not isinstance(row, dict):
        raise BadData(f"{name}, line {number} is no pair; write it as {FORM}.")
    for column in COLUMNS:
        if column not in row:
            found = ", ".join(str(key) for key in row if key) or "none"
            raise BadData(
                f"{name}, line {number} has no {column!r}: its columns are {found}, and a file of "
                "pairs has prompt and answer."
            )
        if not isinstance(row[column], str) or not row[column].strip():
            raise BadData(
                f"{name}, line {number}: its {column} is {row[column]!r}, and must be a text that "
                "is not blank."
            )
    return row["prompt"], row["answer"]
