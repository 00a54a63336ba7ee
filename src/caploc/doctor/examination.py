"""Is a run folder sound, and what to do if not."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from caploc.contents import FORMS, faults
from caploc.errors import UserError
from caploc.findings import SCHEMA as RESULT_SCHEMA
from caploc.finished import restored
from caploc.folder import RESULT, ROWS, RUN, STUDIES, read_json, refuse_links, rows_file
from caploc.store import SCHEMA, folder_lock
from caploc.store.checking import Checked, check
from caploc.store.salvage import Salvaged, salvage

RERUN = "run the same command again (`command` in run.json)"


@dataclass
class Examined:
    """What lies in a folder. `faults` are what is wrong, `notes` what is worth knowing."""

    folder: Path
    rows_file: Path
    rows: Checked = field(default_factory=Checked)
    runs: int = 0
    finished: int = 0
    missing: int = 0  # rows that a result counts and the store has not, at least
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unreadable: list[Path] = field(default_factory=list)  # JSON files that --repair sets aside
    parts: list[Path] = field(default_factory=list)  # files half written

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return self.rows.sound and not self.faults

    @property
    def verdict(self) -> str:
        """One sentence: sound, unfinished or damaged, and what to do."""
        if not self.sound:
            return (
                f"Damaged: `caploc doctor {self.folder} --repair` saves every sound row and keeps "
                f"what is damaged aside; then {RERUN}."
            )
        if self.missing:
            return (
                f"Sound, but {self.missing:,} rows or more that a result counts are gone. The "
                f"result stands; to have them again delete {RESULT} and {RERUN}."
            )
        if self.finished < self.runs:
            return f"Sound, not finished: {RERUN}; no stored row is asked twice."
        return "Sound."

    def facts(self) -> dict[str, Any]:
        """As a table or JSON shows it."""
        rows = self.rows
        return {
            "verdict": self.verdict,
            "rows": rows.rows,
            "rows not scored": rows.unscored,
            "questions": rows.questions,
            "schema": rows.schema,
            "integrity": "ok" if rows.sound else "damaged",
            "runs": self.runs,
            "finished": self.finished,
            "faults": [*(f"{count:,} x {what}" for what, count in rows.faults.items())]
            + self.faults,
            "notes": self.notes,
        }


def examine(folder: Path) -> Examined:
    """Look at a run folder, or at a folder of studies; nothing is changed.

    Raises:
        UserError: if there is no run in the folder.
        StoreFailed: if its rows are of a later schema, or no store at all.
    """
    found = Examined(folder, rows_file(folder))
    if not found.rows_file.is_file():
        raise UserError(f"{folder} holds no {ROWS}; name the folder of a run.")
    heads: dict[str, int] = {}
    wanted: list[int] = []
    for run in run_folders(folder):
        found.runs += 1
        result, finished = examine_run(run, found)
        found.finished += finished
        if result is not None:
            with suppress(KeyError, TypeError, AttributeError):
                heads[result["model"]["fingerprint"]] = sum(result["grid"]["heads"])
                wanted.append(result["cost"]["rows"])
    found.rows = check(found.rows_file, heads)
    found.missing = max([0, *(rows - found.rows.rows for rows in wanted)])
    found.notes += remarks(found)
    return found


def run_folders(folder: Path) -> list[Path]:
    """The runs of a folder: itself, or those below a folder of studies."""
    if not (folder / STUDIES).is_file():
        return [folder]
    return sorted(path.parent for path in folder.glob(f"*/{RUN}"))


def examine_run(folder: Path, found: Examined) -> tuple[dict[str, Any] | None, bool]:
    """Read a run's files; its `result.json` if that is sound, and whether it wrote any findings."""
    contents = {path.name: readable(path, found) for path in sorted(folder.glob("*.json"))}
    for name in contents.keys() & FORMS.keys():
        if contents[name] is not None and name != RESULT:
            found.faults += [f"{folder / name} {what}" for what in faults(name, contents[name])]
    if RUN not in contents:
        found.faults.append(f"{folder / RUN} is missing, which says what the run is")
    written, result = contents.get(RUN), contents.get(RESULT)
    finished = any(contents[name] is not None for name in contents if name not in (RUN, STUDIES))
    if not isinstance(written, dict) or not isinstance(result, dict):
        return None, finished
    study = written.get("study")
    if isinstance(study, dict) and "kind" not in study and "settings" in study:
        wrong = [f"{folder / RESULT}: {what}" for what in disagreements(study, result)]
        found.faults += wrong
        found.unreadable += [folder / RESULT] * bool(wrong)
    return result, finished


def readable(path: Path, found: Examined) -> Any:
    """The content of a file; None, and a fault, if it cannot be read."""
    try:
        return read_json(path)
    except UserError as error:
        found.faults.append(f"{path} cannot be read ({error.__cause__})")
        found.unreadable.append(path)
        return None


def disagreements(study: dict[str, Any], result: dict[str, Any]) -> Iterator[str]:
    """Where a result is not that of the study beside it."""
    if result.get("schema") != RESULT_SCHEMA:
        yield f"schema {result.get('schema')!r}, not {RESULT_SCHEMA}"
        return
    if wrong := next(faults(RESULT, result), None):
        yield wrong
        return
    try:
        asked = restored(study)
        pairs = {
            "task": (result["task"]["name"], asked.task),
            "method": (result["method"]["name"], asked.method),
            "model": (result["model"]["name"], asked.model.name),
            "seed": (result["seed"], asked.settings.seed),
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        yield f"it or run.json lacks {error}, or was written by another version of caploc"
        return
    for name, (there, here) in pairs.items():
        if there != here:
            yield f"{name} {there!r}, and run.json says {here!r}"


def remarks(found: Examined) -> Iterator[str]:
    """What is worth knowing and no fault."""
    place = found.rows_file.parent
    if found.rows_file.parent != found.folder.absolute() and found.rows_file.parent != found.folder:
        yield f"its rows lie in {found.rows_file}, shared with the studies beside it"
    if busy(place):
        yield "a caploc process is running in it: what is half written is its own"
    if found.rows.schema is not None and found.rows.schema < SCHEMA:
        yield f"rows of schema {found.rows.schema}; the next run brings them to {SCHEMA}"
    log = place / f"{ROWS}-wal"
    if log.is_file() and log.stat().st_size and not busy(place):
        yield (
            f"{log.name} ({log.stat().st_size:,} bytes) of a run that was killed; keep it, the "
            "next run folds it in"
        )
    found.parts = sorted(path for path in found.folder.rglob("*.part") if path.is_file())
    for path in found.parts:
        yield f"{path} was not finished; the same command writes it again"
    for pattern in (f"{ROWS}.damaged*", f"{ROWS}.schema*", "*.json.damaged"):
        for path in sorted(place.glob(pattern)):
            yield f"{path.name} is a copy kept aside; delete it when all is well"


def busy(folder: Path) -> bool:
    """Whether a process is running in the folder."""
    lock = FileLock(folder.resolve() / ".lock")
    try:
        with lock.acquire(timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # a folder that cannot be written holds no running process
        return False


def repair(found: Examined) -> Salvaged | None:
    """Put a sound store in a damaged one's place, set unreadable files aside, drop half files.

    Raises:
        FolderTaken: if a process is running in the folder.
        StoreFailed: if the disk does not let it.
    """
    refuse_links(found.folder)
    lock = folder_lock(found.rows_file.parent)
    try:
        for path in found.parts:
            path.unlink(missing_ok=True)
        for path in found.unreadable:
            path.replace(path.with_name(f"{path.name}.damaged"))
        return None if found.rows.sound else salvage(found.rows_file)
    finally:
        lock.release()
