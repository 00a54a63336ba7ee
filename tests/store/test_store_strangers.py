"""What SQLite would act on when it opens a file is looked at first; a killed run loses no row."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest
from filled import alike, fill, held

sys.path.append(str(Path(__file__).parents[1] / "fuzz"))

import hostile_folders as hostile  # noqa: E402

from caploc.cache import Cache  # noqa: E402
from caploc.errors import FolderTaken, StoreFailed, UserError  # noqa: E402
from caploc.files import UnfitFile, open_regular  # noqa: E402
from caploc.folder import claim, read_json, refuse_links, rows_file, write_json  # noqa: E402
from caploc.store import (  # noqa: E402
    Store,
    pages,
    reading,  # noqa: E402
)
from caploc.store.repair import (
    check_store,  # noqa: E402
    salvage,  # noqa: E402
)

REFUSED = {
    "journal_that_deletes": "names another file",
    "journal_that_deletes_beside_a_log": "names another file",
    "journal_that_makes_the_file_huge": "longer than it is",
    "journal_of_other_pages": "pages are of another size",
    "log_that_makes_the_file_huge": "longer than its pages",
    "log_of_other_pages": "pages are of another size",
    "links_of_all_companions": "it is a link",
}


@pytest.fixture
def place(tmp_path):
    """A folder with a store, and what it holds; beside it a victim's folder."""
    (tmp_path / "run").mkdir()
    return tmp_path / "run" / "rows.sqlite", hostile.make_victim(tmp_path / "victim")


def unchanged(path, truth):
    kept = held(path)
    pairs = [(kept[each][key], row) for each, rows in truth.items() for key, row in rows.items()]
    return all(alike(*pair) for pair in pairs)


@pytest.mark.parametrize("name", REFUSED)
def test_a_journal_or_log_that_reaches_beyond_its_file_is_refused(place, name):
    path, victim = place
    truth = fill(path, 20)
    hostile.DATABASES[name](path, victim)
    before = hostile.snapshot(victim)
    with pytest.raises(StoreFailed, match=f"{REFUSED[name]}.*--repair"):
        Store(path)
    with pytest.raises(StoreFailed, match=REFUSED[name]), reading(path):
        pass
    assert any(REFUSED[name] in fault for fault in check_store(path).faults)
    if name != "links_of_all_companions":  # a folder with links is not repaired
        salvage(path)
        assert unchanged(path, truth)
    assert hostile.snapshot(victim) == before


@pytest.mark.parametrize("header", [1, 2])
def test_a_journal_without_another_files_name_is_played_back(place, header):
    """As a run leaves it that is killed on a network's disk, where there is no log."""
    path, _ = place
    truth = fill(path, 20)
    code = (
        "import os, signal, sqlite3, sys\n"
        "database = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "database.execute('PRAGMA journal_mode=DELETE')\n"
        "database.execute('PRAGMA cache_size=1')\n"
        "database.execute('BEGIN')\n"
        "database.execute('UPDATE rows SET responses = zeroblob(3000)')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert path.with_name("rows.sqlite-journal").stat().st_size > 512
    if header == 2:
        shutil.copyfile(path, path.with_name("copy"))
        path.with_name("copy").replace(path)
    assert unchanged(path, truth)


def test_a_run_that_is_killed_loses_no_row_of_its_log(place, tmp_path):
    path, _ = place
    truth = fill(path, 20)
    hostile.changed_in_log(path, "UPDATE questions SET question = question || ' '")
    assert path.with_name("rows.sqlite-wal").stat().st_size > 4096
    assert check_store(path).rows == 40
    assert unchanged(path, truth)


@pytest.mark.parametrize("ending", ["", "-journal", "-wal", "-shm"])
@pytest.mark.parametrize("kind", ["pipe", "link_to_no_file", "folder_in_its_place", "device"])
def test_a_store_opens_regular_files_only(place, ending, kind):
    path, victim = place
    fill(path, 5)
    hostile.KINDS[kind](path.with_name(f"{path.name}{ending}"), victim)
    before = hostile.snapshot(victim)
    for attempt in (lambda: Store(path), lambda: reading(path).__enter__()):
        with pytest.raises(StoreFailed, match="not a file"):
            attempt()
    assert hostile.snapshot(victim) == before


def test_a_log_of_holes_takes_no_memory(place):
    path, _ = place
    fill(path, 5)
    hostile.log_of_holes(path)
    tracemalloc.start()
    before = time.perf_counter()
    pages.check_database(path)
    assert time.perf_counter() - before < 5 and tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_a_store_with_a_second_name_is_not_written(place):
    """Both names would have a log of their own, and one run's rows would be another's."""
    path, _ = place
    fill(path, 5)
    os.link(path, path.with_name("other.sqlite"))
    with pytest.raises(StoreFailed, match="second name"):
        Store(path)
    assert check_store(path).rows == 10


def test_a_column_hidden_behind_a_quoted_comment_is_no_table_of_ours(place):
    path, victim = place
    fill(path, 5)
    hostile.DATABASES["column_hidden_by_a_comment_in_quotes"](path, victim)
    with pytest.raises(StoreFailed, match="no run of caploc writes"):
        Store(path)


def test_the_checksum_of_a_log_is_sqlites(place):
    path, _ = place
    fill(path, 5)
    hostile.changed_in_log(path, "UPDATE questions SET question = question || ' '")
    head = path.with_name("rows.sqlite-wal").read_bytes()[:32]
    assert pages.is_log(head) and not pages.is_log(head[:8] + b"\1" + head[9:])


@pytest.mark.parametrize("name", ["rows.sqlite", ".lock", "rows.sqlite-wal", "studies.json.part"])
def test_links_beside_rows_that_studies_share_are_refused(tmp_path, name):
    """Rows would be added to another run's store, or a file made where nobody asked for one."""
    victim = hostile.make_victim(tmp_path / "victim")
    truth = fill(victim / "rows.sqlite", 5)
    shared = tmp_path / "shared"
    (shared / "one").mkdir(parents=True)
    write_json(shared / "studies.json", {"schema": 1, "studies": ["one"]})
    target = victim / ("rows.sqlite" if name == "rows.sqlite" else "new")
    (shared / name).symlink_to(target)
    before = hostile.snapshot(victim)
    assert rows_file(shared / "one") == shared / "rows.sqlite"
    with pytest.raises(FolderTaken, match=f"{name} is a link"):
        claim(shared / "one", {"task": "x"}, "caploc locate")
    assert hostile.snapshot(victim) == before
    assert unchanged(victim / "rows.sqlite", truth)


@pytest.mark.parametrize("kind", ["pipe", "link_to_endless_zeros", "device", "terabyte_of_holes"])
def test_a_runs_files_are_regular_and_of_bounded_size(tmp_path, kind):
    victim = hostile.make_victim(tmp_path / "victim")
    for name in ("run.json", "ledger.jsonl"):
        hostile.KINDS[kind](tmp_path / name, victim)
    with pytest.raises(UserError, match=r"run.json cannot be read \(it (is|has)"):
        read_json(tmp_path / "run.json")
    with pytest.raises(StoreFailed, match="ledger.jsonl cannot be read"):
        Cache(tmp_path / "ledger.jsonl")
    with pytest.raises(UnfitFile):
        open_regular(tmp_path / "run.json", 10**6)


def test_a_folder_with_a_pipe_in_it_is_not_written_into(tmp_path):
    os.mkfifo(tmp_path / "report.html")
    with pytest.raises(FolderTaken, match="report.html: it is a pipe"):
        refuse_links(tmp_path)


def test_a_link_in_the_place_of_a_half_file_is_replaced_and_not_followed(tmp_path):
    victim = hostile.make_victim(tmp_path / "victim")
    (tmp_path / "run.json.part").symlink_to(victim / hostile.PRECIOUS)
    before = hostile.snapshot(victim)
    write_json(tmp_path / "run.json", {"a": 1})
    assert hostile.snapshot(victim) == before and read_json(tmp_path / "run.json") == {"a": 1}


def test_a_database_of_ours_opens_through_sqlite_as_ever(place):
    path, _ = place
    truth = fill(path, 20)
    with Store(path) as store, reading(path) as (database, _):
        assert store.database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert database.execute("SELECT count(*) FROM rows").fetchone() == (40,)
        with pytest.raises(sqlite3.OperationalError):
            database.execute("ATTACH '/tmp/other.sqlite' AS other")
    assert unchanged(path, truth)


def test_a_question_that_only_the_index_still_has_is_a_sentence(place):
    """Found by fuzzing: a damaged page had lost the question whose number was asked for."""
    path, _ = place
    fill(path, 5)
    with Store(path) as store:
        store.database.execute("DELETE FROM questions WHERE id = 1")
        with pytest.raises(StoreFailed, match="a question is lost.*--repair"):
            store.load(1)
        with pytest.raises(StoreFailed, match="a question is lost.*--repair"):
            store.add(1, [])


def test_holes_of_a_damaged_file_are_not_read(place):
    """Fifteen GiB of them would be read for minutes, or fill a disk in memory."""
    path, _ = place
    truth = fill(path, 20)
    os.truncate(path, 15 * 2**30)
    with path.open("r+b") as file:
        file.write(b"\0" * 100)
    started = time.process_time()
    assert salvage(path).rows == 40 and unchanged(path, truth)
    assert time.process_time() - started < 5
