"""Stores with known rows, for tests."""

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from caploc.store import Question, Row, Store, pack

HEADS = 20
QUESTION = Question("weights", "float32", "task", "1", "metric")


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


def fill(path: Path, made: list[Row]) -> None:
    """Add rows to a store."""
    with Store(path) as store:
        store.add(store.question_id(QUESTION), made)


def by_key(made: Iterable[Row]) -> dict[tuple[bytes, str], str]:
    """The last row of each key, as text: NaN is NaN."""
    return {(row.mask, row.example): repr(row) for row in made}


def held(path: Path) -> dict[tuple[bytes, str], str]:
    """The rows that a store holds, by key."""
    with Store(path) as store:
        return by_key(store.load(store.question_id(QUESTION)).values())
