"""Stores with known rows, for tests."""

import json
import sqlite3
from dataclasses import asdict
from pathlib import Path

import numpy as np

from caploc.store import Question, Row, Store, pack

HEADS = 20
QUESTIONS = (
    Question("weights", "float32", "task", "1", "metric"),
    Question("weights", "float32", "other", "1", "logprob"),
)
# The tables as they once were, from the repository's history.
SCHEMA_1 = """
CREATE TABLE IF NOT EXISTS questions (
    id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, question TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS rows (
    question INTEGER NOT NULL REFERENCES questions (id),
    mask BLOB NOT NULL,          -- packed bits, most significant first; 1 is knocked out
    example TEXT NOT NULL,       -- digest of the example's requests and document
    number INTEGER NOT NULL,     -- the example's place in its task
    outcome REAL,                -- NULL where it could not be scored
    item TEXT NOT NULL,          -- what the task's metric aggregates, JSON
    responses TEXT NOT NULL,     -- what the model answered, JSON
    tokens INTEGER NOT NULL,     -- tokens run through the model for this row
    seconds REAL NOT NULL,       -- the row's share of its batch
    PRIMARY KEY (question, mask, example)
) WITHOUT ROWID;
"""
SCHEMA_2 = SCHEMA_1.replace(
    "tokens INTEGER NOT NULL,     -- tokens run through the model for this row",
    "tokens REAL NOT NULL,        -- tokens run for this row, in passes through all layers\n"
    "    plain_tokens INTEGER NOT NULL, -- tokens of reading and saying it alone",
)


def rows(count: int, seed: int = 0) -> list[Row]:
    """Rows with all sorts of values; every seventh was not scored, every eleventh is long."""
    random = np.random.default_rng(seed)
    made = []
    for number in range(count):
        mask = pack(random.random(HEADS) < 0.2)
        text = "ü\x1b<b>" * (900 if number % 11 == 0 else 1)
        outcome = float("nan") if number % 7 == 0 else float(random.integers(0, 2))
        item = None if number % 7 == 0 else [float(random.normal()), number]
        responses = json.dumps([{"text": text, "tokens": 3}])
        made.append(
            Row(mask, f"{number:032x}", number, outcome, item, responses, 12.0, 20, number / 7)
        )
    return made


def fill(path: Path, count: int = 300) -> dict[Question, dict[tuple[bytes, str], Row]]:
    """Write rows of each question into a store; what it then holds."""
    truth = {}
    with Store(path) as store:
        for seed, question in enumerate(QUESTIONS):
            made = rows(count, seed)
            store.add(store.question_id(question), made)
            truth[question] = {(row.mask, row.example): row for row in made}
    return truth


def held(path: Path) -> dict[Question, dict[tuple[bytes, str], Row]]:
    """What a store holds of each question."""
    with Store(path) as store:
        return {question: store.load(store.question_id(question)) for question in QUESTIONS}


def alike(one: Row, other: Row) -> bool:
    """Whether rows are the same; NaN is NaN."""
    return repr(one) == repr(other)


def write_former(path: Path, schema: int, made: list[Row]) -> None:
    """A store as an earlier schema wrote it."""
    database = sqlite3.connect(path)
    database.executescript(SCHEMA_1 if schema == 1 else SCHEMA_2)
    database.execute(f"PRAGMA user_version={schema}")
    question = QUESTIONS[0]
    database.execute(
        "INSERT INTO questions VALUES (1, ?, ?)", (question.digest(), json.dumps(asdict(question)))
    )
    for row in made:
        outcome = None if np.isnan(row.outcome) else row.outcome
        fields = [1, row.mask, row.example, row.number, outcome, json.dumps(row.item)]
        fields += [row.responses, row.tokens, *([row.plain_tokens] if schema == 2 else [])]
        fields.append(row.seconds)
        marks = ", ".join("?" * len(fields))
        database.execute(f"INSERT INTO rows VALUES ({marks})", fields)
    database.commit()
    database.close()
