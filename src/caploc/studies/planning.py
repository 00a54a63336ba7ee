"""What the studies of a file will take: rows, tokens, memory, time."""

import gc
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from caploc.errors import CaplocError
from caploc.folder import ROWS
from caploc.progress import Progress, Silent
from caploc.studies.calibration import Pace, measure_pace, watching
from caploc.studies.reckoning import Reckoned, Shelf, reckon
from caploc.studies.running import finished
from caploc.study import Study
from caploc.tasks.task import Task
from caploc.workbench import Absent, ModelOptions, Unloaded

SECONDS = 4.0  # of measuring, for each task of a study


@dataclass(frozen=True)
class Planned:
    """What a study will take, at most. What was not measured is None.

    `rows` are to be measured; `stored` ones lie in the store, and `shared` ones are measured by
    studies before this one. `tokens` are in passes through all layers; `memory` is in bytes, of the
    process, or of a CUDA device beside it; `seconds` leave out loading and the report. `failure`
    says why the study cannot be.
    """

    study: str
    model: str
    task: str
    method: str
    rows: int = 0
    stored: int = 0
    shared: int = 0
    tokens: float | None = None
    memory: int | None = None
    seconds: float | None = None
    measured_on: int = 0  # rows of the calibration
    finished: bool = False
    failure: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


@dataclass(frozen=True)
class StudiesPlan:
    """What all studies will take. `loading` is seconds for all models; None without calibration."""

    studies: list[Planned]
    loading: float | None

    def total(self) -> dict[str, Any]:
        """Sums over studies; of memory the largest. None where a study has none."""
        open_studies = [study for study in self.studies if not study.finished]
        known = [study for study in open_studies if study.failure is None]
        counts = {name: sum(getattr(s, name) for s in self.studies) for name in ("rows", "stored")}
        counts["shared"] = sum(study.shared for study in self.studies)
        sums: dict[str, Any] = {}
        for name in ("tokens", "seconds"):
            values = [getattr(study, name) for study in known]
            sums[name] = None if None in values or self.loading is None else sum(values)
        if sums["seconds"] is not None:
            sums["seconds"] += self.loading
        memory = [study.memory for study in known if study.memory is not None]
        return {**counts, **sums, "memory": max(memory, default=None), "loading": self.loading}

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"studies": [study.as_dict() for study in self.studies], "total": self.total()}


def dry_run(
    studies: Mapping[str, Study],
    folder: Path,
    progress: Progress | None = None,
    *,
    seconds: float | None = SECONDS,
) -> StudiesPlan:
    """Go through every study without answers; with `seconds`, measure how fast answers come.

    Rows that lie in `folder` count as stored. Nothing is written there. A study that cannot be is
    told with its reason.

    Raises:
        StoreFailed: if the rows in the folder cannot be read.
    """
    progress = progress or Silent()
    most = max(study.settings.top for study in studies.values())
    shelf = Shelf(folder / ROWS, most)
    done: dict[str, Planned] = {}
    loading: float | None = None if seconds is None else 0.0
    for model in dict.fromkeys(study.model for study in studies.values()):
        own = {name: study for name, study in studies.items() if study.model == model}
        with ExitStack() as stack:
            planner = Planner(model, shelf, progress, seconds, stack)
            for name, study in own.items():
                done[name] = planner.plan(name, study, folder)
            if loading is not None:
                loading += planner.loading
        del planner
        gc.collect()
    return StudiesPlan([done[name] for name in studies], loading)


class Planner:
    """Plans the studies of one model, which is loaded when the first of them needs it."""

    def __init__(
        self,
        model: ModelOptions,
        shelf: Shelf,
        progress: Progress,
        seconds: float | None,
        stack: ExitStack,
    ) -> None:
        """Load nothing yet."""
        self.model, self.shelf, self.progress = model, shelf, progress
        self.seconds, self.stack = seconds, stack
        self.loading = 0.0
        self.engine: Any = None
        self.paces: dict[str, tuple[Pace, int]] = {}

    def plan(self, name: str, study: Study, folder: Path) -> Planned:
        """What one study will take."""
        blank = Planned(name, study.model.name, study.task, study.method)
        if finished(folder / name, study) is not None:
            return replace(blank, finished=True, **self.nothing())
        try:
            study = study.check()
            tasks = study.model.tasks([study.task], study.options)
            tasks += study.model.tasks(study.other_tasks, study.options.plain())
            study.check_examples(tasks[0].size)
            return self.reckoned(blank, study, tasks)
        except CaplocError as error:
            return replace(blank, failure=str(error))

    def nothing(self) -> dict[str, Any]:
        """What a finished study takes."""
        return {} if self.seconds is None else {"tokens": 0.0, "seconds": 0.0}

    def reckoned(self, blank: Planned, study: Study, tasks: list[Task]) -> Planned:
        """Count a study's rows, and say what they take."""
        engine, before = self.opened(), time.perf_counter()
        found = reckon(study, tasks, engine, self.shelf, self.progress)
        thinking = time.perf_counter() - before
        counts = replace(
            blank, rows=found.fresh + found.unplanned, stored=found.stored, shared=found.shared
        )
        if self.seconds is None:
            return counts
        return replace(counts, **self.priced(study, found, thinking))

    def opened(self) -> Any:
        """The engine; without calibration, one that knows the model's files only."""
        if self.engine is None and self.seconds is None:
            here = self.shelf.path.is_file()  # or there is nothing to compare a fingerprint with
            print_of = self.model.source().fingerprint() if here else ""
            self.engine = Absent(Unloaded(self.model.name, print_of, self.model.check()))
        elif self.engine is None:
            before = time.perf_counter()
            self.engine = self.stack.enter_context(self.model.answering())
            self.loading = time.perf_counter() - before
        return self.engine

    def priced(self, study: Study, found: Reckoned, thinking: float) -> dict[str, Any]:
        """Tokens, seconds and memory of a study's open rows."""
        tokens, seconds, memory, rows = 0.0, thinking, 0, 0
        for place, meter in enumerate(found.meters):
            if not meter.fresh:
                continue
            pace, peak = self.pace(study, meter.salt, meter)
            extra = found.unplanned if place == 0 else 0
            tokens += pace.tokens(meter.fresh) + extra * pace.knocked_out_tokens
            seconds += pace.seconds(meter.fresh) + extra * pace.knocked_out
            memory, rows = max(memory, peak), rows + pace.rows
        return {
            "tokens": tokens,
            "seconds": seconds,
            "memory": memory or None,
            "measured_on": rows,
        }

    def pace(self, study: Study, question: str, meter: Any) -> tuple[Pace, int]:
        """How fast a task's rows are answered; seeds of one study are alike."""
        key = repr((question, study.method, replace(study.settings, seed=0)))
        if key not in self.paces:
            assert self.seconds is not None
            with watching(str(self.engine.loaded.device)) as peak:
                pace = measure_pace(self.engine, meter, self.seconds, self.progress)
            self.paces[key] = (pace, peak.bytes)
        return self.paces[key]
