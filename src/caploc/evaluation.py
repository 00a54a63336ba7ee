"""Scores with chosen heads knocked out: a few tasks once, or one more head at a time."""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from caploc.components import Component
from caploc.contents import Curve, TaskScores
from caploc.declaration import Allowed, ModelOptions
from caploc.errors import BadOption
from caploc.finished import FinishedRun
from caploc.folder import CURVE, EVALUATION, check_named, claim, package_versions, write_json
from caploc.measurement import Meters
from caploc.modes import Intervention
from caploc.options import Mode, TaskOptions
from caploc.progress import Progress, Silent
from caploc.report.page import rewrite_page
from caploc.result import SCHEMA, GridShape, RunCost, TaskComparison
from caploc.tasks.catalog import check_task_name
from caploc.validation import Comparison, draw_curve, score_both
from caploc.validation.lost import find_lost


@dataclass(frozen=True)
class Evaluation:
    """Which heads to knock out of which model, and the tasks to score it on.

    Without heads the model is scored intact only. `options` go to every task; `mode` says what
    takes the place of the heads.
    """

    model: ModelOptions
    heads: tuple[Component, ...]
    tasks: tuple[str, ...]
    options: TaskOptions = field(default_factory=TaskOptions)
    limit: int | None = None
    mode: Mode = field(default_factory=Mode)

    def check(self) -> None:
        """Refuse, by a UserError, every mistake that shows before data or weights are loaded."""
        if not self.tasks:
            raise BadOption("--task names at least one task, such as --task words/past.")
        if twice := [name for name in self.tasks if self.tasks.count(name) > 1]:
            raise BadOption(f"--task names {twice[0]} twice; name each task once.")
        self.options.check_files()
        self.mode.check_beside(self.tasks[1:])
        for name in (*self.tasks, *self.mode.tasks):
            check_task_name(name, self.options)
        self.model.check().mask(self.heads)


def evaluate(
    evaluation: Evaluation, folder: Path, progress: Progress | None = None, *, command: str = ""
) -> TaskScores:
    """Score every task intact and with the heads knocked out; write `evaluation.json`.

    The change is the mean over examples of the difference in outcome, with its standard error: both
    runs answer the same examples. Raises UserError for a mistake, before the model is loaded where
    possible; RunFailed if the machine gives up; rows already measured are kept.
    """
    evaluation.check()
    model, options = evaluation.model, evaluation.options
    tasks = model.tasks(evaluation.tasks, options)
    own = replace(options, data={})  # --data is the task's own
    corrupted = model.tasks(evaluation.mode.tasks, own)
    intervention = Intervention(evaluation.mode, 0, corrupted[0] if corrupted else None)
    intervention.check_pairs(tasks[0], model.tokenizer)
    names = [str(head) for head in evaluation.heads]
    claimed = asdict(evaluation) | {"heads": names}
    with claim(folder, claimed, command) as store, model.answering() as engine:
        meters = Meters(engine, store, intervention=intervention)
        mask = meters.engine.loaded.grid.mask(evaluation.heads)
        compared = [
            score_both(meters.meter(task), mask, task.first(evaluation.limit), progress or Silent())
            for task in tasks
        ]
        result = TaskScores(
            schema=SCHEMA,
            model=model.name,
            fingerprint=meters.engine.loaded.fingerprint,
            grid=GridShape.of(meters.engine.loaded.grid),
            heads=names,
            mode=evaluation.mode.name,
            tasks=[scores_of(comparison, bool(evaluation.heads)) for comparison in compared],
            cost=RunCost.model_validate(meters.cost.as_dict()),
            command=command,
            versions=package_versions(),
        )
        write_json(folder / EVALUATION, result.as_dict())
    return result


def scores_of(compared: Comparison, cut: bool) -> TaskComparison:
    """One task's scores; what was not asked is None."""
    if not cut:
        return compared.result().model_copy(update={"knocked_out": None, "change": None})
    return compared.result(find_lost(compared))


def curve(
    folder: Path,
    most: int = 10,
    progress: Progress | None = None,
    allowed: Allowed | None = None,
) -> Curve:
    """Score a finished run's tasks with its 0, 1, ... `most` most needed heads knocked out.

    They are asked on the examples that the run drew its own curve on. Writes `curve.json` into the
    run's folder, and its figures and report again; uses the rows that lie there. `allowed` says
    what may be run for it, and who answers. Raises UserError if the folder holds no finished run,
    or the options mean nothing; RunFailed if the machine gives up; rows already measured are kept.
    """
    progress = progress or Silent()
    if most < 1:
        raise BadOption(f"--most must be 1 or more; got {most}.")
    run = FinishedRun.read(check_named(folder), allowed)
    heads = run.result.ranking()[:most]
    with run.opened() as (meters, tasks):
        examples = run.study.curve_examples(tasks)
        judged = [(meters.meter(tasks[name]), each) for name, each in examples.items()]
        drawn = draw_curve(meters.grid, heads, judged, progress)
        write_json(folder / CURVE, drawn.as_dict())
        rewrite_page(folder)
    return drawn
