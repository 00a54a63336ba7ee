"""What this machine can do, what a model looks like, whether a run folder is sound.

`examine_folder` says of a folder what is wrong with it, and `repair` mends what can be.
"""

import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import torch
from filelock import FileLock, Timeout

from caploc.contents import FORMS, RunFile, check_contents
from caploc.doctor.replay import (
    NotRecomputed,
    RowsMissing,
    find_disparities,
    first_differences,
    recompute,
)
from caploc.errors import UserError
from caploc.files import is_regular
from caploc.finished import restored
from caploc.folder import (
    ANSWERS,
    CURVE,
    JSON_FILES,
    RESULT,
    ROWS,
    RUN,
    STUDIES,
    package_versions,
    read_json,
    refuse_links,
    rows_file,
    write_json,
)
from caploc.result import SCHEMA as LATEST
from caploc.result import Result
from caploc.sandbox import protection
from caploc.store import SCHEMA, folder_lock
from caploc.store.pages import LOG, companion_file
from caploc.store.repair import Checked, Salvaged, check_store, salvage, spare
from caploc.workbench import ModelOptions

__all__ = ["Examined", "examine_folder", "machine_facts", "model_facts", "repair"]

GIB = 2**30


def machine_facts() -> dict[str, Any]:
    """Versions, devices and memory."""
    cuda = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "python": platform.python_version(),
        **package_versions(),
        "cores": os.cpu_count(),
        "torch threads": torch.get_num_threads(),
        "memory free, GiB": round(psutil.virtual_memory().available / GIB, 1),
        "CUDA devices": ", ".join(cuda) or "none",
        "MPS": torch.backends.mps.is_available(),
        "Ray": "installed" if find_spec("ray") else "not installed",
        "model-written code": protection().statement,
    }


def model_facts(options: ModelOptions) -> dict[str, Any]:
    """Load and prove a model, and say what its grid is; raises UserError if it cannot."""
    options.check()
    loaded = options.engine().loaded
    grid = loaded.grid
    counts = sorted(set(grid.heads_per_layer))
    groups = sorted(set(grid.group_sizes)) or [1]
    return {
        "name": loaded.name,
        "fingerprint": loaded.fingerprint,
        "architecture": type(loaded.model).__name__,
        "parameters": loaded.model.num_parameters(),
        "dtype": loaded.dtype,
        "device": str(loaded.device),
        "layers": grid.layers,
        "heads a layer": counts[0] if len(counts) == 1 else list(grid.heads_per_layer),
        "heads": grid.size,
        "query heads a key-value head": groups[0] if len(groups) == 1 else groups,
        "proof": "passed: an empty mask is bit-identical, a cut equals zeroed weights",
    }


RERUN = "run the same command again (`command` in run.json)"
# Half files that runs leave; whatever else ends in .part is someone else's.
PART = re.compile(
    rf"(?:{'|'.join(map(re.escape, JSON_FILES))}|{re.escape(ROWS)}(?:\.schema\d+)?)\.part"
)
SCORES, SCORES_PART = "scores", re.compile(r"[0-9a-f]{32}(?:\.npz)?\.part")  # of runs over neurons


@dataclass
class Examined:
    """What lies in a folder. `faults` are what is wrong, `notes` what is worth knowing."""

    folder: Path
    rows_file: Path
    rows: Checked = field(default_factory=Checked)
    runs: int = 0
    finished: int = 0
    unchecked: list[str] = field(default_factory=list)  # what was not computed again, and why
    missing: int = 0  # rows that a result counts and the store has not, at least
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unreadable: list[Path] = field(default_factory=list)  # JSON files that --repair sets aside
    later: list[Path] = field(default_factory=list)  # JSON files of a later version of caploc
    nameless: list[Path] = field(default_factory=list)  # runs without run.json
    places: list[Path] = field(default_factory=list)  # folders that were looked at
    parts: list[Path] = field(default_factory=list)  # files half written

    @property
    def sound(self) -> bool:
        return self.rows.sound and not self.faults

    @property
    def verdict(self) -> str:
        """Say in a sentence: sound, unfinished or damaged, and what to do."""
        if not self.sound:
            return self.advice
        if self.missing:
            return (
                f"Sound, but {self.missing:,} rows or more that a result counts are gone. The "
                f"result stands; to have them again delete {RESULT} and {RERUN}."
            )
        if self.finished < self.runs:
            return f"Sound, not finished: {RERUN}; no stored row is asked twice."
        if self.unchecked:
            names = "; ".join(self.unchecked)
            return f"Sound as far as it was checked; not computed again from the rows: {names}."
        return "Sound."

    @property
    def advice(self) -> str:
        """Return what to do about a folder that is not sound; what --repair can comes first."""
        if self.rows.salvageable or self.unreadable:
            return (
                f"Damaged: `caploc doctor {self.folder} --repair` saves every sound row and keeps "
                f"what is damaged aside; then {RERUN}."
            )
        if self.later:
            return (
                f"Damaged, or of a later version of caploc: {self.later[0]} needs the version that "
                "wrote it, and --repair leaves it as it is."
            )
        if self.nameless:
            return (
                f"Damaged: {self.nameless[0] / RUN} is missing; run the command that made the "
                "folder again, which writes it anew and asks no stored row twice."
            )
        return (
            f"Damaged: what some rows answer is lost; {RERUN}, which finds it again (`caploc run` "
            f"leaves a finished study as it is: delete its {RESULT} first)."
        )

    def facts(self) -> dict[str, Any]:
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
            "faults": [f"{count:,} x {what}" for what, count in rows.faults.items()] + self.faults,
            "not computed again": self.unchecked,
            "notes": self.notes,
        }


def examine_folder(folder: Path) -> Examined:
    """Look at a run folder, or at a folder of studies; nothing is changed.

    Raises UserError if there is no run in the folder; StoreFailed if its rows are of a later
    schema, or no store at all.
    """
    found = Examined(folder, rows_file(folder))
    kept = [found.rows_file, companion_file(found.rows_file, LOG)]
    if not folder.is_dir() or not any(map(os.path.lexists, kept)):
        raise UserError(f"{folder} holds no {ROWS}; name the folder of a run.")
    runs = run_folders(folder)
    if (folder / STUDIES).is_file():
        marked = read_json_files(folder, found).get(STUDIES)
        names = set() if marked is None else set(marked.studies)
        found.runs = len(names - {run.name for run in runs})  # not begun
    found.runs += len(runs)
    examined = [(run, *examine_run(run, found)) for run in runs]
    results = [result for _, _, result in examined if result is not None]
    prints = [(result.model.fingerprint, sum(result.grid.heads)) for result in results]
    heads = {fingerprint: count for fingerprint, count in prints if fingerprint is not None}
    found.rows = check_store(found.rows_file, heads)
    found.missing = max([0, *((r.cost.rows or 0) - found.rows.rows for r in results)])
    if found.rows.sound:
        for run, written, result in examined:
            if written is not None and result is not None:
                compare_with_rows(run, written, result, found)
    found.notes += remarks(found)
    return found


def run_folders(folder: Path) -> list[Path]:
    """Return the runs of a folder: itself, or those below a folder of studies."""
    if not (folder / STUDIES).is_file():
        return [folder]
    return sorted({path.parent for name in (RUN, RESULT) for path in folder.glob(f"*/{name}")})


def examine_run(folder: Path, found: Examined) -> tuple[RunFile | None, Result | None]:
    """Read a run's files; return `run.json` and `result.json` if sound.

    `run.json` is None where it is no search for heads, or either file is missing or unsound.
    """
    contents = read_json_files(folder, found)
    if RUN not in contents:
        found.faults.append(f"{folder / RUN} is missing, which says what the run is")
        found.nameless.append(folder)
    written, content = contents.get(RUN), contents.get(RESULT)
    findings = [name for name in contents if name not in (RUN, STUDIES)]
    # a curve is written before the result whose heads it is about
    found.finished += any(contents[name] is not None for name in findings if name != CURVE)
    # of a search for heads; what neurons or other commands leave is not computed again
    searched = written and "kind" not in written.study and "settings" in written.study
    own = (RESULT, ANSWERS, CURVE) if searched else ()
    found.unchecked += [
        str(folder / name) for name in findings if name not in own and contents[name] is not None
    ]
    if written is None or content is None:
        return None, None
    result, wrong = check_contents(RESULT, content)
    assert result is None or isinstance(result, Result)
    if not own:
        return None, result
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != LATEST:
        wrong = [f"schema {schema!r}, not {LATEST}"]
    elif result is not None:
        wrong = list(disagreements(written.study, result))
    if spoilt(folder / RESULT, content, [f": {what}" for what in wrong], found):
        return None, result
    return written, result


def compare_with_rows(folder: Path, written: RunFile, result: Result, found: Examined) -> None:
    """Note where a result, or the answers beside it, are not what the rows give."""
    try:
        curved = is_regular(folder / CURVE) and folder / CURVE not in found.unreadable
        again = recompute(found.rows_file, written, result, curved=curved)
    except RowsMissing as error:
        if not found.missing:  # the verdict tells of those
            spoilt(folder / RESULT, result, [f": {error}"], found)
        return
    except NotRecomputed as error:
        found.unchecked.append(f"{folder / RESULT} ({error})")
        found.unchecked += [str(folder / CURVE)] if curved else []
        return
    for name in (RESULT, ANSWERS, CURVE):
        if not is_regular(folder / name) or folder / name in found.unreadable:
            continue
        there, here = read_json(folder / name), again.get(name)
        if name == CURVE and not same_curve(there, here):  # `caploc curve` has drawn another one
            found.unchecked.append(str(folder / name))
            continue
        wrong = [f": {what}" for what in first_differences(find_disparities(there, here))]
        spoilt(folder / name, there, wrong, found)


def same_curve(there: dict[str, Any], here: dict[str, Any] | None) -> bool:
    """Tell whether two curves are of the same heads, on as many examples of the same tasks."""
    if here is None or there["heads"] != here["heads"]:
        return False
    there, here = (
        {name: [point["examples"] for point in points] for name, points in each["curves"].items()}
        for each in (there, here)
    )
    return there == here


def read_json_files(folder: Path, found: Examined) -> dict[str, Any]:
    """Read the JSON files of a folder by name; one that is not what it should be is None, a fault.

    Of a result this is only what was read: what it must be is in `run.json`.
    """
    found.places.append(folder)
    contents = {path.name: readable(path, found) for path in sorted(folder.glob("*.json"))}
    for name in sorted(contents.keys() & FORMS.keys() - {RESULT}):
        if contents[name] is not None:
            content, wrong = check_contents(name, contents[name])
            spoilt(folder / name, contents[name], [f" {what}" for what in wrong], found)
            contents[name] = content
    return contents


def spoilt(path: Path, content: Any, wrong: list[str], found: Examined) -> bool:
    """Note what is wrong with a file, if anything; one of a later version is not set aside."""
    if wrong:
        schema = content.get("schema") if isinstance(content, dict) else None
        later = isinstance(schema, int) and schema > LATEST
        (found.later if later else found.unreadable).append(path)
        found.faults += [f"{path}{what}" for what in wrong]
    return bool(wrong)


def readable(path: Path, found: Examined) -> Any:
    """Return the content of a file; None, and a fault, if it cannot be read."""
    try:
        content, why = read_json(path), "it holds nothing but null"
    except UserError as error:
        content, why = None, str(error.__cause__)
    if content is None:
        found.faults.append(f"{path} cannot be read ({why})")
        found.unreadable.append(path)
    return content


def disagreements(study: dict[str, Any], result: Result) -> Iterator[str]:
    """Yield where a result is not that of the study beside it."""
    try:
        asked = restored(study)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        yield f"it or run.json lacks {error}, or was written by another version of caploc"
        return
    pairs = {
        "task": (result.task.name, asked.task),
        "method": (result.method.name, asked.method),
        "model": (result.model.name, asked.model.name),
        "seed": (result.seed, asked.settings.seed),
    }
    for name, (there, here) in pairs.items():
        if there != here:
            yield f"{name} {there!r}, and run.json says {here!r}"


def remarks(found: Examined) -> Iterator[str]:
    """Yield what is worth knowing and no fault."""
    place = found.rows_file.parent
    if place not in (found.folder, found.folder.absolute()):
        yield f"its rows lie in {found.rows_file}, shared with the studies beside it"
    if busy(place):
        yield "a caploc process is running in it: what is half written is its own"
    if found.rows.schema is not None and found.rows.schema < SCHEMA:
        yield f"rows of schema {found.rows.schema}; the next run brings them to {SCHEMA}"
    log = place / f"{ROWS}-wal"
    if is_regular(log) and log.stat().st_size and not busy(place):
        yield (
            f"{log.name} ({log.stat().st_size:,} bytes) of a run that was killed; keep it, the "
            "next run folds it in"
        )
    found.parts = sorted(half_files(found.places))
    for path in found.parts:
        yield f"{path} was not finished; the same command writes it again"
    kept = [place.glob(pattern) for pattern in (f"{ROWS}.damaged*", f"{ROWS}.schema*")]
    kept += [each.glob("*.json.damaged*") for each in dict.fromkeys([place, *found.places])]
    for path in sorted({path for paths in kept for path in paths} - set(found.parts)):
        yield f"{path.name} is a copy kept aside; delete it when all is well"


def half_files(places: list[Path]) -> Iterator[Path]:
    """Files that a run was writing when it ended, by the names that runs give them."""
    for place in dict.fromkeys(places):
        for folder, form in ((place, PART), (place / SCORES, SCORES_PART)):
            for path in folder.glob("*.part"):
                if is_regular(path) and form.fullmatch(path.name):
                    yield path


def busy(folder: Path) -> bool:
    """Tell whether a process is running in the folder."""
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

    `studies.json`, without which a folder of studies is none, is written anew from its folders.
    Raises FolderTaken if a process is running in the folder; StoreFailed if the disk does not let
    it.
    """
    for folder, below in ((found.folder, True), (found.rows_file.parent, False)):
        refuse_links(folder, below=below)
    lock = folder_lock(found.rows_file.parent)
    try:
        names = [run.name for run in run_folders(found.folder)]
        for path in found.parts:
            path.unlink(missing_ok=True)
        for path in dict.fromkeys(found.unreadable):
            path.replace(spare(path))
            if path == found.folder / STUDIES:
                write_json(path, {"schema": LATEST, "studies": names})
        return salvage(found.rows_file) if found.rows.salvageable else None
    finally:
        lock.release()
