"""Run folders that somebody else made: nothing outside of them changes, no code of theirs runs."""

import ast
from pathlib import Path
from struct import pack

import pytest

import caploc
from caploc.errors import StoreFailed
from caploc.store import Question, Row, Store, reading

QUESTION = Question("print", "float32", "task", "1", "metric")
ROW = Row(b"\x80", "e0", 0, 1.0, 1.0, "[]", 5.0, 6, 0.1)
SECTOR, LOCK_BYTE = 512, 2**30
# As https://www.sqlite.org/fileformat2.html#the_rollback_journal has it.
MAGIC = bytes.fromhex("d9d505f920a163d7")


def plant_journal(rows: Path, victim: Path) -> None:
    """Put a rollback journal beside a store, which names a file for SQLite to delete."""
    content, name = bytearray(rows.read_bytes()), str(victim).encode()
    page = int.from_bytes(content[16:18], "big")
    content[18:20] = b"\1\1"  # no longer in WAL
    rows.write_bytes(content)
    header = MAGIC + pack(">5I", 0, 0, len(content) // page, SECTOR, page)
    ending = pack(">I", LOCK_BYTE // page + 1) + name + pack(">2I", len(name), sum(name)) + MAGIC
    rows.with_name("rows.sqlite-journal").write_bytes(header.ljust(SECTOR, b"\0") + ending)


@pytest.fixture
def rows(tmp_path):
    """The rows of a run, and a file outside of it that they are to delete."""
    path = tmp_path / "run" / "rows.sqlite"
    with Store(path) as store:
        store.add(store.question_id(QUESTION), [ROW])
    (tmp_path / "victim").write_text("mine")
    plant_journal(path, tmp_path / "victim")
    return path


def test_the_journal_would_delete_the_file(rows, tmp_path):
    """Whoever opens the rows without a second thought loses it."""
    import sqlite3

    database = sqlite3.connect(rows)
    assert database.execute("SELECT count(*) FROM rows").fetchone() == (1,)
    database.close()
    assert not (tmp_path / "victim").exists()


def test_reading_rows_plays_no_journal_back(rows, tmp_path):
    with reading(rows) as database:
        assert database.execute("SELECT count(*) FROM rows").fetchone() == (1,)
    rows.with_name("rows.sqlite-wal").write_bytes(bytes(4096))  # as a run leaves that was killed
    with pytest.raises(StoreFailed, match="cannot be written or read"), reading(rows):
        pass
    assert (tmp_path / "victim").read_text() == "mine"


def test_rows_with_a_journal_are_not_written(rows, tmp_path):
    with pytest.raises(StoreFailed, match="rows.sqlite-journal is no file of caploc's"):
        Store(rows)
    assert (tmp_path / "victim").read_text() == "mine"


def test_nothing_but_the_store_opens_a_database():
    """Else the tests above would say nothing of it."""
    package = Path(caploc.__file__).parent
    opening = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "sqlite3.connect"
    }
    assert opening == {"store/__init__.py"}
