"""What this machine can do, what a model looks like, whether a run folder is sound."""

import os
import platform
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import torch

from caploc.contents import read_contents
from caploc.declaration import ModelOptions
from caploc.errors import CaplocError, StoreFailed, UserError
from caploc.folder import CURVE, ROWS, RUN, STUDIES, package_versions, rows_file
from caploc.store import reading

__all__ = ["Examined", "examine_folder", "machine_facts", "model_facts"]

GIB = 2**30
SHOWN = 5  # complaints of SQLite's own that are repeated


def machine_facts() -> dict[str, Any]:
    """Versions, devices and memory, and behind which walls programs are run."""
    from caploc.sandbox import describe_isolation

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
        "model-written code": describe_isolation(),
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
        "not covered": ", ".join(loaded.uncovered)
        or "nothing that carries anything between tokens",
    }


@dataclass
class Examined:
    """What lies in the folder of a run, or of several studies. `faults` say what is wrong."""

    folder: Path
    runs: int = 0
    finished: int = 0
    questions: int = 0
    rows: int = 0
    unscored: int = 0  # rows without an outcome, which is no fault
    faults: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """Say in a sentence: sound, unfinished or damaged, and what to do."""
        again = f"run the same command again (`command` in {RUN})"
        if self.faults:
            return f"Damaged: delete the file in question, then {again}; the FAQ says more."
        if self.finished < self.runs:
            return f"Sound, not finished: {again}; no stored row is asked twice."
        return "Sound."

    def facts(self) -> dict[str, Any]:
        """What a table shows."""
        return {
            "folder": str(self.folder),
            "verdict": self.verdict,
            "runs": self.runs,
            "finished": self.finished,
            "questions": self.questions,
            "rows": self.rows,
            "rows without an outcome": self.unscored,
            "faults": self.faults,
        }


def examine_folder(folder: Path) -> Examined:
    """Read every file of a run's folder, or of a folder of studies; nothing is changed.

    Raises UserError if there is no run in the folder.
    """
    path = rows_file(folder)
    if not path.is_file():
        raise UserError(f"{folder} holds no {ROWS}; name the folder of a run.")
    found, runs = Examined(folder), [folder]
    if (folder / STUDIES).is_file():
        read_files(folder, {STUDIES}, found)
        runs = sorted(each.parent for each in folder.glob(f"*/{RUN}"))
    for run in runs:
        names = {each.name for each in run.glob("*.json")}
        read_files(run, names | {RUN}, found)
        found.finished += bool(names - {RUN, CURVE})  # a curve is written before the result
    found.runs = len(runs)
    try:
        count_rows(path, found)
    except StoreFailed as error:
        found.faults.append(str(error))
    return found


def read_files(folder: Path, names: set[str], found: Examined) -> None:
    """Read a folder's JSON files, and note those that are not what a run writes."""
    for name in sorted(names):
        try:
            read_contents(folder / name)
        except CaplocError as error:
            found.faults.append(str(error))


def count_rows(path: Path, found: Examined) -> None:
    """Have SQLite check every page of the rows, and count them; raises StoreFailed."""
    with reading(path) as database:
        said = [line for (line,) in database.execute(f"PRAGMA integrity_check({SHOWN})")]
        found.faults += [f"{path}: {line}" for line in said if line != "ok"]
        (found.questions,) = database.execute("SELECT count(*) FROM questions").fetchone()
        counting = "SELECT count(*), count(*) - count(outcome) FROM rows"
        found.rows, found.unscored = database.execute(counting).fetchone()
