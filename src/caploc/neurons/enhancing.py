"""Tune every task's located neurons alone, beside other arms, and see what gets better."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from caploc.engine import BatchEngine
from caploc.engine.encoding import Span
from caploc.errors import BadOption, UserError
from caploc.exhibits.exhibit import Exhibit
from caploc.exhibits.page import write_exhibits
from caploc.folder import ENHANCEMENT, LEDGER, ROWS, versions, write_json
from caploc.ledger import Ledger, digest
from caploc.measurement import Cost, Meter, outcomes_by_example
from caploc.models.loading import CutModel
from caploc.neurons.examples import Source
from caploc.neurons.exhibits.enhanced import headline, shown
from caploc.neurons.study import NeuronLab, opened, read_study
from caploc.neurons.tuning import ARMS, Evaluation, Recipe, arms, degraded, enhance
from caploc.progress import Progress
from caploc.store import Question, Store
from caploc.workbench import Allowed

DRAWS = 5
LIMIT = 60


@dataclass(frozen=True)
class Enhancing:
    """What is tuned, how, and what it is judged on.

    `noise` above 0 starts from a damaged model: Gaussian noise of so many standard deviations on
    every feed-forward weight, for a model that has nothing left to learn. `tasks` are those tuned
    (none: all with located neurons); all of the study's are judged, on `limit` examples each.
    """

    recipe: Recipe = field(default_factory=Recipe)
    arms: tuple[str, ...] = tuple(ARMS)
    draws: int = DRAWS
    noise: float = 0.0
    limit: int | None = LIMIT
    tasks: tuple[str, ...] = ()

    def check(self, known: Sequence[str]) -> "Enhancing":
        """Refuse what means nothing; `known` are the study's tasks.

        Raises:
            BadOption: in one sentence.
        """
        self.recipe.check()
        if self.draws < DRAWS:
            raise BadOption(f"--draws must be {DRAWS} or more; got {self.draws}.")
        if unknown := [arm for arm in self.arms if arm not in ARMS]:
            raise BadOption(f"There is no arm {unknown[0]!r}; choose from {', '.join(ARMS)}.")
        if strange := [task for task in self.tasks if task not in known]:
            raise BadOption(
                f"{strange[0]} is no task of the run; it has neurons of {', '.join(known)}."
            )
        if self.noise < 0:
            raise BadOption(f"--noise must be 0 or more; got {self.noise:g}.")
        if self.limit is not None and self.limit < 2:
            raise BadOption(f"--limit must be 2 or more; got {self.limit}.")
        return self


def enhance_located(
    folder: Path,
    asked: Enhancing,
    progress: Progress | None = None,
    *,
    command: str = "",
    allowed: Allowed | None = None,
) -> tuple[dict[str, Any], list[Exhibit]]:
    """Tune the neurons of the tasks of a finished `locate`; write `enhancement.json`.

    Raises:
        UserError: if the folder holds no run, or nothing was located in it.
        RunFailed: if the machine gives up; tasks already tuned are kept.
    """
    study, first = read_study(folder, allowed)
    asked.check(study.tasks)
    with opened(study, folder, progress, first) as lab:
        found = enhanced(lab, asked)
        result = {
            "schema": 1,
            "model": study.model.name,
            "enhancing": asdict(asked),
            "tasks": found,
            "command": command,
            "versions": versions(),
        }
        write_json(folder / ENHANCEMENT, result)
    exhibits = shown(found)
    title = f"Tuning neurons of {study.model.name}"
    write_exhibits(folder / "enhancement", title, headline(found), words(asked), exhibits, command)
    return result, exhibits


def words(asked: Enhancing) -> list[str]:
    """What was done, in words."""
    recipe = asked.recipe
    start = (
        f"The start is a damaged model: noise of {asked.noise:g} standard deviations on every "
        "feed-forward weight. "
        if asked.noise
        else ""
    )
    return [
        f"{start}Each arm is tuned for {recipe.steps} steps of {recipe.batch_size} examples on the "
        "task's training examples, by the learning rate that is best for it on examples held out "
        "of those. Recipe and arms are ours; the paper's are not known to us."
    ]


def enhanced(lab: NeuronLab, asked: Enhancing) -> dict[str, Any]:
    """Every task's enhancement, from the ledger where it was measured before.

    Raises:
        UserError: if no neuron is located for any of the tasks.
    """
    ledger = Ledger(lab.folder / LEDGER)
    tasks = [t for t in asked.tasks or lab.study.tasks if lab.found(t).located.any()]
    if not tasks:
        raise UserError(
            "No neuron is located for the tasks to tune; locate again with a lower --sigma, a "
            "--share, or more examples."
        )
    question = asdict(asked) | {"tasks": None, "study": asdict(lab.study)}
    question |= {"model": lab.bench.neurons.fingerprint, "texts": texts(lab, asked)}
    return {
        task: ledger.recall(question | {"enhanced": task}, partial(enhanced_task, lab, asked, task))
        for task in tasks
    }


def texts(lab: NeuronLab, asked: Enhancing) -> str:
    """A short name of every token that is trained or judged on: a task's file may be edited."""
    wording, told = lab.bench.wording, {}
    for task in lab.study.tasks:
        source = lab.source(task)
        spans = [*source.spans(wording), *source.judged_spans(wording, asked.limit)]
        told[task] = [asdict(span) for span in spans]
    return digest(told)


def enhanced_task(lab: NeuronLab, asked: Enhancing, task: str) -> dict[str, Any]:
    """One task's neurons tuned with its examples, beside the other arms."""
    found, model, seed = lab.found(task), lab.bench.neurons, asked.recipe.seed
    chosen = arms(
        found.located,
        model.grid,
        scores=found.moments.mean,
        names=asked.arms,
        draws=asked.draws,
        seed=seed,
    )
    spans = lab.source(task).lessons(lab.bench.wording)
    damaged = degraded(model.model, asked.noise, seed) if asked.noise else nullcontext()
    with damaged:
        return enhance(
            model, spans, evaluation(lab, asked, task), chosen, asked.recipe, progress=lab.progress
        ).as_dict()


def evaluation(lab: NeuronLab, asked: Enhancing, task: str) -> Evaluation:
    """The tuned task by its own metric, and every task by its gold answers' probability."""
    gold: Mapping[str, Sequence[Span]] = {
        name: lab.source(name).judged_spans(lab.bench.wording, asked.limit)
        for name in lab.study.tasks
    }
    source = lab.source(task)
    return Evaluation(lambda loaded: {task: answered(lab, loaded, source, asked.limit)}, gold)


def answered(lab: NeuronLab, loaded: CutModel, source: Source, limit: int | None) -> np.ndarray:
    """Each judging example's outcome with the model as it is now; nothing of it is kept.

    The engine is made anew, because what an engine has learnt of a model holds for its weights; so
    are the rows.
    """
    engine, examples = BatchEngine(loaded, lab.study.model.batch_size), source.judged(limit)
    task, intact = source.judging, np.zeros(loaded.grid.size, dtype=bool)
    with TemporaryDirectory() as place, Store(Path(place) / ROWS) as store:
        question = Question("tuned", loaded.dtype, task.name, task.version, task.outcome_kind)
        meter = Meter(engine, store, task, question, Cost())
        rows = meter.under(intact, examples, lab.progress, f"{source.name}, tuned")
    known = outcomes_by_example(rows)
    return np.array([known.get(example, np.nan) for example in examples])
