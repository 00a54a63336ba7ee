"""Ways to make a sound run folder a hostile one: for the attack suite and the fuzzer.

A `Hostile` spoils one file of a folder. `victim` is a folder outside, which nothing may touch.
"""

import json
import os
import socket
import sqlite3
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

PRECIOUS = "precious"  # a file of the victim's
JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
SIDECARS = ("rows.sqlite-journal", "rows.sqlite-wal", "rows.sqlite-shm")
FILES = (
    "run.json", "result.json", "answers.json", "curve.json", "universal.json", "interactions.json",
    "studies.json", "compare.json", "report.html", "figures", "figures/effects.png",
    "run.json.part", "result.json.part", "curve.json.part", "report.html.part",
    "rows.sqlite", *SIDECARS, "rows.sqlite.part", "rows.sqlite.part-journal",
    "rows.sqlite.damaged", ".lock",
)  # fmt: skip
Hostile = Callable[[Path, Path], None]
KINDS: dict[str, Hostile] = {}
DATABASES: dict[str, Hostile] = {}
CONTENTS: dict[str, Any] = {}


def kind(spoil: Hostile) -> Hostile:
    """Enter a way to replace any file."""
    KINDS[spoil.__name__] = spoil
    return spoil


def database(spoil: Hostile) -> Hostile:
    """Enter a way to spoil the database or what SQLite keeps beside it."""
    DATABASES[spoil.__name__] = spoil
    return spoil


def make_victim(folder: Path) -> Path:
    """A folder with files that somebody needs."""
    (folder / "sub").mkdir(parents=True)
    (folder / PRECIOUS).write_text("precious\n")
    (folder / "sub" / PRECIOUS).write_text("precious\n")
    return folder


def snapshot(folder: Path) -> dict[str, tuple[Any, ...]]:
    """Everything below a folder, as it is: kind, rights, times and content."""
    found = {}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            status = path.lstat()
            content = path.read_bytes() if path.is_file() else None
            changed = status.st_mtime_ns if name in files else 0
            found[str(path)] = (status.st_mode, changed, status.st_nlink if content else 0, content)
    return found


def remove(path: Path) -> None:
    """Take away a file or a folder of files; its parents exist afterwards."""
    if path.is_dir() and not path.is_symlink():
        for each in path.iterdir():
            remove(each)
        path.rmdir()
    path.unlink(missing_ok=True)
    if not path.parent.is_dir():
        path.parent.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)


@kind
def link_to_a_file(path: Path, victim: Path) -> None:
    remove(path)
    path.symlink_to(victim / PRECIOUS)


@kind
def link_to_no_file(path: Path, victim: Path) -> None:
    remove(path)
    path.symlink_to(victim / "new")


@kind
def link_to_a_folder(path: Path, victim: Path) -> None:
    remove(path)
    path.symlink_to(victim, target_is_directory=True)


@kind
def link_to_endless_zeros(path: Path, victim: Path) -> None:
    remove(path)
    path.symlink_to("/dev/zero")


@kind
def link_to_itself(path: Path, victim: Path) -> None:
    remove(path)
    path.symlink_to(path.name)


@kind
def pipe(path: Path, victim: Path) -> None:
    remove(path)
    os.mkfifo(path)


@kind
def listening_socket(path: Path, victim: Path) -> None:
    remove(path)
    here = os.getcwd()
    os.chdir(path.parent)  # names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


@kind
def device(path: Path, victim: Path) -> None:
    remove(path)
    try:
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))
    except OSError:  # only root may make one
        os.mkfifo(path)


@kind
def folder_in_its_place(path: Path, victim: Path) -> None:
    remove(path)
    (path / "in").mkdir(parents=True)


@kind
def terabyte_of_holes(path: Path, victim: Path) -> None:
    remove(path)
    path.touch()
    os.truncate(path, 2**40)


@kind
def nothing(path: Path, victim: Path) -> None:
    remove(path)
    path.touch()


@kind
def noise(path: Path, victim: Path) -> None:
    remove(path)
    path.write_bytes(bytes(range(256)) * 300)


@kind
def cut_in_half(path: Path, victim: Path) -> None:
    small = path.is_file() and path.stat().st_size < 2**24
    content = path.read_bytes() if small else b'{"schema": 1, "stu'
    remove(path)
    path.write_bytes(content[: len(content) // 2])


def pages_of(path: Path) -> tuple[bytearray, int]:
    """A database's bytes and the size of its pages."""
    raw = bytearray(path.read_bytes())
    return raw, struct.unpack(">H", raw[16:18])[0]


def journal_header(pages: int, size: int, records: int = 0) -> bytes:
    """The first sector of a rollback journal that is due to be played back."""
    return (JOURNAL_MAGIC + struct.pack(">IIIII", records, 0, pages, 512, size)).ljust(512, b"\0")


def name_super_journal(path: Path, victim: Path, header: int) -> None:
    """Make SQLite delete the victim's file when it opens the database."""
    raw, size = pages_of(path)
    raw[18] = raw[19] = header
    path.write_bytes(raw)
    name = str(victim / PRECIOUS).encode()
    tail = struct.pack(">I", 0x40000000 // size + 1) + name
    tail += struct.pack(">II", len(name), sum(name)) + JOURNAL_MAGIC
    place = path.with_name(f"{path.name}-journal")
    remove(place)
    place.write_bytes(journal_header(len(raw) // size, size) + tail)


@database
def journal_that_deletes(path: Path, victim: Path) -> None:
    name_super_journal(path, victim, 1)


@database
def journal_that_deletes_beside_a_log(path: Path, victim: Path) -> None:
    name_super_journal(path, victim, 2)


@database
def journal_that_makes_the_file_huge(path: Path, victim: Path) -> None:
    raw, size = pages_of(path)
    path.with_name(f"{path.name}-journal").write_bytes(journal_header(2**31, size))


@database
def journal_of_other_pages(path: Path, victim: Path) -> None:
    path.with_name(f"{path.name}-journal").write_bytes(journal_header(1, 512))


def log_of_holes(path: Path) -> None:
    """Leave a log of zero salts, which every hole of it bears; too long to be spoilt again."""
    changed_in_log(path, "UPDATE questions SET question = question || ' '")
    log = path.with_name(f"{path.name}-wal")
    raw = bytearray(log.read_bytes()[:32])
    raw[16:24] = bytes(8)
    reseal(raw)
    log.write_bytes(raw)
    os.truncate(log, 2**30)


@database
def journal_that_puts_back_another_schema(path: Path, victim: Path) -> None:
    raw, size = pages_of(path)
    page = bytes(raw[:size]).replace(b"questions", b"questionz")
    total = sum(page[place] for place in range(size - 200, 0, -200)) & 0xFFFFFFFF
    record = struct.pack(">I", 1) + page + struct.pack(">I", total)
    content = journal_header(len(raw) // size, size, 1) + record
    path.with_name(f"{path.name}-journal").write_bytes(content)


def changed_in_log(path: Path, *statements: str) -> None:
    """Have SQLite itself write a change into a log, and leave it there as a killed process does."""
    open_one = sqlite3.connect(path, isolation_level=None)
    open_one.execute("PRAGMA journal_mode=WAL")
    open_one.execute("PRAGMA wal_autocheckpoint=0")
    for statement in statements:
        open_one.execute(statement)
    log = path.with_name(f"{path.name}-wal")
    kept = path.read_bytes(), log.read_bytes()
    open_one.close()
    path.write_bytes(kept[0])
    log.write_bytes(kept[1])


@database
def log_with_a_trigger(path: Path, victim: Path) -> None:
    changed_in_log(path, "CREATE TRIGGER t AFTER INSERT ON rows BEGIN DELETE FROM rows; END")


@database
def log_with_other_rows(path: Path, victim: Path) -> None:
    changed_in_log(path, "UPDATE rows SET outcome = 0.25")


@database
def log_that_makes_the_file_huge(path: Path, victim: Path) -> None:
    changed_in_log(path, "UPDATE questions SET question = question || ' '")
    log = path.with_name(f"{path.name}-wal")
    raw = bytearray(log.read_bytes())
    struct.pack_into(">II", raw, 32, 2**31, 2**31)
    reseal(raw)
    log.write_bytes(raw)


@database
def log_of_other_pages(path: Path, victim: Path) -> None:
    changed_in_log(path, "UPDATE questions SET question = question || ' '")
    log = path.with_name(f"{path.name}-wal")
    raw = bytearray(log.read_bytes())
    struct.pack_into(">I", raw, 8, 512)
    reseal(raw)
    log.write_bytes(raw)


def reseal(raw: bytearray) -> None:
    """Put right the checksums of a log: header and frames."""
    order = "<" if raw[3] == 0x82 else ">"
    (size,) = struct.unpack_from(">I", raw, 8)

    def summed(content: bytes, one: int = 0, other: int = 0) -> tuple[int, int]:
        words = struct.unpack(f"{order}{len(content) // 4}I", content)
        for first, second in zip(words[::2], words[1::2], strict=True):
            one = (one + first + other) & 0xFFFFFFFF
            other = (other + second + one) & 0xFFFFFFFF
        return one, other

    sums = summed(bytes(raw[:24]))
    struct.pack_into(">II", raw, 24, *sums)
    for place in range(32, len(raw) - 24 - size + 1, 24 + size):
        sums = summed(bytes(raw[place : place + 8]), *sums)
        sums = summed(bytes(raw[place + 24 : place + 24 + size]), *sums)
        struct.pack_into(">II", raw, place + 16, *sums)


STATEMENTS = {
    "trigger": "CREATE TRIGGER t AFTER INSERT ON rows BEGIN DELETE FROM rows; END",
    "view": "CREATE VIEW v AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n)"
    " SELECT x FROM n",
    "virtual_table": "CREATE VIRTUAL TABLE f USING fts5(x)",
    "index_on_an_expression": "CREATE INDEX i ON rows (hex(zeroblob(number)))",
    "generated_column": "ALTER TABLE rows ADD COLUMN b GENERATED ALWAYS AS (hex(zeroblob(99)))",
    "huge_value": "UPDATE rows SET responses = zeroblob(100000000) WHERE number = 1",
    "text_that_is_a_number": "UPDATE rows SET item = 3, responses = 4",
    "no_questions": "DELETE FROM questions",
    "other_application": "PRAGMA user_version=2147483647",
}


def stated(statement: str) -> Hostile:
    """Have SQLite execute a statement in the database."""

    def spoil(path: Path, victim: Path) -> None:
        with suppress(sqlite3.Error):
            opened = sqlite3.connect(path, isolation_level=None)
            try:
                opened.execute(statement)
            finally:
                opened.close()

    return spoil


for name, statement in STATEMENTS.items():
    DATABASES[name] = stated(statement)


@database
def column_hidden_by_a_comment_in_quotes(path: Path, victim: Path) -> None:
    opened = sqlite3.connect(path, isolation_level=None)
    opened.execute("PRAGMA writable_schema=ON")
    opened.execute(
        "UPDATE sqlite_schema SET sql = replace(sql, 'seal BLOB', "
        "'\"--\" GENERATED ALWAYS AS (hex(zeroblob(9))),\n seal BLOB') WHERE name = 'rows'"
    )
    opened.close()


@database
def header_that_is_neither(path: Path, victim: Path) -> None:
    raw, _ = pages_of(path)
    raw[18] = raw[19] = 9
    path.write_bytes(raw)


@database
def links_of_all_companions(path: Path, victim: Path) -> None:
    for name in SIDECARS:
        remove(path.with_name(name))
        path.with_name(name).symlink_to(victim / PRECIOUS)


@database
def second_name(path: Path, victim: Path) -> None:
    os.link(path, path.with_name("another.sqlite"))


CONTENTS |= {
    "thousands of tasks": ("run.json", ("study", "other_tasks"), ["demo/addition"] * 5000),
    "a task of endless zeros": ("run.json", ("study", "task"), "/dev/zero"),
    "a model of endless zeros": ("run.json", ("study", "model", "name"), "/dev/zero"),
    "a model's code": ("run.json", ("study", "model", "trust_remote_code"), True),
    "programs": ("run.json", ("study", "options", "allow_code"), True),
    "data of endless zeros": ("run.json", ("study", "options", "data"), {"test": "/dev/zero"}),
    "masks without end": ("run.json", ("study", "settings", "masks"), 10**12),
    "controls without end": ("run.json", ("study", "controls"), 10**12),
    "examples without end": ("run.json", ("study", "examples"), 10**12),
    "a seed without end": ("run.json", ("study", "settings", "seed"), 10**400),
    "counts without end": ("run.json", ("study", "settings", "mask_counts"), [1] * 10**6),
    "a tracker": ("run.json", ("study", "track"), "wandb"),
    "workers": ("run.json", ("study", "model", "workers"), {"count": 10**9}),
    "a study that is none": ("run.json", ("study",), []),
    "a kind of study": ("run.json", ("study", "kind"), "neurons"),
    "a grid without end": ("result.json", ("grid", "heads"), [10**6, 10**6]),
    "a grid of nothing": ("result.json", ("grid",), {"layers": 0, "heads": []}),
    "heads that are none": ("result.json", ("top",), ["L9999H9999"]),
    "a name that leads out": ("result.json", ("task", "name"), "../../victim/precious"),
    "a model that is no text": ("result.json", ("model", "fingerprint"), "\x1b[2J\n<script>"),
    "a group without end": ("result.json", ("search",), {"group": 10**300}),
    "rows without end": ("result.json", ("cost", "rows"), 2**62),
}


def put(folder: Path, file: str, path: tuple[str, ...], value: Any) -> None:
    """Put a value into a JSON file of a folder."""
    content = json.loads((folder / file).read_text())
    *parents, last = path
    inner = content
    for key in parents:
        inner = inner[key]
    inner[last] = value
    (folder / file).write_text(json.dumps(content))
