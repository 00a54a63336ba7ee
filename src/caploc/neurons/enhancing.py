"""Does tuning the located neurons help, more than tuning as many others?

Every arm is tuned on the same lessons, evaluated as a plain model, and undone. The paper compares
located neurons with random ones; the other arms are ours.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size
from jaxtyping import Float64

from caploc.cache import Cache, digest
from caploc.contents import restore
from caploc.cost import Cost
from caploc.engine.batch import BatchEngine
from caploc.engine.encoding import Span
from caploc.errors import BadOption, OutOfMemory, pick
from caploc.files import whole_folder
from caploc.folder import ENHANCEMENT, LEDGER, ROWS
from caploc.measurement import Meter
from caploc.models.loading import CutModel
from caploc.neurons.engine import gold_means
from caploc.neurons.erasure import DRAWS, Effects, Erasing
from caploc.neurons.report import (
    NOTHING,
    Exhibit,
    Reported,
    chart_points,
    join_draws,
    over_draws,
    points_of,
    report,
    tabulate_effects,
    write_interval,
    write_number,
)
from caploc.neurons.study import (
    NeuronLab,
    TaskSource,
    outcomes_under,
    reopen_study,
)
from caploc.neurons.training import (
    ARMS,
    LOCATED,
    RANDOM,
    USUAL,
    Lessons,
    TuningArm,
    TuningFit,
    TuningRecipe,
    check_tunable,
    find_best_rate,
    make_arms,
    make_lessons,
)
from caploc.neurons.weights import TrainableRows
from caploc.progress import Progress
from caploc.stats import Interval, JsonRecord, paired_interval, plain_value
from caploc.stats.chance import FEWEST, specificity
from caploc.store import Question, Store
from caploc.workbench import Allowed

METRIC, GOLD = "metric", "gold log-probability"
Outcomes = Float64[np.ndarray, " examples"]
Measured = dict[tuple[str, str], Outcomes]  # by task and measure; NaN where there is no outcome
# The model it gets has other weights every time, so it must keep nothing of an earlier call.
Measure = Callable[[CutModel], Measured]
Recall = Callable[[dict[str, Any], Callable[[], dict[str, Any]]], dict[str, Any]]


@dataclass(frozen=True)
class TuningChange(JsonRecord):
    """What an arm did to one task under one measure: mean outcome before and after.

    `change` is their difference with its paired bootstrap interval over the examples that have
    both outcomes.
    """

    task: str
    measure: str
    before: float
    after: float
    change: Interval


@dataclass(frozen=True)
class Tuned(JsonRecord):
    """One arm: what was tuned (`fit` None: nothing), and what that changed.

    `neurons` is the number tuned, None where the arm is not one of neurons. `failed` says why
    nothing is known of an arm that ran out of memory.
    """

    arm: str
    draw: int | None
    neurons: int | None
    fit: TuningFit | None
    changes: tuple[TuningChange, ...]
    failed: str | None = None


@dataclass(frozen=True)
class TuningControl(JsonRecord):
    """The draws of a random arm on one task under one measure, beside the located neurons.

    `excess` is the located neurons' change less the mean of the draws' `changes`, by bootstrap over
    examples; `gain` the same in standard deviations of draws, None if they do not differ. `p` is
    one-sided: the share of changes, the located one included, that reach it, so with n draws never
    below 1 / (n + 1).
    """

    arm: str
    task: str
    measure: str
    located: float
    changes: tuple[float, ...]
    excess: Interval
    gain: float | None
    p: float | None


@dataclass(frozen=True)
class TuningResult(JsonRecord):
    """All arms, and the located one held against the random ones.

    `trained_on` and `held_out` count the training examples that weights were fitted to and the
    learning rate was chosen by.
    """

    recipe: TuningRecipe
    trained_on: int
    held_out: int
    arms: tuple[Tuned, ...]
    controls: tuple[TuningControl, ...]


@dataclass(frozen=True)
class ArmTuner:
    """Tunes one arm after another on the same lessons, and keeps each as it ends.

    `recall` is given an arm's question and what measures it, and may know the answer from before.
    """

    loaded: CutModel
    given: Lessons
    measure: Measure
    recipe: TuningRecipe
    progress: Progress | None
    recall: Recall

    @cached_property
    def before(self) -> Measured:
        return _read(
            self.recall({"arm": None}, lambda: {"after": _written(self.measure(self.loaded))})
        )

    def tune(self, arm: TuningArm) -> dict[str, Any]:
        """Tune an arm and measure it, as files hold both."""
        model = self.loaded.model
        with arm.open(model, self.recipe) or nullcontext() as trainable:
            if trainable is None:
                return {"fit": None, "after": _written(self.before)}
            how = self.given, self.recipe, self.progress, f"tuning {arm.label}"
            fit = find_best_rate(model, trainable, *how)
            with trainable.written():
                return {"fit": fit.as_dict(), "after": _written(self.measure(self.loaded))}

    def attempt(self, arm: TuningArm) -> tuple[Tuned, Measured | None]:
        """Tell what an arm did, and what was measured after it: None if it ran out of memory."""
        neurons = None if arm.chosen is None or arm.name == "lora" else int(arm.chosen.sum())
        own = Tuned(arm.name, arm.draw, neurons, None, ())
        try:
            found = self.recall(arm.question(), partial(self.tune, arm))
        except Exception as error:
            if not isinstance(error, OutOfMemory) and not should_reduce_batch_size(error):
                raise
            why = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
            own = replace(
                own,
                failed=f"The arm {arm.label} ran out of memory ({why}); the same command tries it "
                "again, and --checkpointing takes less",
            )
        else:
            after = _read(found)
            fit = found["fit"] and restore(TuningFit, found["fit"])
            return replace(
                own, fit=fit, changes=_changes(self.before, after, self.recipe.seed)
            ), after
        # Outside the handler: the failed arm's tensors are held by the exception until here.
        clear_device_cache(garbage_collection=True)
        return own, None


def enhance(  # noqa: PLR0913  (a study's parts, each of which a caller has at hand)
    loaded: CutModel,
    spans: Sequence[Span],
    measure: Measure,
    arms: Sequence[TuningArm],
    recipe: TuningRecipe,
    *,
    progress: Progress | None = None,
    recall: Recall = lambda _, tune: tune(),
) -> TuningResult:
    """Tune each arm on the spans' continuations and evaluate it; the model is left as it was.

    An arm that runs out of memory is left out and says so. `recall` keeps arms; see `ArmTuner`.
    Raises BadOption if there is no arm; ModelRefused if the weights cannot be tuned; else as
    `make_lessons` and `find_best_rate`.
    """
    if not arms:
        raise BadOption("There is no arm to tune; name at least one.")
    given = make_lessons(spans, recipe)
    for arm in arms:
        arm.check(loaded.model, recipe)
    tuner = ArmTuner(loaded, given, measure, recipe, progress, recall)
    before = tuner.before
    tuned: list[Tuned] = []
    after: dict[str, list[Measured]] = defaultdict(list)
    for arm in arms:
        own, measured = tuner.attempt(arm)
        tuned.append(own)
        if measured is not None:
            after[arm.name].append(measured)
    return TuningResult(
        recipe=recipe,
        trained_on=given.examples,
        held_out=len(given.validation),
        arms=tuple(tuned),
        controls=tuple(_controls(before, after, recipe.seed)),
    )


def _written(measured: Measured) -> list[Any]:
    """List outcomes as files hold them."""
    return [[*key, plain_value(outcomes)] for key, outcomes in measured.items()]


def _read(found: Mapping[str, Any]) -> Measured:
    return {(task, what): np.array(each, dtype=float) for task, what, each in found["after"]}


def _changes(before: Measured, after: Measured, seed: int) -> tuple[TuningChange, ...]:
    found = []
    for (task, measure), old in before.items():
        new = after[task, measure]
        known = ~np.isnan(old) & ~np.isnan(new)
        interval = paired_interval(new, old, seed=seed)
        means = [float(each[known].mean()) if known.any() else np.nan for each in (old, new)]
        found.append(TuningChange(task, measure, means[0], means[1], interval))
    return tuple(found)


def _controls(
    before: Measured, after: Mapping[str, Sequence[Measured]], seed: int
) -> Iterator[TuningControl]:
    """Hold the located neurons against random ones, where both were tuned."""
    if LOCATED not in after or len(after.get(RANDOM, ())) < FEWEST:
        return
    for key, old in before.items():
        own = after[LOCATED][0][key] - old
        drawn = np.stack([measured[key] - old for measured in after[RANDOM]])
        known = ~np.isnan(own) & ~np.isnan(drawn).any(axis=0)
        own, drawn = own[known], drawn[:, known]
        held = specificity(own, drawn, seed=seed)
        each = drawn.mean(axis=1) if drawn.size else np.full(len(drawn), np.nan)
        yield TuningControl(
            arm=RANDOM,
            task=key[0],
            measure=key[1],
            located=float(own.mean()) if own.size else np.nan,
            changes=tuple(each.tolist()),
            excess=held.excess,
            gain=held.pooled_gain,
            p=held.p,
        )


Results = Mapping[str, Any]  # of one task, as the file holds them, or of all by task


@dataclass(frozen=True)
class Enhancing:
    """What is tuned, how, and what it is judged on.

    `tasks` are those tuned (none: all with located neurons); all of the study's are judged, on
    `limit` examples each.
    """

    recipe: TuningRecipe = field(default_factory=TuningRecipe)
    arms: tuple[str, ...] = USUAL
    draws: int = DRAWS
    limit: int | None = 60
    tasks: tuple[str, ...] = ()

    def check(self, known: Sequence[str]) -> "Enhancing":
        """Refuse, as a UserError, what means nothing; `known` are the study's tasks."""
        self.recipe.check()
        Erasing(draws=self.draws, limit=self.limit).check()
        for arm in self.arms:
            pick(ARMS, arm, "arm")
        for task in self.tasks:
            pick(dict.fromkeys(known), task, "task of the run")
        return self


def enhance_located(
    folder: Path,
    asked: Enhancing,
    progress: Progress | None = None,
    *,
    command: str = "",
    allowed: Allowed | None = None,
    save: Path | None = None,
) -> Reported:
    """Tune the neurons of the tasks of a finished `locate`; write `enhancement.json`.

    With `save`, also write there a checkpoint with each task's tuned neurons (see `save_tuned`).
    """
    if save and LOCATED not in asked.arms:
        raise BadOption(f"--save writes the arm {LOCATED!r}; name that arm.")
    with reopen_study(folder, progress, allowed) as lab:
        asked.check(lab.study.tasks)
        check_tunable(lab.study.model)
        found, model = enhance_tasks(lab, asked), lab.study.model.name
        if save:
            save_tuned(lab, asked.recipe, found, save)
        results = {"model": model, "enhancing": asdict(asked), "tasks": found}
        gained = list_gains(found), list_gains(found, RANDOM)
        title = (
            "Log-probability that each task (column) gains when another's neurons (row) are tuned"
        )
        shown = [tabulate_tuning(*each) for each in found.items()]
        if any(gain is not None for gain in gained[0].values()):
            shown.append(tabulate_effects(title, "tuned", *gained, losses=False))
        title, line = f"Tuning neurons of {model}", describe_tuning(asked)
        return report(folder / ENHANCEMENT, results, shown, title, command, [line], "enhancement")


def enhance_tasks(lab: NeuronLab, asked: Enhancing) -> dict[str, Any]:
    """Enhance every task; each arm is kept as it ends, and taken from there the next time.

    Raises UserError if no neuron is located for any of the tasks.
    """
    cache = Cache(lab.folder / LEDGER)
    tasks = lab.with_neurons(asked.tasks, "tune")
    question = {"recipe": asdict(asked.recipe), "texts": _texts(lab, asked)}
    question |= {"model": lab.bench.neurons.fingerprint, "dtype": lab.bench.neurons.dtype}

    def recall(task: str, arm: dict[str, Any], tune: Callable[[], Any]) -> dict[str, Any]:
        found: dict[str, Any] = cache.recall(question | {"enhanced": task} | arm, tune)
        return found

    return {task: _enhance_task(lab, asked, task, partial(recall, task)) for task in tasks}


def save_tuned(lab: NeuronLab, recipe: TuningRecipe, found: Results, target: Path) -> None:
    """Write, in a folder of its own below `target`, the model with a task's tuned neurons in place.

    They are tuned once more at the rate that was best; plain transformers load the folder. A task
    whose located arm failed has none. Raises StoreFailed if the disk refuses.
    """
    loaded = lab.bench.neurons
    for task, result in found.items():
        (fit,) = (arm["fit"] for arm in result["arms"] if arm["arm"] == LOCATED)
        if fit is None:
            continue
        once = replace(recipe, rates=(fit["best"]["rate"],), extensions=0)
        given = make_lessons(lab.source(task).lessons(lab.bench.wording), once)
        with TrainableRows(loaded.model, lab.found(task).located, once.trains) as rows:
            find_best_rate(loaded.model, rows, given, once, lab.progress, f"tuning {task} to save")
            with rows.written(), whole_folder(target / task.replace("/", "-")) as stage:
                loaded.model.save_pretrained(stage)
                loaded.tokenizer.save_pretrained(stage)


def _texts(lab: NeuronLab, asked: Enhancing) -> str:
    """Name every token that is trained or judged on: a task's file may be edited."""
    wording = lab.bench.wording
    tokens = {}
    for task in lab.study.tasks:
        source = lab.source(task)
        spans = [*source.spans(wording), *source.judged_spans(wording, asked.limit)]
        tokens[task] = [asdict(span) for span in spans]
    return digest(tokens)


def _enhance_task(lab: NeuronLab, asked: Enhancing, task: str, recall: Recall) -> dict[str, Any]:
    """Tune one task's neurons with its examples, beside the other arms.

    The task is judged by its own metric, and every task by its gold answers' probability.
    """
    found, model, seed = lab.found(task), lab.bench.neurons, asked.recipe.seed
    arms = make_arms(
        found.located,
        model.grid,
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
    how: dict[str, Any] = {"progress": lab.progress, "recall": recall}
    return enhance(model, lessons, measure, arms, asked.recipe, **how).as_dict()


def measure_outcomes(
    lab: NeuronLab, loaded: CutModel, source: TaskSource, limit: int | None
) -> np.ndarray:
    """Measure each judging example's outcome with the model as it is now; nothing of it is kept.

    The engine is made anew, because what an engine has learnt of a model holds for its weights; so
    are the rows.
    """
    engine, examples = BatchEngine(loaded, lab.study.model.batch_size), source.judge_on[:limit]
    task, intact = source.judging, np.zeros(loaded.grid.size, dtype=bool)
    with TemporaryDirectory() as place, Store(Path(place) / ROWS) as store:
        question = Question("tuned", loaded.dtype, task.name, task.version, task.outcome_kind)
        meter = Meter(engine, store, task, question, Cost())
        return outcomes_under(meter, intact, examples, lab.progress, f"{source.name}, tuned")


def describe_tuning(asked: Enhancing) -> str:
    """Say what was done."""
    recipe = asked.recipe
    return (
        f"Each arm is tuned for {recipe.steps} steps of {recipe.batch_size} examples on the "
        "task's training examples, by the learning rate that is best for it on examples held out "
        "of those. Recipe and arms are ours; the paper's are not known to us."
    )


def beats_every_draw(result: Results, task: str) -> bool:
    """Ask whether the located arm gained more on its own task than every layer-matched draw."""
    control = _control_of(result, task)
    return bool(control) and all(control["located"] > each for each in control["changes"])


def _control_of(result: Results, task: str) -> Any:
    """Find the layer-matched draws' part, None if they were not tuned."""
    wanted = {"arm": RANDOM, "task": task, "measure": GOLD}
    return next((each for each in result["controls"] if wanted.items() <= each.items()), None)


def changes_by_arm(result: Results, task: str, measure: str) -> dict[str, list[Any]]:
    """List the changes of each arm's draws on a task, as far as they were measured."""
    found: dict[str, list[Any]] = {}
    for arm in result["arms"]:
        for each in arm["changes"]:
            if (each["task"], each["measure"]) == (task, measure):
                found.setdefault(arm["arm"], []).append(each)
    return found


def tabulate_tuning(task: str, result: Results) -> Exhibit:
    """Show one task's arms: what each gains on the task itself."""
    drawn: dict[str, list[Any]] = {}
    for arm in result["arms"]:
        drawn.setdefault(arm["arm"], []).append(arm)
    gold, score = (changes_by_arm(result, task, measure) for measure in (GOLD, METRIC))
    rows, points = [], []
    for name, arms in drawn.items():
        fits = [arm["fit"] for arm in arms if arm["fit"] is not None]
        rates = [f"{fit['best']['rate']:g}{' (edge)' * fit['at_edge']}" for fit in fits]
        gains, scores = (
            join_draws([each["change"] for each in found.get(name, [])]) for found in (gold, score)
        )
        points += points_of(name, {"log-probability": gains})
        rows.append(
            {
                "tuned": name if len(arms) == 1 else f"{name}, {len(arms)} draws",
                "parameters": f"{fits[0]['parameters']:,}" if fits else NOTHING,
                "best rate": ", ".join(dict.fromkeys(rates)) or NOTHING,
                "change of score": write_interval(scores),
                "change of log-probability": write_interval(gains),
            }
        )
    notes = [
        "Changes with 95 % intervals over examples, paired; of draws the mean, the least and the "
        f"most. Tuned on {result['trained_on']} examples.",
        *(f"{arm['failed']}." for arm in result["arms"] if arm.get("failed")),
    ]
    if control := _control_of(result, task):
        notes.append(
            "More than the draws in the same layers, by log-probability: "
            f"{write_interval(control['excess'])} nats a token, p {write_number(control['p'])} "
            f"with {len(control['changes'])} draws."
        )
    chart = chart_points(points, "change of log-probability, nats a token")
    return Exhibit.of(f"Tuning for {task}", rows, notes, chart)


def list_gains(found: Results, arm: str = LOCATED) -> Effects:
    """List each judged task's change of log-probability when an arm of each task is tuned."""
    return {
        (task, judged): over_draws(
            each["change"]["mean"] for each in changes_by_arm(result, judged, GOLD).get(arm, [])
        )["mean"]
        for task, result in found.items()
        for judged in dict.fromkeys(c["task"] for each in result["arms"] for c in each["changes"])
    }
