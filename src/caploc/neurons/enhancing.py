"""Does tuning the located neurons help, more than tuning as many others?

Every arm is tuned on the same lessons, evaluated as a plain model, and undone. The paper compares
located neurons with random ones; the other arms are ours.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from math import isnan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from jaxtyping import Float64

from caploc.contents import restore
from caploc.declaration import Allowed
from caploc.engine.batch import BatchEngine
from caploc.engine.encoding import Span
from caploc.errors import BadOption
from caploc.files import digest, whole_folder
from caploc.folder import ENHANCEMENT, LEDGER, ROWS, package_versions
from caploc.measurement import Meters
from caploc.models.loading import CutModel
from caploc.naming import folder_name
from caploc.neurons.chance import Excess
from caploc.neurons.engine import gold_means
from caploc.neurons.erasure import Effects
from caploc.neurons.ledger import Cache
from caploc.neurons.options import LOCATED, RANDOM, Enhancing, TuningRecipe
from caploc.neurons.report import (
    NOTHING,
    Exhibit,
    chart_points,
    join_draws,
    over_draws,
    points_of,
    report,
    tabulate_effects,
    write_interval,
    write_number,
)
from caploc.neurons.result import (
    EnhancementFile,
    Tuned,
    TuningChange,
    TuningControl,
    TuningFit,
    TuningResult,
)
from caploc.neurons.stats import paired_interval, plain_value
from caploc.neurons.study import NeuronSession, TaskSource, outcomes_of, reopen_study
from caploc.neurons.training import (
    TuningArm,
    check_tunable,
    find_best_rate,
    make_arms,
    make_lessons,
)
from caploc.neurons.weights import tune_neurons
from caploc.progress import Progress
from caploc.store import Store
from caploc.wording import called, called_apart

METRIC, GOLD = "metric", "gold log-probability"
Outcomes = Float64[np.ndarray, " examples"]
Measured = dict[tuple[str, str], Outcomes]  # by task and measure; NaN where there is no outcome
# The model it gets has other weights every time, so it must keep nothing of an earlier call.
Measure = Callable[[CutModel], Measured]
Recall = Callable[[dict[str, Any], Callable[[], dict[str, Any]]], dict[str, Any]]


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
    """Tune each arm on the spans' continuations and measure it; the model is left as it was.

    Every rate is tried for the first draw of an arm; for its other draws the best of them and the
    next lower one, since training that diverges would speak for the arm that has one draw.

    `recall` is given an arm's question and what measures it, and may know the answer from before.
    Raises ModelRefused if the weights cannot be tuned; else as `make_lessons` and `find_best_rate`.
    """
    lessons, tried = make_lessons(spans, recipe), dict[str, Sequence[float]]()
    rates = sorted(recipe.rates)

    def tune(arm: TuningArm) -> dict[str, Any]:
        with arm.open(loaded.model, recipe.seed) as tunable:
            how = lessons, recipe, progress, f"tuning {arm.label}", tried.get(arm.name, ())
            fit = find_best_rate(loaded.model, tunable, *how) if arm.tunes else None
            return {"fit": fit and plain_value(asdict(fit)), "after": _written(measure(loaded))}

    before = _read(recall({"arm": None}, partial(tune, TuningArm("none"))))
    tuned: list[Tuned] = []
    after: dict[str, list[Measured]] = defaultdict(list)
    for arm in arms:
        found = recall(arm.question(), partial(tune, arm)) if arm.tunes else {"fit": None}
        measured = _read(found) if arm.tunes else before
        after[arm.name].append(measured)
        neurons = None if arm.chosen is None or arm.name == "lora" else int(arm.chosen.sum())
        fit = found["fit"] and restore(TuningFit, found["fit"])
        if fit:
            place = rates.index(fit.rate)
            tried.setdefault(arm.name, rates[max(place - 1, 0) : place + 1])
        changes = _changes(before, measured, recipe.seed)
        tuned.append(Tuned(arm.name, arm.draw, neurons, fit, changes))
    controls = tuple(_controls(before, after, recipe.seed))
    return TuningResult(lessons.examples, len(lessons.validation), tuple(tuned), controls)


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
    if LOCATED not in after or RANDOM not in after:
        return
    for key, old in before.items():
        own = after[LOCATED][0][key] - old
        drawn = np.stack([measured[key] - old for measured in after[RANDOM]])
        known = ~np.isnan(own) & ~np.isnan(drawn).any(axis=0)
        own, drawn = own[known], drawn[:, known]
        held = Excess.of(own, drawn, seed=seed)
        each = drawn.mean(axis=1) if drawn.size else np.full(len(drawn), np.nan)
        yield TuningControl(
            task=key[0],
            measure=key[1],
            located=float(own.mean()) if own.size else np.nan,
            changes=tuple(each.tolist()),
            excess=held.excess,
            p=held.p,
        )


def enhance_located(
    folder: Path,
    asked: Enhancing,
    progress: Progress | None = None,
    *,
    command: str = "",
    allowed: Allowed | None = None,
    save: Path | None = None,
) -> tuple[EnhancementFile, list[Exhibit]]:
    """Tune the neurons of the tasks of a finished `locate`; write `enhancement.json`.

    With `save`, also write there a checkpoint with each task's tuned neurons (see `save_tuned`).
    """
    if save and LOCATED not in asked.arms:
        raise BadOption(f"--save writes the arm {LOCATED!r}; name that arm.")
    with reopen_study(folder, progress, allowed, tasks=asked.tasks) as session:
        check_tunable(session.study.model)
        found, model = enhance_tasks(session, asked), session.study.model.name
        if save:
            save_tuned(session, asked.recipe, found, save)
        result = EnhancementFile(
            model=model, enhancing=asked, tasks=found, command=command, versions=package_versions()
        )
        gained = list_gains(found), list_gains(found, RANDOM)
        title = (
            "Log-probability that each task (column) gains when another's neurons (row) are tuned"
        )
        shown = [tabulate_tuning(*each) for each in found.items()]
        if not all(map(isnan, gained[0].values())):
            shown.append(tabulate_effects(title, "tuned", *gained, losses=False))
        title, line = f"Tuning neurons of {model}", describe_tuning(asked)
        return report(folder / ENHANCEMENT, result, shown, title, [line], "enhancement")


def enhance_tasks(session: NeuronSession, asked: Enhancing) -> dict[str, TuningResult]:
    """Enhance every task; each arm is kept as it ends, and taken from there the next time.

    Raises UserError if no neuron is located for any of the tasks.
    """
    cache = Cache(session.folder / LEDGER)
    tasks = session.with_neurons(asked.tasks, "tune")
    question = {"recipe": asdict(asked.recipe), "texts": _texts(session, asked)}
    question |= {"model": session.model.fingerprint, "dtype": session.model.dtype}

    def recall(task: str, arm: dict[str, Any], tune: Callable[[], Any]) -> dict[str, Any]:
        found: dict[str, Any] = cache.recall(question | {"enhanced": task} | arm, tune)
        return found

    return {task: _enhance_task(session, asked, task, partial(recall, task)) for task in tasks}


def save_tuned(
    session: NeuronSession, recipe: TuningRecipe, found: Mapping[str, TuningResult], target: Path
) -> None:
    """Write, in a folder of its own below `target`, the model with a task's tuned neurons in place.

    They are tuned once more at the rate that was best; plain transformers load the folder. Raises
    StoreFailed if the disk refuses.
    """
    loaded, names = session.model, called_apart(found)
    for task, result in found.items():
        (fit,) = (arm.fit for arm in result.arms if arm.arm == LOCATED and arm.fit)
        once = replace(recipe, rates=(fit.rate,))
        lessons = make_lessons(session.sources[task].lessons(session.wording), once)
        with tune_neurons(loaded.model, session.found(task).located) as tunable:
            what = f"tuning {task} to save"
            find_best_rate(loaded.model, tunable, lessons, once, session.progress, what)
            with whole_folder(target / folder_name(names[task])) as stage:
                loaded.model.save_pretrained(stage)
                loaded.tokenizer.save_pretrained(stage)


def _texts(session: NeuronSession, asked: Enhancing) -> str:
    """Name every token that is trained or judged on: a task's file may be edited."""
    wording = session.wording
    tokens = {}
    for task in session.study.tasks:
        source = session.sources[task]
        spans = [*source.spans(wording), *source.judged_spans(wording, asked.limit)]
        tokens[task] = [asdict(span) for span in spans]
    return digest(tokens)


def _enhance_task(
    session: NeuronSession, asked: Enhancing, task: str, recall: Recall
) -> TuningResult:
    """Tune one task's neurons with its examples, beside the other arms.

    The task is judged by its own metric, and every task by its gold answers' probability.
    """
    found, model, seed = session.found(task), session.model, asked.recipe.seed
    arms = make_arms(
        found.located,
        model.grid,
        names=asked.arms,
        draws=asked.draws,
        seed=seed,
    )
    wording, source = session.wording, session.sources[task]
    gold = {
        name: session.sources[name].judged_spans(wording, asked.limit)
        for name in session.study.tasks
    }

    def measure(loaded: CutModel) -> Measured:
        judged = {(name, GOLD): gold_means(loaded.model, spans) for name, spans in gold.items()}
        return {(task, METRIC): measure_outcomes(session, loaded, source, asked.limit), **judged}

    lessons = source.lessons(wording)
    how: dict[str, Any] = {"progress": session.progress, "recall": recall}
    return enhance(model, lessons, measure, arms, asked.recipe, **how)


def measure_outcomes(
    session: NeuronSession, loaded: CutModel, source: TaskSource, limit: int | None
) -> np.ndarray:
    """Measure each judging example's outcome with the model as it is now; nothing of it is kept.

    The engine is made anew, because what an engine has learnt of a model holds for its weights; so
    are the rows.
    """
    examples, nothing = source.judge_on[:limit], np.zeros(loaded.grid.size, dtype=bool)
    with TemporaryDirectory() as place, Store(Path(place) / ROWS) as store:
        meters = Meters(BatchEngine(loaded, session.study.model.batch_size), store)
        meter, what = meters.meter(source.judging), f"{source.name}, tuned"
        return outcomes_of(meter.under(nothing, examples, session.progress, what))


def describe_tuning(asked: Enhancing) -> str:
    """Say what was done."""
    recipe = asked.recipe
    return (
        f"Each arm is tuned for {recipe.steps} steps of {recipe.batch_size} examples on the "
        "task's training examples, by the learning rate that is best for it on examples held out "
        "of those. Recipe and arms are ours; the paper's are not known to us."
    )


def changes_by_arm(result: TuningResult, task: str, measure: str) -> dict[str, list[TuningChange]]:
    """List the changes of each arm's draws on a task, as far as they were measured."""
    found: dict[str, list[TuningChange]] = defaultdict(list)
    for arm in result.arms:
        found[arm.arm] += [
            each for each in arm.changes if (each.task, each.measure) == (task, measure)
        ]
    return found


def tabulate_tuning(task: str, result: TuningResult) -> Exhibit:
    """Show one task's arms: what each gains on the task itself."""
    gold, score = (changes_by_arm(result, task, measure) for measure in (GOLD, METRIC))
    rows, points = [], []
    for name, drawn in gold.items():
        fits = [arm.fit for arm in result.arms if arm.arm == name and arm.fit]
        rates = [f"{fit.rate:g}{' (edge)' * fit.at_edge}" for fit in fits]
        gains, scores = (join_draws([each.change for each in of[name]]) for of in (gold, score))
        points += points_of(name, {"log-probability": gains})
        rows.append(
            {
                "tuned": name if len(drawn) == 1 else f"{name}, {len(drawn)} draws",
                "parameters": f"{fits[0].parameters:,}" if fits else NOTHING,
                "best rate": ", ".join(dict.fromkeys(rates)) or NOTHING,
                "change of score": write_interval(scores),
                "change of log-probability": write_interval(gains),
            }
        )
    notes = [
        "Changes with 95 % intervals over examples, paired; of draws the mean, the least and the "
        f"most. Tuned on {result.trained_on} examples.",
    ]
    notes += [
        "More than the draws in the same layers, by log-probability: "
        f"{write_interval(control.excess)} nats a token, p {write_number(control.p)} "
        f"with {len(control.changes)} draws."
        for control in result.controls
        if (control.task, control.measure) == (task, GOLD)
    ]
    chart = chart_points(points, "change of log-probability, nats a token")
    return Exhibit.of(f"Tuning for {called(task)}", rows, notes, chart)


def list_gains(found: Mapping[str, TuningResult], arm: str = LOCATED) -> Effects:
    """List each judged task's change of log-probability when an arm of each task is tuned.

    NaN where the arm was not tuned.
    """
    return {
        (task, judged): over_draws(
            each.change.mean for each in changes_by_arm(result, judged, GOLD).get(arm, [])
        ).mean
        for task, result in found.items()
        for judged in dict.fromkeys(c.task for each in result.arms for c in each.changes)
    }
