"""Which heads are universal: their loss costs several kinds of tasks. Asked of finished runs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil, isfinite
from pathlib import Path
from typing import Any

from scipy import stats

from caploc import designs
from caploc.components import NAME, Component, Grid, HeadFile, parse_component, write_heads
from caploc.errors import BadOption, UserError
from caploc.finished import FinishedRun
from caploc.folder import UNIVERSAL, claim, package_versions, write_json
from caploc.measurement import Meter, Meters
from caploc.options import ZERO
from caploc.pairs import identify
from caploc.progress import Progress, Silent
from caploc.recovery import paired_standard_error
from caploc.search import column_mask
from caploc.tasks.task import Task
from caploc.validation import score_both, scored_differences
from caploc.wording import called_apart

EXAMPLES = 100  # of each task that a candidate is tried on
NAMED_BY = 2  # runs among whose first heads a candidate is
WIDTH = 1.96  # standard errors on either side of a 95 % interval
SHARE = 0.1  # of the intact score above chance, that losing the head must cost
LEVEL = 0.05  # false discovery rate over all heads and tasks
FEWEST_FAMILIES = 2


@dataclass(frozen=True)
class HeadCost:
    """The change of a task's score when one head is knocked out, and its standard error.

    In score units, and negative where the head is needed. The error is of the paired difference
    over examples; 0 is taken at its word, so that few examples that all change must not give it.
    """

    effect: float
    stderr: float


@dataclass(frozen=True)
class Intact:
    """A task's score with no head knocked out, its standard error, and the score of guessing."""

    score: float
    stderr: float
    chance: float = 0.0

    @property
    def above(self) -> float:
        """What there is to lose."""
        return self.score - self.chance


@dataclass(frozen=True)
class TaskVerdict:
    """One head on one task.

    `share` is the share of the intact score above chance that its loss costs, `q` the false
    discovery rate at which the task would be said to need it; at `LEVEL` it is `needed`.
    """

    task: str
    family: str
    effect: float
    stderr: float
    share: float
    p: float
    q: float
    needed: bool


@dataclass(frozen=True)
class HeadVerdict:
    """A head, the families of tasks that need it, and whether it is universal.

    It is where `wanted` of the `families` in which it was tried surely need it: half of them, and
    two at least.
    """

    head: str
    universal: bool
    needed_by: list[str]
    families: int
    wanted: int
    trials: list[TaskVerdict]


@dataclass(frozen=True)
class Universality:
    """All candidates, universal ones first, and tasks with nothing to lose, which are left out."""

    candidates: list[HeadVerdict]
    left_out: list[str]
    share: float = SHARE

    @property
    def universal(self) -> list[str]:
        return [each.head for each in self.candidates if each.universal]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"universal": self.universal}


@dataclass(frozen=True)
class Trials:
    """Which heads are tried alone on which tasks."""

    runs: Sequence[FinishedRun]
    families: Mapping[str, str]  # of tasks, or files of pairs; one not named is its own family
    examples: int = EXAMPLES

    @property
    def tasks(self) -> dict[str, str]:
        """The task of each run, by what tables and any run of it call it."""
        named = [run.study.task for run in self.runs]
        short = {title: task for task, title in called_apart(named).items()}
        return short | {identify(task): task for task in named}

    @property
    def kinds(self) -> dict[str, str]:
        """The family of each run's task that has one."""
        return {self.tasks[identify(name)]: family for name, family in self.families.items()}

    def check(self) -> None:
        """Refuse what cannot be compared; raises UserError.

        That is fewer than two tasks, more than one model, a family of an unknown task.
        """
        names = [run.study.task for run in self.runs]
        if self.examples < 2:
            raise BadOption(f"--examples must be 2 or more; got {self.examples}.")
        if len(set(map(identify, names))) < len(names) or len(names) < 2:
            raise UserError(
                f"Universal heads are those of several tasks; got runs of {', '.join(names)}. Name "
                "the folders of two or more runs, each of another task."
            )
        if len({run.result.model.fingerprint for run in self.runs}) > 1:
            models = ", ".join(f"{run.study.model.name} in {run.folder}" for run in self.runs)
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
        if unknown := [task for task in self.families if identify(task) not in self.tasks]:
            known = ", ".join(called_apart(names).values())
            raise BadOption(
                f"--family names {unknown[0]}, which is no run's task; they are {known}."
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
        found = judge_universality(
            {name: effects for name, (_, effects) in measured.items()},
            {name: intact for name, (intact, _) in measured.items()},
            trials.kinds,
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
) -> tuple[Intact, dict[Component, HeadCost]]:
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
            effects[head] = HeadCost(float(lost.mean()), error)
    whole = meter.score(meter.under(column_mask(grid.size, []), examples, progress, "intact"))
    intact = Intact(whole.score or 0.0, whole.stderr or 0.0, meter.task.metric.chance)
    return intact, effects


def leave_out_universal(run: FinishedRun, struck: Sequence[str]) -> dict[str, Any]:
    """A run's first heads, and those that are left and follow once universal ones are out."""
    top, order = run.result.top, [head for head in run.result.ranking() if head not in struck]
    return {"task": run.study.task, "top": top, "own": order[: len(top)]}


def judge_universality(
    effects: Mapping[str, Mapping[Component, HeadCost]],
    intact: Mapping[str, Intact],
    families: Mapping[str, str] | None = None,
) -> Universality:
    """Find the heads that at least half of the families of tasks need, and two.

    `effects` are of single heads, by task; `families` name the family of a task, which is otherwise
    one of its own: twins such as gsm8k and arithmetic must not make a head universal together. A
    family needs a head if one of its tasks does. For each head and task the hypothesis is that its
    loss costs no more than `SHARE` of the intact score above chance,

        z = (D - share (I - c)) / (se(D) + share se(I)),   D = -effect,

    one-sided; the error is an upper bound, whatever the correlation of D and I on the same
    examples. All of these tests together have false discovery rate `LEVEL` (Benjamini and Hochberg,
    1995).
    """
    # Where the model is not above chance beyond doubt, a share of the score means nothing.
    clear = {
        task: tried
        for task, tried in effects.items()
        if intact[task].above > WIDTH * intact[task].stderr
    }
    heads = sorted({head for tried in effects.values() for head in tried})
    named = {task: (families or {}).get(task, task) for task in clear}
    trials = tested_heads(clear, intact, named)
    found = [judge_head(head, [each for whose, each in trials if whose == head]) for head in heads]
    found.sort(key=lambda each: (not each.universal, -len(each.needed_by)))
    return Universality(found, [task for task in effects if task not in clear])


def tested_heads(
    effects: Mapping[str, Mapping[Component, HeadCost]],
    intact: Mapping[str, Intact],
    families: Mapping[str, str],
) -> list[tuple[Component, TaskVerdict]]:
    """Test every head on every task on which it was measured."""
    asked = [
        (head, task, each)
        for task, tried in effects.items()
        for head, each in tried.items()
        if isfinite(each.effect) and isfinite(each.stderr)
    ]
    if not asked:
        return []
    p = [loss_p_value(each, intact[task]) for _, task, each in asked]
    q = stats.false_discovery_control(p).tolist()
    rows = []
    for (head, task, each), chance, rate in zip(asked, p, q, strict=True):
        figures = (each.effect, each.stderr, -each.effect / intact[task].above, chance, rate)
        rows.append((head, TaskVerdict(task, families[task], *figures, needed=rate <= LEVEL)))
    return rows


def loss_p_value(effect: HeadCost, intact: Intact) -> float:
    """Compute a one-sided p of the hypothesis that the loss costs no more than the share."""
    error = effect.stderr + SHARE * intact.stderr
    surplus = -effect.effect - SHARE * intact.above
    if error == 0:
        return 0.0 if surplus > 0 else 1.0
    return float(stats.norm.sf(surplus / error))


def judge_head(head: Component, trials: list[TaskVerdict]) -> HeadVerdict:
    """Judge one head by its trials on every task."""
    families = dict.fromkeys(each.family for each in trials)
    needed = list(dict.fromkeys(each.family for each in trials if each.needed))
    wanted = max(FEWEST_FAMILIES, ceil(len(families) / 2))
    universal = len(needed) >= wanted
    return HeadVerdict(str(head), universal, needed, len(families), wanted, trials)
