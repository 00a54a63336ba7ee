"""A study from end to end: the one file that knows the order of the stages."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from caploc import designs
from caploc.engine import BatchEngine
from caploc.errors import BadOption
from caploc.findings import Findings, Stages, write_findings
from caploc.folder import claim
from caploc.lookup import pick
from caploc.measurement import outcomes_by_example, search
from caploc.progress import Progress, Silent
from caploc.search import METHODS, Settings, column_mask
from caploc.tasks.catalog import TaskOptions, check_task_name
from caploc.tasks.harness import HarnessTask
from caploc.validation import check_limit, compare, controls
from caploc.workbench import ModelOptions, Workbench


@dataclass(frozen=True)
class Study:
    """What to do: one task on one model with one method. Everything else follows from it.

    `budget`, in rows, decides the number of masks (or, for methods that draw none, of examples).
    `other_tasks` are scored before and after, to see what else breaks; `limit` caps the examples
    of every final score; `controls` is the number of random sets of heads to compare with.
    """

    model: ModelOptions
    task: str
    method: str = "css"
    settings: Settings = field(default_factory=Settings)
    examples: int = 100
    budget: int | None = None
    options: TaskOptions = field(default_factory=TaskOptions)
    other_tasks: tuple[str, ...] = ()
    controls: int = 5
    limit: int | None = None

    def check(self) -> "Study":
        """Refuse every mistake that can be seen before data or weights are loaded.

        Returns the study with its budget spent.

        Raises:
            UserError: in one sentence.
        """
        method = pick(METHODS, self.method, "method")
        self.settings.check()
        self.options.check()
        if self.examples < 1:
            raise BadOption(f"--examples must be 1 or more; got {self.examples}.")
        if self.controls < 0:
            raise BadOption(f"--controls must be 0 or more; got {self.controls}.")
        check_limit(self.limit)
        for name in (self.task, *self.other_tasks):
            check_task_name(name)
        heads = self.model.check().size
        sized = self.sized(heads)
        method.search(heads, [0], sized.settings)
        return sized

    def sized(self, heads: int) -> "Study":
        """The study with its budget of rows spent: on masks, or on examples.

        Raises:
            BadOption: if the budget does not buy one round.
        """
        if self.budget is None:
            return self
        method = METHODS[self.method]
        if method.draws_masks:
            need = self.examples
            bought = self.budget // need
            sized = replace(self, settings=replace(self.settings, masks=bought))
        else:
            need = method.search(heads, [0], self.settings).rows
            bought = self.budget // need
            sized = replace(self, examples=bought)
        if bought < 1:
            raise BadOption(
                f"--budget {self.budget} is too small: {self.method} needs {need} rows or more."
            )
        return replace(sized, budget=None)


def run(
    study: Study,
    folder: Path,
    progress: Progress | None = None,
    *,
    command: str = "",
    engine: BatchEngine | None = None,
) -> Findings:
    """Design, measurement, recovery, validation and report, in that order.

    `engine` may be one already loaded for the study's model. Whatever was measured in `folder`
    before is used, not measured again.

    Raises:
        UserError: for a mistake in the study, before the model is loaded where possible.
        RunFailed: if the machine gives up; rows already measured are kept.
    """
    progress = progress or Silent()
    study = study.check()
    (task,) = study.model.tasks([study.task], study.options)
    others = study.model.tasks(study.other_tasks, study.options.plain())
    examples = designs.draw_examples(task.size, study.examples, seed=study.settings.seed)
    with claim(folder, asdict(study), command) as store:
        bench = Workbench(engine or study.model.engine(), store)
        stages = locate(study, bench, task, examples, progress)
        stages = validated(study, bench, stages, [task, *others], progress)
        fields = asdict(study) | {"draws_masks": METHODS[study.method].draws_masks}
        return write_findings(folder, fields, stages, bench.cost, command)


def locate(
    study: Study, bench: Workbench, task: HarnessTask, examples: list[int], progress: Progress
) -> Stages:
    """Measure what the method's search asks for, and estimate every head's effect."""
    heads = bench.engine.grid.size
    method = METHODS[study.method]
    plan = method.search(heads, examples, study.settings)
    meter = bench.meter(task)
    intact = meter.under(column_mask(heads, []), examples, progress, "intact")
    seen = search(meter, plan, heads, progress)
    estimate = method.estimator().fit(seen, outcomes_by_example(intact))
    return Stages(
        loaded=bench.engine.loaded,
        task=task,
        examples=examples,
        intact=meter.score(intact),
        seen=seen,
        estimate=estimate,
        chosen=plan.chosen(seen, estimate),
    )


def validated(
    study: Study, bench: Workbench, stages: Stages, tasks: Sequence[HarnessTask], progress: Progress
) -> Stages:
    """Score the chosen heads on every example, on other tasks, and against random heads."""
    grid = bench.engine.grid
    mask = column_mask(grid.size, stages.chosen)
    # The claim is made in the task's own metric, whatever signal found the heads.
    meters = [bench.meter(task.in_metric()) for task in tasks]
    compared = [compare(meter, mask, study.limit, progress) for meter in meters]
    masks = designs.matched(
        mask, grid.layer_slices, study.controls, seed=study.settings.seed + designs.CONTROLS
    )
    control = controls(meters[0], mask, masks, stages.examples, progress)
    return replace(stages, comparisons=compared, controls=control)
