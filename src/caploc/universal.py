"""Heads that several tasks need, from finished runs of one model."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caploc import designs
from caploc.components import NAME, Component, Grid, HeadFile, parse_component, write_heads
from caploc.errors import BadOption, UserError
from caploc.finished import FinishedRun
from caploc.folder import UNIVERSAL, claim, package_versions, write_json
from caploc.measurement import Meter, Meters
from caploc.options import ZERO
from caploc.progress import Progress, Silent
from caploc.recovery import paired_standard_error
from caploc.search import column_mask
from caploc.stats import localization
from caploc.tasks.task import Task
from caploc.validation import score_both, scored_differences

EXAMPLES = 100  # of each task that a candidate is tried on
NAMED_BY = 2  # runs among whose first heads a candidate is


@dataclass(frozen=True)
class Trials:
    """Which heads are tried alone on which tasks."""

    runs: Sequence[FinishedRun]
    families: Mapping[str, str]  # of tasks; a task that is not named is a family of its own
    examples: int = EXAMPLES

    def check(self) -> None:
        """Refuse what cannot be compared; raises UserError.

        That is fewer than two tasks, more than one model, a family of an unknown task.
        """
        names = [run.study.task for run in self.runs]
        if self.examples < 2:
            raise BadOption(f"--examples must be 2 or more; got {self.examples}.")
        if len(set(names)) < len(names) or len(names) < 2:
            raise UserError(
                f"Universal heads are those of several tasks; got runs of {', '.join(names)}. Name "
                "the folders of two or more runs, each of another task."
            )
        if len({run.result.model.fingerprint for run in self.runs}) > 1:
            models = ", ".join(dict.fromkeys(run.study.model.name for run in self.runs))
            raise UserError(f"The runs are of different models ({models}); name runs of one.")
        if len(kinds := {run.result.grid.components: run.folder for run in self.runs}) > 1:
            named = ", ".join(f"{kind} in {folder}" for kind, folder in kinds.items())
            raise UserError(
                f"The runs knocked out different kinds of components ({named}); name runs of one."
            )
        if others := [run for run in self.runs if run.result.method.mode != ZERO]:
            raise UserError(
                f"The run in {others[0].folder} was made with --mode {others[0].result.method.mode}"
                ", and a universal head is one that tasks cannot do without; name runs of --mode "
                f"{ZERO}."
            )
        if unknown := [task for task in self.families if task not in names]:
            raise BadOption(
                f"--family names {unknown[0]}, which is no run's task; they are {', '.join(names)}."
            )

    def candidates(self) -> list[Component]:
        """Heads among the first of two runs or more, and those that a run saw break everything."""
        named = Counter(name for run in self.runs for name in run.result.top)
        often = [name for name, runs in named.most_common() if runs >= NAMED_BY]
        critical = [name for run in self.runs for name in run.result.search.critical]
        return [parse_component(name) for name in dict.fromkeys([*often, *critical])]


def find_universal(
    trials: Trials, folder: Path, progress: Progress | None = None, *, command: str = ""
) -> dict[str, Any]:
    """Try the candidates alone on every run's task; write `universal.json` and `heads.json`.

    The second holds the universal heads, for `--exclude`. Raises UserError if the runs cannot be
    compared; RunFailed if the machine gives up; rows already measured are kept.
    """
    trials.check()
    first = trials.runs[0]
    tasks = [run.tasks()[run.study.task] for run in trials.runs]
    check_direction(tasks)
    progress = progress or Silent()
    claimed = {"model": first.written.study["model"], "universal": [t.name for t in tasks]}
    with claim(folder, claimed, command) as store, first.answering() as engine:
        loaded = engine.loaded
        meters = Meters(engine, store, first.result.grid.components)
        measured = {
            task.name: tried(meters.meter(task), meters.grid, trials, progress) for task in tasks
        }
        found = localization.judge_universality(
            {name: effects for name, (_, effects) in measured.items()},
            {name: intact for name, (intact, _) in measured.items()},
            trials.families,
        )
        told = {
            "schema": 1,
            "model": first.study.model.name,
            "examples": trials.examples,
            **found.as_dict(),
            "tasks": [
                leave_out_universal(run, found.universal)
                | {
                    "metric": task.metric.name,
                    "intact": measured[task.name][0].score,
                    "examples": min(task.size, trials.examples),
                }
                for run, task in zip(trials.runs, tasks, strict=True)
            ],
            "cost": meters.cost.as_dict(),
            "command": command,
            "versions": package_versions(),
        }
        write_json(folder / UNIVERSAL, told)
        heads = tuple(loaded.grid.named_in(found.universal))
        file = HeadFile(heads, loaded.grid, told["model"], loaded.fingerprint)
        write_heads(folder / NAME, file)
    return told


def check_direction(tasks: Sequence[Task]) -> None:
    """Refuse, by a BadOption, tasks of which a head cannot cost a share of the score."""
    for task in tasks:
        if not task.metric.higher_is_better:
            raise BadOption(
                f"{task.metric.name} of {task.name} is better when lower, so that no share of it "
                "can be lost; leave that run out."
            )


def tried(
    meter: Meter, grid: Grid[Any], trials: Trials, progress: Progress
) -> tuple[localization.Intact, dict[Component, localization.HeadCost]]:
    """The intact score of a task, and what each candidate alone changes."""
    size = meter.task.size
    examples = designs.draw_examples(size, min(size, trials.examples), seed=0)
    effects = {}
    for head in trials.candidates():
        mask = column_mask(grid.size, [grid.column(head)])
        both = score_both(meter, mask, examples, progress)
        lost, binary = scored_differences(both.intact_rows, both.knocked_out_rows)
        if lost.size > 1:  # of answers that are all lost the plain error would be 0
            error = paired_standard_error(lost, binary=binary)
            effects[head] = localization.HeadCost(float(lost.mean()), error)
    whole = meter.score(meter.under(column_mask(grid.size, []), examples, progress, "intact"))
    intact = localization.Intact(whole.score or 0.0, whole.stderr or 0.0, meter.task.metric.chance)
    return intact, effects


def leave_out_universal(run: FinishedRun, struck: Sequence[str]) -> dict[str, Any]:
    """A run's first heads, and those that are left and follow once universal ones are out."""
    top, order = run.result.top, [head for head in run.result.ranking() if head not in struck]
    return {"task": run.study.task, "top": top, "own": order[: len(top)]}
