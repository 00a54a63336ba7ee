"""Compute a result again from nothing but the rows, and compare it number by number.

A study is a pure function of its settings and of the rows that it asks for. So all its stages are
gone through once more, with a store that only answers and no model: intact scores, the search, the
effects and the named heads, controls, other tasks and the curve over the heads.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache

from caploc.contents import Curve, RunFile, read_file
from caploc.cost import Cost
from caploc.errors import CaplocError, UserError
from caploc.findings import Stages, build_result, shown_answers
from caploc.finished import restored
from caploc.folder import ANSWERS, CURVE, RESULT, RUN, package_versions, rows_file
from caploc.heads import HeadGrid
from caploc.measurement import HeadModel, Meter, OpenRow
from caploc.models.loading import check_model
from caploc.models.placement import SPREAD
from caploc.models.sources import is_hub_name
from caploc.naming import DEMO, PRETRAINED, at_home, is_file, is_folder
from caploc.progress import Progress, Silent
from caploc.result import Result
from caploc.search import METHODS, Plan
from caploc.store import UNKNOWN, Question, Row, stored_rows
from caploc.study import Study, draw_own_curve, locate, validated
from caploc.tasks.task import Request, Task
from caploc.validation import RANDOM, SAME_GROUPS
from caploc.workbench import Allowed, ModelOptions, Workbench

TOLERANCE = 1e-6  # relative; what other processors make of the same sums differs by 1e-12
SMALLEST = 1e-9
NAMED = 5  # differences that are told one by one
QUOTED = 60  # characters of a value that a sentence repeats
MOST_MASKED = 10**9  # heads times masks that are drawn, a byte each
CONTROLS = (RANDOM, SAME_GROUPS)  # what random heads were asked for
NOTES = "search.notes"  # in words what other fields say in numbers
OF_THE_MACHINE = ("command", "versions", "device", "engines")  # no row tells of these


class NotRecomputed(UserError):
    """A result that cannot be computed again here; the text says why."""


class RowsMissing(NotRecomputed):
    """The study asks for a row that the store does not have."""


class Recorded(Meter):
    """A meter that knows the stored rows of a question, and has no others measured."""

    def __init__(self, path: Path, task: Task, question: Question, cost: Cost) -> None:
        self.engine: Any = None
        self.task, self.cost, self.known = task, cost, stored_rows(path, question)
        self.counted = set()

    def ask(self, todo: Sequence[OpenRow], progress: Progress) -> None:
        """Refuse to have rows measured; raises RowsMissing, or NotRecomputed if there is none."""
        if self.task.outcome_kind == "margin" and not self.known:
            raise NotRecomputed("it was found by the log-probabilities of choices, not by margins")
        raise RowsMissing(
            f"the study that run.json describes asks for {len(todo):,} rows of {self.task.name} "
            "that are not there"
        )


class Stage(Silent):
    """Says which part of a run it is that measures: search, check or curve."""

    def __init__(self, name: str) -> None:
        self.name = name


class Traced(Recorded):
    """The same, and it writes down what each row was first asked for in each part of a run."""

    def __init__(self, path: Path, task: Task, question: Question, cost: Cost) -> None:
        super().__init__(path, task, question, cost)
        self.stages: dict[tuple[bytes, str], dict[str, str]] = {}

    def measure(self, plan: Plan, progress: Progress, what: str) -> list[Row]:
        """Return the plan's rows, each noted with the stage that asks for it."""
        rows = super().measure(plan, progress, what)
        part = progress.name if isinstance(progress, Stage) else ""
        if what in CONTROLS:
            part = "control"
        for row in rows:
            self.stages.setdefault((row.mask, row.example), {}).setdefault(part, what)
        return rows


@dataclass(frozen=True)
class Unloaded:
    """A model of which only what files tell is known."""

    name: str
    fingerprint: str
    grid: HeadGrid
    dtype: str = UNKNOWN
    device: str = "none"


@dataclass(frozen=True)
class Absent:
    """An engine that answers nothing."""

    loaded: HeadModel

    @property
    def grid(self) -> HeadGrid:
        return self.loaded.grid

    def shared_tokens(self, requests: Sequence[Request]) -> float:
        return 0.0  # without a tokenizer; it decides how rows share masks, not how many


def recompute(rows: Path, written: RunFile, result: Result, *, curved: bool) -> dict[str, Any]:
    """Return what a run's rows give for its files, by name: result, answers, and the curve if any.

    `written` and `result` are the contents of its `run.json` and `result.json`, as a run may have
    written them; `curved` says whether it has a curve. Of `result` only the model's identity, its
    grid and the group of a scattered search are taken for granted: with other ones, other rows
    would be asked for. Raises NotRecomputed as `replay` does.
    """
    replayed = replay(rows, written, result, Recorded, curved=curved)
    study, stages = replayed.study, replayed.stages
    fields = asdict(study) | {"draws_masks": METHODS[study.method].draws_masks}
    found = build_result(fields, stages, replayed.bench.cost, "")
    answers = [answer.as_dict() for answer in shown_answers(stages)]
    contents: dict[str, Any] = {RESULT: found.as_dict(), ANSWERS: answers}
    return contents | ({CURVE: replayed.curve.as_dict()} if replayed.curve else {})


def trace_stages(folder: Path) -> dict[Question, dict[tuple[bytes, str], list[str]]]:
    """Say of every row that a finished run asked for, by its question, what it was for.

    A row is known by its packed mask and its example's digest. Each part of the run that asked for
    it has an entry, such as `check: members of the set`, which tells the first reason.
    Raises UserError if the folder holds no finished run, or one that cannot be gone through here.
    """
    written, result = read_file(folder / RUN, RunFile), read_file(folder / RESULT, Result)
    curved = (folder / CURVE).exists()
    bench = replay(rows_file(folder), written, result, Traced, curved=curved).bench
    return {
        question: {
            key: [f"{part}: {what}" for part, what in told.items()]
            for key, told in meter.stages.items()
        }
        for question, meter in bench.meters.items()
        if isinstance(meter, Traced)
    }


@dataclass(frozen=True)
class Replayed:
    """A study gone through once more: what its stages leave, its meters and its curve, if any."""

    study: Study
    stages: Stages
    bench: Workbench[HeadModel]
    curve: Curve | None


def replay(
    rows: Path, written: RunFile, result: Result, make_meter: type[Recorded], *, curved: bool
) -> Replayed:
    """Go through a run's stages on its rows, and through its curve if it has one.

    Raises NotRecomputed if rows are missing, the run is another version's, or its tasks cannot be
    loaded here.
    """
    if result.versions != package_versions():
        raise NotRecomputed("it was written by other versions of caploc or its libraries")
    try:
        study = replace(restored(written.study), track=None)
    except (KeyError, TypeError, ValueError) as error:
        raise NotRecomputed(f"its study is another version's ({error})") from error
    allowed = Allowed(code=True)  # every row is there, so that no program is run
    try:
        allowed.check("The run", study.model, study.options, study.named_tasks)
        grid = rebuild_grid(study, result)
        check_sizes(study, grid)
        settings = replace(study.settings, group=result.search.group or study.settings.group)
        study = replace(study, settings=settings)
        settings.check()
        study.options.check()
        study = study.sized(grid.size)
        return replay_study(study, partial(make_meter, rows), grid, result, curved=curved)
    except NotRecomputed:
        raise
    except CaplocError as error:
        raise NotRecomputed(str(error).rstrip(".")) from error


def rebuild_grid(study: Study, result: Result) -> HeadGrid:
    """Return the grid of the run's model, from its configuration if that lies on this machine.

    Raises NotRecomputed if it does not, or if the result says another one.
    """
    model = replace(at_hand(study.model), device=SPREAD, quantize=None, trust_remote_code=False)
    grid = check_model(**model.loading())
    if grid != result.grid.grid():
        raise NotRecomputed(
            f"the model {study.model.name} on this machine has other heads than its grid"
        )
    return grid


def at_hand(model: ModelOptions) -> ModelOptions:
    """Find a model as it lies on this machine: one of the Hub in its cache, not asking the Hub."""
    name, path = model.name, at_home(model.name)
    if name == DEMO or name in PRETRAINED or is_folder(path) or is_file(path):
        return model
    wanted = model.gguf or "config.json"
    hub = is_hub_name(name)
    found = try_to_load_from_cache(name, wanted, revision=model.revision) if hub else None
    if not isinstance(found, str):
        raise NotRecomputed(f"the model {name} is not on this machine, which tells its heads")
    place = found if model.gguf else str(Path(found).parent)
    return replace(model, name=place, revision=None, gguf=None)


def check_sizes(study: Study, grid: HeadGrid) -> None:
    """Refuse a study that would draw more masks than any run measures."""
    settings = study.settings
    drawn = max(settings.masks, study.controls, grid.size, *settings.mask_counts)
    if drawn * grid.size > MOST_MASKED:
        raise NotRecomputed(f"run.json asks for {drawn:,} masks over {grid.size:,} heads")


def replay_study(
    study: Study,
    make_meter: Callable[..., Recorded],
    grid: HeadGrid,
    result: Result,
    *,
    curved: bool,
) -> Replayed:
    """Go through a study's stages on stored rows."""
    tasks, intervention = study.tasks(), study.intervention()
    study.check_examples(tasks[0].size)
    said = result.model
    model = Unloaded(study.model.name, said.fingerprint or "", grid, said.dtype or "")
    engine: Any = Absent(model)
    bench = Workbench[HeadModel](engine, None, make_meter=make_meter, intervention=intervention)
    stages = locate(study, bench, tasks, Stage("search"))
    stages = validated(study, bench, stages, tasks, Stage("check"))
    curve = draw_own_curve(study, bench, stages, tasks, Stage("curve")) if curved else None
    return Replayed(study, stages, bench, curve)


def find_disparities(there: Any, here: Any, where: str = "") -> Iterator[str]:
    """Yield where a file's content differs from what the rows give, in the order of the file."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in (key for key in there | here if key not in OF_THE_MACHINE):
            sides = there.get(key, "nothing"), here.get(key, "nothing")
            yield from find_disparities(*sides, f"{where}.{key}".lstrip("."))
    elif where == NOTES and isinstance(there, list) and isinstance(here, list):
        added = [note for note in there if note not in here]  # later versions know more to say
        yield from (f"{where} {quoted(note)}, and the rows give no such" for note in added)
    elif isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        for place, pair in enumerate(zip(there, here, strict=True)):
            named = pair[0].get("head", place) if isinstance(pair[0], dict) else place
            yield from find_disparities(*pair, f"{where}[{named}]")
    elif not equal_enough(there, here):
        yield f"{where} {quoted(there)}, and the rows give {quoted(here)}"


def equal_enough(there: Any, here: Any) -> bool:
    """Tell whether two values are the same; numbers up to rounding."""
    numbers = isinstance(there, int | float) and isinstance(here, int | float)
    if numbers and isinstance(there, bool) == isinstance(here, bool):
        return math.isclose(there, here, rel_tol=TOLERANCE, abs_tol=SMALLEST)
    return type(there) is type(here) and bool(there == here)


def quoted(value: Any) -> str:
    """Return a value as a sentence repeats it."""
    text = json.dumps(value)
    return text if len(text) <= QUOTED else f"{text[:QUOTED]} ..."


def first_differences(differing: Iterator[str]) -> list[str]:
    """Return the first differences, and how many more there are."""
    every = list(differing)
    more = [f"{len(every) - NAMED:,} more values"] if len(every) > NAMED else []
    return every[:NAMED] + more
