"""Files of pairs: a prompt and its right answer in each line, as JSON or CSV."""

import csv
import json
from collections.abc import Iterator

from caploc.errors import BadData
from caploc.naming import PAIRS, at_home, is_file

COLUMNS = ("prompt", "answer")
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
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadData(f"{name} cannot be read ({error}); write it in UTF-8.") from None
    rows = read_csv(name, lines) if path.suffix == ".csv" else read_json_lines(name, lines)
    pairs = [pair_of(name, number, row) for number, row in rows]
    if not pairs:
        raise BadData(f"{name} is empty; give a line for each pair, such as {FORM}.")
    return pairs


def read_json_lines(name: str, lines: list[str]) -> Iterator[tuple[int, object]]:
    """Yield what each line holds, with its number."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except ValueError:
            raise BadData(
                f"{name}, line {number} is no JSON: {line[:40]!r}; each line is a pair, such as "
                f"{FORM}."
            ) from None


def read_csv(name: str, lines: list[str]) -> Iterator[tuple[int, object]]:
    """Yield each row by its columns, with the number of its last line."""
    try:
        reader = csv.DictReader([f"{line}\n" for line in lines], strict=True)
        for row in reader:
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
        if not isinstance(row[column], str) or not row[column]:
            raise BadData(
                f"{name}, line {number}: its {column} is {row[column]!r}, and must be a text that "
                "is not empty."
            )
    return row["prompt"], row["answer"]
