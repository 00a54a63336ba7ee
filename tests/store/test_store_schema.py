"""Files of earlier, later and foreign schemas."""

import sqlite3
from dataclasses import replace

import pytest
from filled import QUESTIONS, alike, fill, held, rows, write_former

from caploc.errors import StoreFailed
from caploc.store import SCHEMA, Store, pages, reading
from caploc.store import rows as store_rows

HOSTILE = [
    "CREATE TRIGGER t AFTER INSERT ON rows BEGIN DELETE FROM rows; END",
    "CREATE VIEW v AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT x FROM n",
    "CREATE TABLE extra (x)",
    "CREATE INDEX i ON rows (abs(number))",
    "ALTER TABLE rows ADD COLUMN bomb GENERATED ALWAYS AS (hex(zeroblob(1000000000)))",
    "CREATE VIRTUAL TABLE f USING fts5(x)",
]


@pytest.mark.parametrize("former", [1, 2])
def test_rows_of_an_earlier_schema_are_brought_up_to_date_and_a_copy_is_kept(tmp_path, former):
    path, made = tmp_path / "rows.sqlite", rows(50)
    write_former(path, former, made)
    with reading(path) as (_, found):
        assert found == former
    loaded = held(path)[QUESTIONS[0]]
    # the first engine ran every row alone, so that what it ran is what a row alone takes
    truth = [replace(row, plain_tokens=12) if former == 1 else row for row in made]
    assert len(loaded) == len(truth)
    assert all(alike(loaded[row.mask, row.example], row) for row in truth)
    with reading(path) as (_, found):
        assert found == SCHEMA
    with reading(tmp_path / f"rows.sqlite.schema{former}") as (database, found):
        assert found == former
        assert database.execute("SELECT count(*) FROM rows").fetchone() == (50,)
    assert not list(tmp_path.glob("*.part"))


def test_a_migration_that_breaks_off_changes_nothing(tmp_path, monkeypatch):
    path, made = tmp_path / "rows.sqlite", rows(50)
    write_former(path, 1, made)

    def broken(database):
        store_rows.price_alone(database)
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(store_rows.MIGRATIONS, 1, broken)
    with pytest.raises(StoreFailed, match="No space left.*same command again"):
        Store(path)
    with reading(path) as (database, found):
        assert found == 1
        assert database.execute("SELECT count(*), sum(tokens) FROM rows").fetchone() == (50, 600)
    monkeypatch.undo()
    assert len(held(path)[QUESTIONS[0]]) == 50


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_file_with_anything_but_a_stores_tables_is_refused(tmp_path, hostile):
    path = tmp_path / "rows.sqlite"
    fill(path, 5)
    database = sqlite3.connect(path)
    database.execute(hostile)
    database.commit()
    database.close()
    with pytest.raises(StoreFailed, match="no run of caploc writes"):
        Store(path)
    with pytest.raises(StoreFailed, match="no run of caploc writes"), reading(path):
        pass
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT count(*) FROM rows").fetchone() == (10,)


def test_a_database_of_something_else_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "rows.sqlite"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE bookmarks (url TEXT)")
    database.commit()
    database.close()
    with pytest.raises(StoreFailed, match="'bookmarks' that no run of caploc writes"):
        Store(path)


@pytest.mark.parametrize("version", [SCHEMA + 1, -1])
def test_a_later_schema_is_refused_in_a_sentence(tmp_path, version):
    path = tmp_path / "rows.sqlite"
    fill(path, 5)
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA user_version={version}")
    with pytest.raises(StoreFailed, match=rf"later version of caploc \(schema {version}"):
        Store(path)


@pytest.mark.parametrize("bad", ["[" * 100_000, "9" * 5000, "nul", '{"a": '])
def test_an_item_that_is_no_json_is_a_sentence_that_says_what_to_do(tmp_path, bad):
    path = tmp_path / "rows.sqlite"
    fill(path, 5)
    with Store(path) as store:
        question = store.question_id(QUESTIONS[0])
        store.database.execute("UPDATE rows SET item = ? WHERE number = 3", (bad,))
        store.database.commit()
        with pytest.raises(StoreFailed, match="damaged.*caploc doctor .* --repair.*same command"):
            store.load(question)


def test_a_value_beyond_reason_is_not_read(tmp_path, monkeypatch):
    path = tmp_path / "rows.sqlite"
    fill(path, 5)
    database = sqlite3.connect(path)
    database.execute("UPDATE rows SET responses = zeroblob(3000000) WHERE number = 3")
    database.commit()
    database.close()
    monkeypatch.setattr(pages, "LONGEST", 2**20)
    with Store(path) as store, pytest.raises(StoreFailed, match="too big"):
        store.load(store.question_id(QUESTIONS[0]))
