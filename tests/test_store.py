import math
import sqlite3
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caploc.errors import StoreFailed
from caploc.store import Question, Row, Store, pack, reading

QUESTION = Question("weights", "float32", "task", "1", "metric")


def row(mask=b"\x80", example="e0", number=0, outcome=1.0, item=1.0):
    return Row(mask, example, number, outcome, item, "[]", 12.5, 20, 0.5)


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "rows.sqlite") as opened:
        yield opened


def test_what_is_stored_is_loaded(store):
    question = store.question_id(QUESTION)
    rows = [row(), row(example="e1", number=1, outcome=-2.5, item=[-10.0, 4]), row(mask=b"\x40")]
    store.add(question, rows)
    assert list(store.load(question).values()) == sorted(rows, key=lambda r: (r.mask, r.example))


def test_missing_outcomes_stay_missing(store):
    question = store.question_id(QUESTION)
    store.add(question, [row(outcome=math.nan, item=None)])
    (loaded,) = store.load(question).values()
    assert math.isnan(loaded.outcome) and loaded.item is None


@pytest.mark.parametrize("name", [field.name for field in fields(Question)])
def test_any_change_of_the_question_is_another_question(store, name):
    first = store.question_id(QUESTION)
    store.add(first, [row()])
    changed = 1 if isinstance(getattr(QUESTION, name), int) else "changed"
    other = store.question_id(replace(QUESTION, **{name: changed}))
    assert other != first
    assert store.load(other) == {}


def test_the_same_question_is_found_again(tmp_path):
    with Store(tmp_path / "rows.sqlite") as first:
        number = first.question_id(QUESTION)
        first.add(number, [row()])
    with Store(tmp_path / "rows.sqlite") as second:
        assert second.question_id(QUESTION) == number
        assert len(second.load(number)) == 1


def test_masks_are_told_apart_bit_by_bit():
    packed = {pack(mask) for mask in np.eye(17, dtype=bool)}
    assert len(packed) == 17


def test_a_folder_is_free_again_when_closed(tmp_path):
    Store(tmp_path / "rows.sqlite").close()
    Store(tmp_path / "rows.sqlite").close()


def test_a_damaged_file_is_one_sentence_and_the_folder_is_free(tmp_path):
    (tmp_path / "rows.sqlite").write_bytes(b"not a database, not at all" * 100)
    for _ in range(2):
        with pytest.raises(StoreFailed, match="cannot be written or read"):
            Store(tmp_path / "rows.sqlite")


def test_rows_of_another_schema_are_refused(tmp_path):
    path = tmp_path / "rows.sqlite"
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version=99")
    database.close()
    before = path.read_bytes()
    for opened in (Store, reading):
        with (
            pytest.raises(StoreFailed, match=r"another version of caploc \(schema 99"),
            opened(path),
        ):
            pass
    assert path.read_bytes() == before


def test_a_place_that_is_no_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreFailed, match="choose another --out"):
        Store(tmp_path / "file" / "rows.sqlite")


def test_a_full_disk_is_one_sentence_and_keeps_what_was_stored(store):
    question = store.question_id(QUESTION)
    store.add(question, [row()])
    (pages,) = store.database.execute("PRAGMA page_count").fetchone()
    store.database.execute(f"PRAGMA max_page_count={pages}")
    many = [row(example=f"e{n}", item="x" * 1000) for n in range(1000)]
    with pytest.raises(StoreFailed, match="full.*same command again"):
        store.add(question, many)
    store.database.execute("PRAGMA max_page_count=100000")
    assert len(store.load(question)) == 1


def test_few_of_many_parts_are_kept_as_their_columns():
    mask = np.zeros(20_000, dtype=bool)
    mask[[3, 17_000]] = True
    assert pack(mask) == b"c" + np.array([3, 17_000], dtype="<u4").tobytes()
    dense = np.ones(20_000, dtype=bool)
    assert pack(dense) == np.packbits(dense).tobytes()
    small = np.zeros(8 * 1024, dtype=bool)  # a model's heads are always bits
    assert pack(small) == bytes(1024)


def test_no_two_masks_of_a_model_are_packed_alike():
    """The bits of one mask, read as columns, name another: it must not be kept as those."""
    parts = 8 * 1025
    mask = np.zeros(parts, dtype=bool)
    mask[np.random.default_rng(0).choice(parts, size=256, replace=False)] = True
    columns = b"c" + np.flatnonzero(mask).astype("<u4").tobytes()
    assert len(columns) == 1025  # as long as the bits
    other = np.unpackbits(np.frombuffer(columns, np.uint8)).astype(bool)
    assert other.sum() > 256 and (other != mask).any()
    assert pack(other) != pack(mask)


@given(st.lists(st.integers(0, 9_999), max_size=400), st.lists(st.integers(0, 9_999), max_size=400))
def test_masks_are_packed_alike_only_if_they_are_equal(first, second):
    masks = np.zeros((2, 10_000), dtype=bool)
    masks[0, first] = masks[1, second] = True
    assert (pack(masks[0]) == pack(masks[1])) == np.array_equal(*masks)
