"""What the studies of a file will take: rows, tokens, memory, time.

A study is gone through without a model; its stages are its own. Answers that the store does not
have are pretended: some heads, drawn at random, are needed for nearly every example. A search then
names as many heads as it may, for which its check costs most; an adaptive one is told never to be
sure, so that it spends its budget.
"""

import gc
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence, ValuesView
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import combinations, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast
from zlib import crc32

import numpy as np
import psutil
import torch

from caploc import designs
from caploc.cost import Cost, weigh_rows
from caploc.errors import CaplocError
from caploc.findings import Stages
from caploc.folder import ROWS, rows_file
from caploc.heads import Mask
from caploc.measurement import HeadModel, Meter, OpenRow
from caploc.progress import Progress, Silent
from caploc.result import Score
from caploc.search import METHODS, Plan, column_mask
from caploc.store import Known, Question, Row, Store, stored_rows
from caploc.store.rows import pack
from caploc.studies.running import finished
from caploc.study import CHECKED, ELSEWHERE, Study, draw_own_curve, held_back, locate, validated
from caploc.tasks.catalog import TaskOptions
from caploc.tasks.task import Generate, Generated, Response, Scored, Task, responses_json
from caploc.tracking import Foreseen
from caploc.validation import EXAMPLES, MASKS
from caploc.validation.frontier import OFFERED, split_examples
from caploc.workbench import Absent, ModelOptions, Unloaded, Workbench, check_pairs

SECONDS = 4.0  # of measuring, for each task of a study
NEVER = 2.0  # a recall that no search expects
RIGHT = 0.9  # share of examples that the pretended model gets right
HARMED = 0.9  # share of them that it loses without a needed head


@dataclass(frozen=True)
class Planned:
    """What a study will take, at most. What was not measured is None.

    `rows` are to be measured; `stored` ones lie in the store, and `shared` ones are measured by
    studies before this one. `tokens` are in passes through all layers; `memory` is in bytes, of the
    process or its CUDA device; `seconds` leave out loading and the report.
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
    failure: str | None = None  # why the study cannot be


@dataclass(frozen=True)
class StudiesPlan:
    """What all studies will take. `loading` is seconds for all models; None without calibration."""

    studies: list[Planned]
    loading: float | None

    def total(self) -> dict[str, Any]:
        """Add up all studies; of memory take the largest. None where a study has none."""
        known = [study for study in self.studies if not (study.finished or study.failure)]
        sums: dict[str, Any] = {
            name: sum(getattr(study, name) for study in self.studies)
            for name in ("rows", "stored", "shared")
        }
        for name in ("tokens", "seconds"):
            values = [getattr(study, name) for study in known]
            sums[name] = None if None in values or self.loading is None else sum(values)
        if sums["seconds"] is not None:
            sums["seconds"] += self.loading
        memory = [study.memory for study in known if study.memory is not None]
        return sums | {"memory": max(memory, default=None), "loading": self.loading}

    def as_dict(self) -> dict[str, Any]:
        return {"studies": [asdict(study) for study in self.studies], "total": self.total()}


def dry_run(
    studies: Mapping[str, Study],
    folder: Path,
    progress: Progress | None = None,
    *,
    seconds: float | None = SECONDS,
) -> StudiesPlan:
    """Go through every study without answers; with `seconds`, measure how fast answers come.

    Rows that lie in `folder` count as stored. Nothing is written there. A study that cannot be is
    told with its reason. Raises StoreFailed if the rows in the folder cannot be read.
    """
    rows = KnownRows(folder / ROWS, max(study.settings.top for study in studies.values()))
    progress = progress or Silent()
    done: dict[str, Planned] = {}
    loading = 0.0
    for model in dict.fromkeys(study.model for study in studies.values()):
        with ExitStack() as stack:
            planner = Planner(model, rows, progress, seconds, stack)
            for name, study in studies.items():
                if study.model == model:
                    progress.start(f"study {len(done) + 1} of {len(studies)}, {name}", 0)
                    done[name] = planner.plan(name, study, folder)
            loading += planner.loading
        del planner
        gc.collect()
    return StudiesPlan([done[name] for name in studies], None if seconds is None else loading)


@dataclass
class Planner:
    """Plans the studies of one model, which is loaded when the first of them needs it."""

    model: ModelOptions
    known: "KnownRows"
    progress: Progress
    seconds: float | None
    stack: ExitStack
    loading: float = 0.0  # seconds
    engine: Any = None
    paces: dict[str, "tuple[Pace, int]"] = field(default_factory=dict)
    tasks: dict[str, Task] = field(default_factory=dict)

    def plan(self, name: str, study: Study, folder: Path) -> Planned:
        blank = Planned(name, study.model.name, study.task, study.method)
        if finished(folder / name, study) is not None:
            nothing = None if self.seconds is None else 0.0
            return replace(blank, finished=True, tokens=nothing, seconds=nothing)
        try:
            study = study.check()
            tasks = study.tasks(self.load)
            study.check_examples(tasks[0].size)
            engine, before = self.opened(), time.perf_counter()
            counts = count_rows(study, tasks, engine, self.known)
            thinking = time.perf_counter() - before
            priced = {} if self.seconds is None else self.priced(study, counts, thinking)
        except CaplocError as error:
            return replace(blank, failure=str(error))
        rows = counts.fresh + counts.unplanned
        return replace(blank, rows=rows, stored=counts.stored, shared=counts.shared, **priced)

    def load(self, names: Sequence[str], options: TaskOptions) -> list[Task]:
        """Load tasks, each once for all studies that ask it alike."""
        for name in names:
            if (key := f"{name} {options}") not in self.tasks:
                (self.tasks[key],) = self.model.tasks([name], options)
        return [self.tasks[f"{name} {options}"] for name in names]

    def opened(self) -> Any:
        """Return the engine; without calibration, one that knows the model's files only."""
        if self.engine is None and self.seconds is None:
            self.engine = without_weights(self.model, self.known.path)
        elif self.engine is None:
            before = time.perf_counter()
            self.engine = self.stack.enter_context(self.model.answering())
            self.loading = time.perf_counter() - before
        return self.engine

    def priced(self, study: Study, counts: "RowCounts", thinking: float) -> dict[str, Any]:
        tokens, seconds, memory, rows = 0.0, thinking, 0, 0
        for place, meter in enumerate(counts.meters):
            if meter.fresh:
                search = "" if place else f"{study.method} {replace(study.settings, seed=0)}"
                pace, peak = self.pace(study, meter, search)
                took, run = pace.take(meter.fresh, counts.unplanned if place == 0 else 0)
                seconds, tokens = seconds + took, tokens + run
                memory, rows = max(memory, peak), rows + pace.rows
        return dict(tokens=tokens, seconds=seconds, measured_on=rows, memory=memory or None)

    def pace(self, study: Study, meter: "DryRunMeter", search: str) -> "tuple[Pace, int]":
        """Measure how fast a task's rows are answered, once for all studies that ask them alike.

        `search` says in which way it is searched; it is empty of tasks that are only checked.
        """
        if (key := f"{meter.salt} {search}") not in self.paces:
            assert self.seconds is not None
            with (
                watching(str(self.engine.loaded.device)) as peak,
                TemporaryDirectory() as place,
                Store(Path(place) / ROWS) as store,
            ):
                bench = Workbench(self.engine, store, intervention=study.intervention())
                pace = measure_pace(
                    bench.meter(meter.task), meter.fresh, self.seconds, self.progress
                )
            self.paces[key] = (pace, peak.bytes)
        return self.paces[key]


def without_weights(model: ModelOptions, rows: Path) -> Absent:
    """Return an engine that knows a model's files only, and no fingerprint if there are no rows."""
    fingerprint = model.fingerprint() if rows.is_file() else ""
    return Absent(Unloaded(model.name, fingerprint, model.check()))


@dataclass
class KnownRows:
    """The rows that there are, and those that studies counted before this one will have left."""

    path: Path
    needed: int  # heads, by pretended answers
    rows: dict[Question, Known] = field(default_factory=dict)
    stored: dict[Question, set[tuple[bytes, str]]] = field(default_factory=dict)

    def of(self, question: Question) -> Known:
        """Return the rows of a question; new ones may be added."""
        if question not in self.rows:
            self.rows[question] = stored_rows(self.path, question)
            self.stored[question] = set(self.rows[question])
        return self.rows[question]


class DryRunMeter(Meter):
    """A meter that makes up the outcomes of open rows, and writes down which they were."""

    def __init__(
        self, known: KnownRows, heads: int, task: Task, question: Question, cost: Cost
    ) -> None:
        self.task, self.cost, self.known = task, cost, known.of(question)
        self.stored = known.stored[question]
        self.counted = set()
        self.fresh: list[tuple[Mask, int]] = []
        self.salt = replace(question, repeat=0).digest()  # what is repeated is answered alike
        random = designs.generator(crc32(self.salt.encode()))
        self.needed = random.permutation(heads).tolist()[: known.needed]
        self.together = False

    def need(self, heads: Sequence[int]) -> None:
        """Need all of these heads together, so that none of them seems to add nothing."""
        self.needed, self.together = [*heads] or self.needed, len(heads) > 1

    def ask(self, todo: Sequence[OpenRow], progress: Progress) -> None:
        for key, (mask, example) in todo:
            self.fresh.append((mask, example))
            nothing: list[Response] = [
                Generated("", 0) if isinstance(request, Generate) else Scored(-1.0, False, 1)
                for request in self.task.requests(example)
            ]
            written = responses_json(tuple(nothing))
            outcome = self.outcome(key, mask)
            self.known[key] = Row(*key, example, outcome, None, written, 1.0, 1, 0.0)

    def outcome(self, key: tuple[bytes, str], mask: Mask) -> float:
        """Make up an outcome, which the row alone decides."""
        right = pseudorandom_number(self.salt, key[1]) < RIGHT
        # one luck for all masks: else a part of a set might seem to do more than the whole
        luck = pseudorandom_number(self.salt, key[1], "harm")
        # each does its part: else one alone would seem to do what the set does, and be named alone
        share = float(np.mean(mask[self.needed], dtype=float))
        harmed = luck < (share ** len(self.needed) if self.together else HARMED * share)
        if self.task.outcome_kind != "metric":
            return -1.0 - luck - 3.0 * harmed
        return float(right and not harmed)

    def score(self, rows: Sequence[Row]) -> Score:
        """Return the mean outcome, whatever the task would make of it."""
        scored = [row.outcome for row in rows if not math.isnan(row.outcome)]
        return Score.of(float(np.mean(scored)) if scored else None, None, len(scored))


def pseudorandom_number(*texts: str) -> float:
    """Return a number from 0 to 1 that the texts decide."""
    return crc32(" ".join(texts).encode()) / 2**32


@dataclass(frozen=True)
class RowCounts:
    """What a study would ask: its tasks' meters, with their open rows, and counts of rows.

    `fresh` rows are to be measured; `stored` lie in the store; `shared` are measured by studies
    before this one. `unplanned` are those of the budget of which it is open what they will ask.
    """

    meters: list[DryRunMeter]
    fresh: int
    stored: int
    shared: int
    unplanned: int
    searched: int = 0  # of the fresh and the unplanned rows, those of the search
    intact: int = 0  # of those of the search, the ones with no head knocked out
    work: float = 0.0  # of the fresh and the unplanned rows, see `weigh_rows`


def count_rows(study: Study, tasks: Sequence[Task], engine: Any, known: KnownRows) -> RowCounts:
    """Go through a study's stages, silently, for what it finds is made up.

    Raises UserError if its tasks lack examples; StoreFailed if stored rows cannot be read.
    """
    bench = pretended_bench(study, tasks, engine, known)
    endless = replace(study, settings=replace(study.settings, recall=NEVER))
    stages = locate(endless, bench, tasks, Silent())
    bench.meter(tasks[0])  # the first of all, also where nothing was asked
    meters = cast(ValuesView[DryRunMeter], bench.meters.values())  # those to come included
    cut, unseen = left_of_search(study, stages, bench, tasks)
    searched = sum(len(meter.fresh) for meter in meters) + cut + unseen
    intact = sum(not mask.any() for meter in meters for mask, _ in meter.fresh) + unseen
    if searched:
        stages = name_in_full(endless, stages)
    unplanned = cut + unseen + go_through_checks(endless, bench, stages, tasks)
    used = sum(len(meter.counted) for meter in meters)
    stored = sum(len(meter.counted & meter.stored) for meter in meters)
    fresh = sum(len(meter.fresh) for meter in meters)
    shared = used - stored - fresh
    if not fresh:  # with nothing pretended the search went as it did, and ended where it ended
        return RowCounts([*meters], 0, stored, shared, 0)
    work = add_work([*meters], unplanned)
    return RowCounts([*meters], fresh, stored, shared, unplanned, searched, intact, work)


def pretended_bench(
    study: Study, tasks: Sequence[Task], engine: Any, known: KnownRows
) -> Workbench[HeadModel]:
    """Make a bench whose answers are made up."""
    pretend = partial(DryRunMeter, known, engine.loaded.grid.size)
    intervention = study.intervention()
    check_pairs(study.model, intervention, tasks[0])
    return Workbench[HeadModel](engine, None, make_meter=pretend, intervention=intervention)


def go_through_checks(
    study: Study, bench: Workbench[HeadModel], stages: Stages, tasks: Sequence[Task]
) -> int:
    """Go through all stages after a search; count rows that they might ask for beyond these."""
    for task in tasks:
        cast(DryRunMeter, bench.meter(task.in_metric())).need(stages.found.chosen)
    checked = validated(study, bench, stages, tasks, Silent())
    draw_own_curve(study, bench, checked, tasks, Silent())
    meter = cast(DryRunMeter, bench.meter(tasks[0].in_metric()))
    return (
        left_of_checks(study, stages, checked, meter)
        + left_of_offer(study, checked, tasks)
        + left_of_curve(study, checked, tasks)
    )


def name_in_full(study: Study, stages: Stages) -> Stages:
    """Name as many heads as may be, and leave few in doubt: else the checks would seem few.

    Of a specific set as many are judged as usually are found, or more.
    """
    found, top = stages.found, study.settings.top
    if study.seeks_specific:
        sets = list(found.diagnostics.get("candidates", []))
        others = ([*each] for each in combinations(range(len(found.estimate.effect)), 2))
        sets += islice((each for each in others if each not in sets), max(2 * top - len(sets), 0))
        said = found.diagnostics | {"candidates": sets}
        return replace(stages, found=replace(found, diagnostics=said))
    effect = np.nan_to_num(found.estimate.effect)
    spread = np.linspace(0, len(effect) - 1, top).astype(int).tolist()  # over all layers
    chosen = list(dict.fromkeys([*found.chosen, *spread]))[:top]
    effect[chosen] = -1.0
    estimate = replace(found.estimate, effect=effect)
    said = found.diagnostics | {"shortlist": chosen}
    return replace(stages, found=replace(found, chosen=chosen, estimate=estimate, diagnostics=said))


def add_work(meters: Sequence["DryRunMeter"], unplanned: int) -> float:
    """Add up what open rows weigh; those of which nothing is known are the first task's."""
    known = sum(len(meter.fresh) * weigh_rows(meter.task) for meter in meters)
    return known + unplanned * weigh_rows(meters[0].task)


def foresee(study: Study, tasks: Sequence[Task], folder: Path) -> Foreseen:
    """Count what a study will measure, at most, without its model; see `run_study`."""
    path = rows_file(folder)
    engine = without_weights(study.model, path)

    def recount(stages: Stages) -> tuple[int, float]:
        known = KnownRows(path, study.settings.top)
        loaded = stages.loaded  # of a large model a second fingerprint would take minutes
        absent = Absent(Unloaded(study.model.name, loaded.fingerprint, loaded.grid))
        bench = pretended_bench(study, tasks, absent, known)
        bench.meter(tasks[0])
        unplanned = go_through_checks(study, bench, stages, tasks)
        meters = [cast(DryRunMeter, meter) for meter in bench.meters.values()]
        rows = sum(len(meter.fresh) for meter in meters) + unplanned
        return rows, add_work(meters, unplanned)

    counts = count_rows(study, tasks, engine, KnownRows(path, study.settings.top))
    search, checks = counts.searched, counts.fresh + counts.unplanned - counts.searched
    searched = search - counts.intact
    return Foreseen(searched, counts.intact, checks, counts.work, recount, counts.stored)


def left_of_search(
    study: Study, stages: Stages, bench: Workbench[HeadModel], tasks: Sequence[Task]
) -> tuple[int, int]:
    """Count rows that a search might ask for beyond these, with heads knocked out and without.

    One that spends a budget may spend all of it, and look at every example intact, those that check
    its first heads and those of other tasks among them; also where pretended answers gave it
    nothing to look for.
    """
    budget = stages.found.diagnostics.get("budget")
    if budget is None and METHODS[study.method].adaptive:
        budget = study.settings.most_rows(stages.loaded.grid.size)
    if budget is None:
        return 0, 0
    asked = sum(any(mask) for meter in bench.meters.values() for mask, _ in meter.counted)
    kept = study.drawn(tasks[0].size)[1]
    wanted = [(tasks[0], [*stages.seen, *kept[len(held_back(kept)) :]])]
    wanted += [(task.in_metric(), task.first(ELSEWHERE)) for task in no_twins(study, tasks)]
    unseen = 0
    for task, examples in wanted:
        looked = {example for mask, example in bench.meter(task).known if not any(mask)}
        unseen += len({task.key(example) for example in examples} - looked)
    return max(int(budget) - asked, 0), unseen


def left_of_checks(study: Study, stages: Stages, checked: Stages, meter: "DryRunMeter") -> int:
    """Count rows that the checks might ask for beyond those gone through, by the task's `meter`.

    `stages` are those before the checks, `checked` those after them: any of the sets found may be
    named, or a part of one, and random heads are tried only where one is.
    """
    examples = min(CHECKED, study.limit or CHECKED, len(stages.kept or stages.examples))
    if not study.seeks_specific:
        part = len(stages.found.chosen) - 1  # all of its heads but each are tried
        if part <= 2:
            return 0
        whole = pack(column_mask(stages.loaded.grid.size, checked.found.chosen))
        # of a set found as such one head after another may go, and what is known of the whole need
        # not be of the part
        parts = sum(range(3, part + 1)) if study.seeks_set else part
        return parts * examples + sum(mask == whole for mask, _ in meter.stored)
    if not stages.found.diagnostics.get("candidates"):
        return 0
    named = len(checked.found.chosen)
    few = 2 * max(study.settings.top - named, 0) * examples  # alone, and all but each
    return few if named else few + 2 * study.controls * examples + MASKS * EXAMPLES


def left_of_offer(study: Study, stages: Stages, tasks: Sequence[Task]) -> int:
    """Count rows that a look for a part which leaves other tasks alone might ask for."""
    parts = len(stages.subsets.tried) - 1 if stages.subsets else 0
    if study.quick or study.seeks_specific or stages.frontier is not None or not parts:
        return 0
    sizes = [
        len(split_examples(task.size, study.settings.seed)[1][: study.limit])
        for task in no_twins(study, tasks)
    ]
    return (1 + min(parts, OFFERED)) * sum(sizes)


def no_twins(study: Study, tasks: Sequence[Task]) -> list[Task]:
    """Return the tasks beside a study's own that are not the same in other words."""
    beside = zip(study.beside, tasks[1:], strict=True)
    return [task for name, task in beside if not study.is_twin(name)]


def left_of_curve(study: Study, stages: Stages, tasks: Sequence[Task]) -> int:
    """Count rows that a curve asks for where as many heads are named as may be."""
    if study.quick:
        return 0
    # neither no head nor all of them is asked anew
    left = max(study.settings.top - max(len(stages.found.chosen), 1), 0)
    return left * sum(map(len, study.curve_examples(tasks, None)))


FIRST = 32  # rows of the first chunk; each later one has twice as many
LOOKS = 0.02  # seconds between two looks at the memory
INTACT_SHARE = 0.3  # of the time, for rows with no head knocked out

Wanted = list[tuple[Mask, int]]


@dataclass(frozen=True)
class Pace:
    """Seconds and tokens of a row, intact and with heads knocked out."""

    intact: float
    intact_tokens: float
    knocked_out: float
    knocked_out_tokens: float
    rows: int  # that this was measured on

    def take(self, rows: Wanted, unplanned: int) -> tuple[float, float]:
        """Seconds and tokens of these rows, and of so many more with heads knocked out."""
        cut = sum(bool(mask.any()) for mask, _ in rows)
        intact, cut = len(rows) - cut, cut + unplanned
        return (
            self.knocked_out * cut + self.intact * intact,
            self.knocked_out_tokens * cut + self.intact_tokens * intact,
        )


def measure_pace(meter: Meter, wanted: Wanted, seconds: float, progress: Progress) -> Pace:
    """Measure some of these rows for about so many seconds."""
    examples = list(dict.fromkeys(example for _, example in wanted))
    order = designs.generator(0).permutation(examples).tolist()
    empty = [(wanted[0][0] & False, example) for example in order]
    first = timed(meter, empty, INTACT_SHARE * seconds, progress)
    known = {example for _, example in empty[: first.rows]}
    cut = [(mask, e) for mask, e in shuffle_by_mask(wanted) if mask.any() and e in known]
    second = timed(meter, cut, (1 - INTACT_SHARE) * seconds, progress)
    measured = first.rows + second.rows
    if not second.rows:
        second = first
    return Pace(*first.of_row, *second.of_row, measured)


@dataclass
class Timed:
    """Rows that were asked, and of those that were timed, their number, seconds and tokens."""

    rows: int = 0
    timed: int = 0
    seconds: float = 0.0
    tokens: float = 0.0

    @property
    def of_row(self) -> tuple[float, float]:
        """Seconds and tokens of one row."""
        return self.seconds / max(self.timed, 1), self.tokens / max(self.timed, 1)


def timed(meter: Meter, wanted: Wanted, seconds: float, progress: Progress) -> Timed:
    """Ask rows in chunks, each twice as long, until the time is up.

    The first chunk warms up and is not timed, unless it is the only one.
    """
    done, chunk, spent = Timed(), FIRST, 0.0
    while done.rows < len(wanted) and spent < seconds:
        rows = wanted[done.rows : done.rows + chunk]
        masks = np.stack([mask for mask, _ in rows])
        examples = np.array([example for _, example in rows], dtype=int)
        cost, before = meter.cost.forward_tokens, time.perf_counter()
        meter.measure(Plan(masks, np.arange(len(rows)), examples), progress, "calibration")
        took = time.perf_counter() - before
        if done.rows <= FIRST:
            done.timed, done.seconds, done.tokens = 0, 0.0, 0.0
        done.rows, done.timed = done.rows + len(rows), done.timed + len(rows)
        done.seconds, spent = done.seconds + took, spent + took
        done.tokens += meter.cost.forward_tokens - cost
        chunk *= 2
    return done


def shuffle_by_mask(rows: Wanted) -> Iterator[tuple[Mask, int]]:
    """Yield rows mask by mask, the masks in a random order."""
    groups: dict[bytes, Wanted] = {}
    for mask, example in rows:
        groups.setdefault(mask.tobytes(), []).append((mask, example))
    keys = list(groups)
    for place in designs.generator(1).permutation(len(keys)):
        yield from groups[keys[place]]


@dataclass
class Peak:
    """The most memory that was in use, in bytes."""

    bytes: int = 0


@contextmanager
def watching(device: str) -> Iterator[Peak]:
    """Watch the memory while the block runs: the process's, or the device's if it has its own."""
    peak, ended = Peak(), threading.Event()
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
        yield peak
        peak.bytes = int(torch.cuda.max_memory_allocated(device))
        return

    def look() -> None:
        process = psutil.Process()
        while not ended.wait(LOOKS):
            peak.bytes = max(peak.bytes, process.memory_info().rss)

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        ended.set()
        watcher.join()
