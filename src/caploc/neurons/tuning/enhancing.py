"""Tune every task's located neurons alone, beside other arms, and see what gets better."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from caploc.cache import Cache, digest
from caploc.engine import BatchEngine
from caploc.errors import BadOption, UserError
from caploc.exhibits import drawing
from caploc.exhibits.exhibit import NOTHING, Exhibit
from caploc.folder import ENHANCEMENT, LEDGER, ROWS
from caploc.measurement import Cost, Meter, outcomes_by_example
from caploc.models.loading import CutModel
from caploc.neurons.batches import gold_means
from caploc.neurons.cells import Matrix, NamedRow, bounds, effects_matrix, mean_and_range, ranged
from caploc.neurons.study import Finding, NeuronLab, Reported, TaskSource, reopen_study, run_command
from caploc.neurons.tuning.enhancement import (
    ARMS,
    GOLD,
    LOCATED,
    METRIC,
    Measured,
    enhance,
    make_arms,
)
from caploc.neurons.tuning.training import TuningRecipe
from caploc.neurons.tuning.weights import degraded
from caploc.progress import Progress
from caploc.store import Question, Store
from caploc.workbench import Allowed

RANDOM = "random-layer-matched"
DRAWS = 5
LIMIT = 60
Results = Mapping[str, Any]  # of one task, as the file holds them, or of all by task


@dataclass(frozen=True)
class Enhancing:
    """What is tuned, how, and what it is judged on.

    `noise` above 0 starts from a damaged model: Gaussian noise of so many standard deviations on
    every feed-forward weight, for a model that has nothing left to learn. `tasks` are those tuned
    (none: all with located neurons); all of the study's are judged, on `limit` examples each.
    """

    recipe: TuningRecipe = field(default_factory=TuningRecipe)
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
) -> Reported:
    """Tune the neurons of the tasks of a finished `locate`; write `enhancement.json`."""

    def find(lab: NeuronLab) -> Finding:
        asked.check(lab.study.tasks)
        found, model = enhance_tasks(lab, asked), lab.study.model.name
        results = {"model": model, "enhancing": asdict(asked), "tasks": found}
        shown = [
            *(tuned_arms_exhibit(*each) for each in found.items()),
            gains_matrix_exhibit(found),
        ]
        title, lines = f"Tuning neurons of {model}", [describe_tuning(asked)]
        return Finding(
            ENHANCEMENT, results, title, tuning_headline(found), shown, lines, "enhancement"
        )

    return run_command(reopen_study(folder, progress, allowed), find, folder, command)


def enhance_tasks(lab: NeuronLab, asked: Enhancing) -> dict[str, Any]:
    """Enhance every task, from the cache where it was measured before.

    Raises:
        UserError: if no neuron is located for any of the tasks.
    """
    cache = Cache(lab.folder / LEDGER)
    tasks = [t for t in asked.tasks or lab.study.tasks if lab.found(t).located.any()]
    if not tasks:
        raise UserError(
            "No neuron is located for the tasks to tune; locate again with a lower --sigma, a "
            "--share, or more examples."
        )
    question = asdict(asked) | {"tasks": None, "study": asdict(lab.study)}
    question |= {"model": lab.bench.neurons.fingerprint, "texts": _texts(lab, asked)}
    return {
        task: cache.recall(question | {"enhanced": task}, partial(_enhance_task, lab, asked, task))
        for task in tasks
    }


def _texts(lab: NeuronLab, asked: Enhancing) -> str:
    """Name every token that is trained or judged on: a task's file may be edited."""
    wording = lab.bench.wording
    tokens = {}
    for task in lab.study.tasks:
        source = lab.source(task)
        spans = [*source.spans(wording), *source.judged_spans(wording, asked.limit)]
        tokens[task] = [asdict(span) for span in spans]
    return digest(tokens)


def _enhance_task(lab: NeuronLab, asked: Enhancing, task: str) -> dict[str, Any]:
    """Tune one task's neurons with its examples, beside the other arms.

    The task is judged by its own metric, and every task by its gold answers' probability.
    """
    found, model, seed = lab.found(task), lab.bench.neurons, asked.recipe.seed
    arms = make_arms(
        found.located,
        model.grid,
        scores=found.moments.mean,
        names=asked.arms,
        draws=asked.draws,
        seed=seed,
    )
    wording, source = lab.bench.wording, lab.source(task)
    gold = {name: lab.source(name).judged_spans(wording, asked.limit) for name in lab.study.tasks}

    def measure(loaded: CutModel) -> Measured:
        judged = {(name, GOLD): gold_means(loaded.model, spans) for name, spans in gold.items()}
        return {(task, METRIC): measure_outcomes(lab, loaded, source, asked.limit), **judged}

    lessons = source.lessons(wording)
    with degraded(model.model, asked.noise, seed) if asked.noise else nullcontext():
        enhanced = enhance(model, lessons, measure, arms, asked.recipe, progress=lab.progress)
    return enhanced.as_dict()


def measure_outcomes(
    lab: NeuronLab, loaded: CutModel, source: TaskSource, limit: int | None
) -> np.ndarray:
    """Measure each judging example's outcome with the model as it is now; nothing of it is kept.

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


def describe_tuning(asked: Enhancing) -> str:
    """Say what was done."""
    recipe = asked.recipe
    start = (
        f"The start is a damaged model: noise of {asked.noise:g} standard deviations on every "
        "feed-forward weight. "
        if asked.noise
        else ""
    )
    return (
        f"{start}Each arm is tuned for {recipe.steps} steps of {recipe.batch_size} examples on the "
        "task's training examples, by the learning rate that is best for it on examples held out "
        "of those. Recipe and arms are ours; the paper's are not known to us."
    )


def tuning_headline(found: Results) -> str:
    """Say the answer in a sentence; none where no random neurons were tuned beside."""
    if not any(_control_of(each, task) for task, each in found.items()):
        return "Located neurons were not tuned beside random ones, so nothing is said of chance"
    beaten = sum(beats_every_draw(each, task) for task, each in found.items())
    return (
        f"For {beaten} of {len(found)} tasks tuning its located neurons gains more log-probability "
        "than tuning any draw of as many random neurons of the same layers"
    )


def beats_every_draw(result: Results, task: str) -> bool:
    """Ask whether the located arm gained more on its own task than every layer-matched draw."""
    control = _control_of(result, task)
    return bool(control) and all(control["located"] > each for each in control["changes"])


def _control_of(result: Results, task: str) -> Any:
    """Find the layer-matched draws' part, None if they were not tuned."""
    wanted = (RANDOM, task, GOLD)
    for control in result["controls"]:
        if (control["arm"], control["task"], control["measure"]) == wanted:
            return control
    return None


def _changes_of(arms: Sequence[Results], task: str, measure: str) -> Iterator[Any]:
    """Find the changes of several arms on a task, as far as they were measured."""
    for arm in arms:
        yield from (c for c in arm["changes"] if (c["task"], c["measure"]) == (task, measure))


def tuned_arms_exhibit(task: str, result: Results) -> Exhibit:
    """Show one task's arms: what each gains on the task itself."""
    drawn: dict[str, list[Any]] = {}
    for arm in result["arms"]:
        drawn.setdefault(arm["arm"], []).append(arm)
    rows: list[NamedRow] = []
    for name, arms in drawn.items():
        fits = [arm["fit"] for arm in arms if arm["fit"] is not None]
        best = [f"{f['best']['rate']:g}{' (edge)' if f['at_edge'] else ''}" for f in fits]
        gold = list(_changes_of(arms, task, GOLD))
        single = len(arms) == 1
        ends = [f"{gold[0]['before']:z.3f} to {gold[0]['after']:z.3f}"] if single and gold else []
        rows.append(
            {
                "tuned": name if single else f"{name}, {len(arms)} draws",
                "parameters": f"{fits[0]['parameters']:,}" if fits else NOTHING,
                "best rate": ", ".join(dict.fromkeys(best)) or NOTHING,
                "change of score": _over_draws(list(_changes_of(arms, task, METRIC))),
                "change of log-probability": _over_draws(gold),
                "log-probability": "".join(ends) or NOTHING,
            }
        )
    notes = [
        "Changes with 95 % intervals over examples, paired; of draws the mean, the least and the "
        f"most. Tuned on {result['trained_on']} examples."
    ]
    if control := _control_of(result, task):
        notes.append(
            f"Located against the draws in the same layers, by log-probability: excess "
            f"{ranged(control['excess'])} nats a token, p {control['p']:.3f} with "
            f"{len(control['changes'])} draws."
        )
    draw = partial(
        drawing.draw_points,
        list(drawn),
        {"log-probability": [_drawn(list(_changes_of(a, task, GOLD))) for a in drawn.values()]},
        label="change of log-probability, nats a token",
    )
    name = f"enhancement-{task.replace('/', '-')}"
    return Exhibit.of(name, f"Tuning for {task}", rows, notes, draw)


def _over_draws(changes: Sequence[Results]) -> str:
    """Write the change of one arm with its interval, of several draws the mean and the ends."""
    if len(changes) == 1:
        return ranged(changes[0]["change"])
    mean, least, most = _drawn(changes)
    return NOTHING if mean is None else f"{mean:z.3f} ({least:z.3f} to {most:z.3f})"


def _drawn(changes: Sequence[Results]) -> drawing.Interval:
    """Draw the change of one arm with its interval, of several draws the mean and the ends."""
    if len(changes) == 1:
        return bounds(changes[0]["change"])
    return mean_and_range([each["change"]["mean"] for each in changes])


def gain_matrix(found: Results, arm: str = LOCATED) -> tuple[list[str], list[str], Matrix]:
    """List tasks tuned, tasks judged, and each judged one's change of log-probability."""
    first = next(iter(found.values()))["arms"][0]["changes"]
    judged = list(dict.fromkeys(change["task"] for change in first))
    table = np.full((len(found), len(judged)), np.nan)
    for row, result in enumerate(found.values()):
        own = [each for each in result["arms"] if each["arm"] == arm]
        for column, task in enumerate(judged):
            means = [each["change"]["mean"] for each in _changes_of(own, task, GOLD)]
            if means:
                table[row, column] = np.mean(means)
    return list(found), judged, table


def gains_matrix_exhibit(found: Results) -> Exhibit:
    """Show what tuning one task's neurons changes on every task."""
    tuned, judged, located = gain_matrix(found)
    return effects_matrix(
        "enhancement-matrix",
        "Log-probability that each task (column) gains when another's neurons (row) are tuned",
        (tuned, judged),
        (located, gain_matrix(found, RANDOM)[2]),
        ("tuned", "In brackets the mean of random neurons of the same layers. Nats a token."),
    )
