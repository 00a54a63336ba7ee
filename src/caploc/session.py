"""A study at work: its tasks, the model that answers them, the rows, and what they cost."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from caploc.budget import ELSEWHERE, most_checked, most_searched
from caploc.components import Grid, Mask, find_grid
from caploc.declaration import Draw, Study, split_examples
from caploc.engine.api import HeadModel, RowEngine
from caploc.errors import BadOption
from caploc.folder import claim
from caploc.measurement import Meter, Meters, outcomes_by_example, search
from caploc.models.loading import LoadedModel
from caploc.naming import GENERAL
from caploc.progress import Progress, Silent
from caploc.recovery.estimate import is_binary
from caploc.result import Score
from caploc.search import Found, Method, Problem, column_mask
from caploc.search.plan import OtherTask
from caploc.search.scan import find_universal
from caploc.search.summary import nothing_to_lose
from caploc.store import Row
from caploc.tasks.defects import ask_once
from caploc.tasks.harness import digest_data
from caploc.tasks.signal import Signal
from caploc.tasks.task import (
    LogLikelihood,
    Request,
    Rolling,
    Task,
    prompt_of,
    responses_from_json,
)
from caploc.wording import called

BEFORE = 30  # characters of a prompt's end and an answer's beginning that are shown


@dataclass(frozen=True)
class SearchResult:
    """What a search found, and what it took.

    `intact` is the score of the intact model on the examples of the search; of the `rows` so many
    are `intact_rows`.
    """

    found: Found
    intact: Score
    rows: int
    intact_rows: int


@dataclass(frozen=True)
class Session:
    """A study at work. Tasks go by the names that the study gives them.

    `draw` says what each of the task's examples is for. `copies` examples of the task repeat a
    question, and are not asked.
    """

    study: Study
    meters: Meters[HeadModel]
    tasks: dict[str, Task]
    draw: Draw
    copies: int
    progress: Progress

    @classmethod
    @contextmanager
    def open(
        cls,
        study: Study,
        folder: Path,
        progress: Progress | None = None,
        *,
        command: str = "",
        engine: RowEngine[HeadModel] | None = None,
    ) -> Iterator["Session"]:
        """Check a study, say what it will take, and open its folder, tasks and model.

        `engine` may be one already loaded for the study's model. Raises UserError for a mistake in
        the study.
        """
        progress = progress or Silent()
        heads = study.model.check() if engine is None else engine.loaded.grid
        study = study.check(heads)
        loaded = None if engine is None else engine.loaded
        tokenizer = loaded.tokenizer if isinstance(loaded, LoadedModel) else None
        tasks = study.tasks(tokenizer)
        intervention = study.intervention(tokenizer)
        whole = tasks[study.task].size
        tasks = ask_once(tasks, study.leave_out, progress)
        copies = whole - tasks[study.task].size
        intervention.check_pairs(tasks[study.task], lambda: tokenizer or study.model.tokenizer())
        with claim(folder, asdict(study), command, digest_data([*tasks.values()])) as store:
            grid = find_grid(study.components, heads)
            announce(study, tasks, grid, progress)
            with nullcontext(engine) if engine else study.model.answering() as answering:
                for part in answering.loaded.uncovered:
                    progress.tell(
                        f"Not covered: {part} carries something from token to token, and has no "
                        "head that could be knocked out."
                    )
                study, tasks = without_unfit_control(study, tasks, answering.misfit, progress)
                tasks = study.without_defects(tasks, answering.misfit)
                meters = Meters(answering, store, study.components, intervention)
                draw = study.draw(tasks[study.task].size)
                yield cls(study, meters, tasks, draw, copies, progress)

    @property
    def grid(self) -> Grid[Any]:
        """The grid that masks are over."""
        return self.meters.grid

    @property
    def task(self) -> Task:
        """The task that heads are searched for."""
        return self.tasks[self.study.task]

    @property
    def nothing(self) -> Mask:
        """The mask that knocks out no head."""
        return column_mask(self.grid.size, [])

    def score_of(self, name: str) -> Meter:
        """Return the probe of a task's own metric, whatever found the heads."""
        return self.meters.meter(self.tasks[name].in_metric())

    def search(self, method: Method) -> SearchResult:
        """Measure what a method asks for, and return what it found."""
        name, meter = self.study.task, self.meters.meter(self.task)
        probes = {name: meter} | {other: self.score_of(other) for other in self.study.beside}
        intact = meter.under(self.nothing, self.draw.searched, self.progress, "intact")
        problem = self.pose(probes, intact, scans=method.has_goals)
        found = search(probes, method.search(problem), self.progress)
        if not method.has_goals:  # the default search leaves them out itself
            found = self.leave_out_universal(found, problem, probes)
        before = outcomes_by_example(intact)
        if before and is_binary(before):  # the score, and what can be lost, lies between 0 and 1
            found = replace(found, estimate=found.estimate.within(np.array([*before.values()])))
        hopeless = nothing_to_lose(problem, before)
        notes = [hopeless] if hopeless and hopeless not in found.notes else []
        found = replace(found, notes=[*notes, *found.notes])
        rows, intact_rows = self.meters.cost.rows, self.meters.cost.intact
        sets = len(found.candidates)
        self.progress.expect(most_checked(self.study, self.tasks, len(found.chosen), sets))
        return SearchResult(found, meter.score(intact), rows, intact_rows)

    def leave_out_universal(
        self, found: Found, problem: Problem, probes: dict[str, Meter]
    ) -> Found:
        """Leave out heads that each take half of what is right in another task too."""
        asked = find_universal(problem, found.chosen)
        breaks = search(probes, asked, self.progress)
        chosen = [column for column in found.chosen if column not in breaks]
        return replace(found, chosen=chosen, universal=[*breaks], breaks_task=breaks)

    def pose(self, probes: dict[str, Meter], intact: Sequence[Row], *, scans: bool) -> Problem:
        """Say among which heads and on which examples to search; signals join the probes."""
        study, name = self.study, self.study.task
        return Problem(
            heads=self.grid.size,
            examples=self.draw.searched,
            settings=study.settings,
            fresh=self.draw.fresh,
            elsewhere={  # what breaks a twin too is no universal head for that
                other: self.tasks[other].first(None)[:ELSEWHERE]
                for other in study.beside
                if not study.is_twin(other)
            },
            chance=self.task.metric.chance,
            probe=name,
            signal=add_signal(self.meters, probes, name, intact) if scans else name,
            sides=[*self.open_sides(probes)] if study.seeks_specific else [],
            excluded=tuple(self.grid.columns(study.exclude)),
        )

    def open_sides(self, probes: dict[str, Meter]) -> Iterator[OtherTask]:
        """Yield the tasks that a set must break or spare; their signals join the probes."""
        for name in dict.fromkeys((*self.study.twins, *self.study.spare)):
            examples, _ = split_examples(self.tasks[name].size, self.study.settings.seed)
            rows = probes[name].under(self.nothing, examples, self.progress, f"{name}, intact")
            before = outcomes_by_example(rows)
            better_high = self.tasks[name].metric.higher_is_better
            useless = better_high and is_binary(before) and not any(before.values())
            if useless and name in self.study.spare:
                raise BadOption(
                    f"--spare {called(name)}: the model gets none of {len(before)} examples right, "
                    "so that no set could cost it anything; spare a task that it can do."
                )
            signal = add_signal(self.meters, probes, name, rows)
            yield OtherTask(name, examples, signal, name in self.study.twins)


def add_signal(
    meters: Meters[HeadModel], probes: dict[str, Meter], name: str, intact: Sequence[Row]
) -> str:
    """Let the signal of a task join the probes; its name, the task's where it is the outcome.

    `intact` are the task's rows with nothing knocked out.
    """
    answers = {row.number: responses_from_json(row.responses) for row in intact}
    signal = Signal(probes[name].task, answers)
    if signal.linear:
        return name
    probes[f"{name}.likelihood"] = meters.meter(signal)
    return f"{name}.likelihood"


def without_unfit_control(
    study: Study,
    tasks: dict[str, Task],
    misfit: Callable[[Request], str | None],
    progress: Progress,
) -> tuple[Study, dict[str, Task]]:
    """Leave out copying, which every task is held against unasked, where the model cannot read it.

    So it is with a window of a few dozen tokens.
    """
    if GENERAL not in study.other_tasks or GENERAL in (*study.twins, *study.spare):
        return study, tasks
    if not (why := next(filter(None, map(misfit, tasks[GENERAL].requests(0))), None)):
        return study, tasks
    progress.tell(f"{GENERAL} is left out as a control: it has {why}.")
    others = tuple(name for name in study.other_tasks if name != GENERAL)
    return replace(study, other_tasks=others), {n: tasks[n] for n in tasks if n != GENERAL}


def describe_join(task: Task) -> str:
    """Show how the first example's prompt and right answer are joined, as they are written."""
    requests, example = task.requests(0), task.example(0)
    if len(requests) > 1 and example.right is None:
        return ""  # several choices are right, or none is known
    request, gold = requests[example.right or 0], example.gold
    if isinstance(request, LogLikelihood):
        gold = request.continuation
    if isinstance(request, Rolling) or gold is None:
        return ""
    return f" Asked as {prompt_of(request)[-BEFORE:]!r} + {gold[:BEFORE]!r}."


def announce(study: Study, tasks: Mapping[str, Task], grid: Grid[Any], progress: Progress) -> None:
    """Say what will be done, and how many rows it takes at most."""
    searched, checked = most_searched(study, tasks, grid.size), most_checked(study, tasks)
    progress.tell(
        f"{called(study.task)} in {called(study.model.name)}: a "
        f"search among {grid.size} {grid.COMPONENT.KIND}s, up to {searched:,} rows; its checks, up "
        f"to {checked:,} more.{describe_join(tasks[study.task])}",
    )
    progress.expect(searched + checked)
