"""Does tuning the located neurons help, more than tuning as many others?

Every arm is tuned on the same lessons, evaluated as a plain model, and undone. The paper compares
located neurons with random ones; the other arms are ours.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from jaxtyping import Float64
from transformers import PreTrainedModel

from caploc.cache import Cache, digest
from caploc.cost import Cost
from caploc.engine import BatchEngine
from caploc.engine.encoding import Span
from caploc.errors import BadOption, UserError
from caploc.folder import ENHANCEMENT, LEDGER, ROWS
from caploc.grid import Grid
from caploc.lookup import pick
from caploc.measurement import Meter
from caploc.models.loading import CutModel
from caploc.neurons.attribution import gold_means
from caploc.neurons.sites import Chosen
from caploc.neurons.study import (
    Finding,
    Matrix,
    NamedRow,
    NeuronLab,
    Reported,
    TaskSource,
    bounds_of_draws,
    effects_matrix,
    outcomes_under,
    reopen_study,
    run_command,
)
from caploc.neurons.training import (
    RIVALS,
    TuningFit,
    TuningRecipe,
    find_best_rate,
    make_lessons,
    rival_scores,
)
from caploc.neurons.weights import (
    Trainable,
    TrainableLora,
    TrainableRows,
    TrainableWhole,
    adaptable,
    check_chosen,
    degraded,
    require_peft_to_train,
    shares_by_projection,
)
from caploc.progress import Progress
from caploc.report import drawing
from caploc.report.exhibits import NOTHING, Exhibit
from caploc.report.tabulation import ranged
from caploc.stats.chance import FEWEST, bottom, layer_matched, specificity, uniform
from caploc.stats.intervals import Interval, JsonRecord, paired_interval
from caploc.stats.threshold import Scores, best
from caploc.store import Question, Store
from caploc.workbench import Allowed

LOCATED = "located"
ARMS = {
    "none": "nothing is tuned",
    LOCATED: "the located neurons",
    "random-uniform": "as many random neurons of the whole model, drawn several times",
    "random-layer-matched": "as many random neurons in each layer as are located there",
    "bottom": "as many neurons, those of the lowest scores",
    "complement": "all feed-forward neurons but the located ones",
    "full": "all weights of the model",
    "lora": "low-rank adapters with as many parameters as the located neurons",
}
RANDOM = "random-layer-matched"
DRAWN = ("random-uniform", RANDOM)
METRIC, GOLD = "metric", "gold log-probability"
Outcomes = Float64[np.ndarray, " examples"]
Measured = dict[tuple[str, str], Outcomes]  # by task and measure; NaN where there is no outcome
# The model it gets has other weights every time, so it must keep nothing of an earlier call.
Measure = Callable[[CutModel], Measured]


@dataclass(frozen=True)
class TuningArm:
    """One thing to tune: `name` is of `ARMS` or `RIVALS`, `draw` counts a random arm's sets from 0.

    `chosen` are the neurons tuned or, of adapters, those whose number of parameters they match;
    None for the arms "none" and "full".
    """

    name: str
    chosen: Chosen | None = None
    draw: int | None = None

    def check(self, model: PreTrainedModel, recipe: TuningRecipe) -> None:
        """Refuse, before anything is tuned, an arm that this model cannot have."""
        if self.chosen is not None:
            shares_by_projection(model, self.chosen, recipe.trains)
        if self.name == "lora":
            adaptable(model, recipe.trains)

    def open(self, model: PreTrainedModel, recipe: TuningRecipe) -> Trainable | None:
        """Open what the arm may tune, to be used with `with`; None for "none"."""
        if self.name == "none":
            return None
        if self.name == "full":
            return TrainableWhole(model)
        assert self.chosen is not None
        if self.name != "lora":
            return TrainableRows(model, self.chosen, recipe.trains)
        wanted = parameter_count(model, self.chosen, recipe)
        return TrainableLora(model, wanted, recipe.trains, recipe.seed)


def make_arms(
    located: Chosen,
    grid: Grid,
    *,
    scores: Scores | None = None,
    names: Sequence[str] = tuple(ARMS),
    draws: int = FEWEST,
    seed: int = 0,
) -> list[TuningArm]:
    """Make the arms of these names, each random one `draws` times; `scores` are for "bottom".

    Random neurons and those of the lowest scores leave the located ones out, as far as there are
    enough others. Asking for more draws keeps the first ones.

    Raises:
        UnknownName: if there is no arm of such a name.
        BadOption: if nothing is located, draws are fewer than 5, "bottom" has no scores or "lora"
            no PEFT.
    """
    check_chosen(located, grid.size)
    for name in names:
        pick(ARMS, name, "arm")
    if draws < FEWEST and set(names) & set(DRAWN):
        raise BadOption(
            f"draws={draws}: a random arm needs {FEWEST} draws or more for its standard deviation."
        )
    if "lora" in names:
        require_peft_to_train()
    if "bottom" in names and scores is None:
        raise BadOption("The arm 'bottom' needs the neurons' scores; give them.")
    found: list[TuningArm] = []
    for name in dict.fromkeys(names):
        if name in DRAWN:
            random = {
                "random-uniform": lambda: uniform(located, draws, seed=seed),
                RANDOM: lambda: layer_matched(located, grid, draws, seed=seed),
            }
            drawn = random[name]()
            found += [TuningArm(name, each, number) for number, each in enumerate(drawn)]
        elif name == "bottom" and scores is not None:
            found.append(TuningArm(name, bottom(scores, located)))
        else:
            chosen = {"none": None, "full": None, "complement": ~located}
            found.append(TuningArm(name, chosen.get(name, located)))
    return found


def parameter_count(model: PreTrainedModel, chosen: Chosen, recipe: TuningRecipe) -> int:
    """Count the values that tuning these neurons trains."""
    return sum(
        value.numel()
        for share in shares_by_projection(model, chosen, recipe.trains)
        for value in share.read().values()
    )


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

    `neurons` is the number tuned, None where the arm is not one of neurons.
    """

    arm: str
    draw: int | None
    neurons: int | None
    fit: TuningFit | None
    changes: tuple[TuningChange, ...]


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


def enhance(
    loaded: CutModel,
    spans: Sequence[Span],
    measure: Measure,
    arms: Sequence[TuningArm],
    recipe: TuningRecipe,
    *,
    progress: Progress | None = None,
) -> TuningResult:
    """Tune each arm on the spans' continuations and evaluate it; the model is left as it was.

    Raises:
        BadOption: if there is no arm, or the recipe has a value that cannot be used.
        BadData: if there are fewer than 2 spans.
        ModelRefused: if the model's weights cannot be tuned.
        RunFailed: if an arm's training diverges at every learning rate.
    """
    if not arms:
        raise BadOption("There is no arm to tune; name at least one.")
    given = make_lessons(spans, recipe, loaded.model.device)
    for arm in arms:
        arm.check(loaded.model, recipe)
    before = measure(loaded)
    tuned: list[Tuned] = []
    after: dict[str, list[Measured]] = defaultdict(list)
    for arm in arms:
        fit, measured = None, before
        with arm.open(loaded.model, recipe) or nullcontext() as trainable:
            if trainable is not None:
                what = f"tuning {arm.name}{'' if arm.draw is None else f' {arm.draw + 1}'}"
                fit = find_best_rate(loaded.model, trainable, given, recipe, progress, what)
                with trainable.written():
                    measured = measure(loaded)
        after[arm.name].append(measured)
        neurons = None if arm.chosen is None or arm.name == "lora" else int(arm.chosen.sum())
        changes = _changes(before, measured, recipe.seed)
        tuned.append(Tuned(arm.name, arm.draw, neurons, fit, changes))
    return TuningResult(
        recipe=recipe,
        trained_on=given.examples,
        held_out=given.held_out,
        arms=tuple(tuned),
        controls=tuple(_controls(before, after, recipe.seed)),
    )


def _changes(before: Measured, after: Measured, seed: int) -> tuple[TuningChange, ...]:
    """Compare every task under every measure."""
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
    """Hold the located neurons against each random arm, where both were tuned."""
    for name in DRAWN:
        if LOCATED not in after or len(after.get(name, ())) < FEWEST:
            continue
        for key, old in before.items():
            own = after[LOCATED][0][key] - old
            drawn = np.stack([measured[key] - old for measured in after[name]])
            known = ~np.isnan(own) & ~np.isnan(drawn).any(axis=0)
            own, drawn = own[known], drawn[:, known]
            held = specificity(own, drawn, seed=seed)
            each = drawn.mean(axis=1) if drawn.size else np.full(len(drawn), np.nan)
            yield TuningControl(
                arm=name,
                task=key[0],
                measure=key[1],
                located=float(own.mean()) if own.size else np.nan,
                changes=tuple(each.tolist()),
                excess=held.excess,
                gain=held.pooled_gain,
                p=held.p,
            )


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
        """Refuse, as a BadOption, what means nothing; `known` are the study's tasks."""
        self.recipe.check()
        if self.draws < DRAWS:
            raise BadOption(f"--draws must be {DRAWS} or more; got {self.draws}.")
        every = (*ARMS, *RIVALS)
        if unknown := [arm for arm in self.arms if arm not in every]:
            raise BadOption(f"There is no arm {unknown[0]!r}; choose from {', '.join(every)}.")
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
        names=[name for name in asked.arms if name not in RIVALS],
        draws=asked.draws,
        seed=seed,
    )
    for name in (name for name in RIVALS if name in asked.arms):
        rival = rival_scores(lab, name, task, asked.recipe.trains)
        arms.append(TuningArm(name, best(rival, found.located.mean())))
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
    engine, examples = BatchEngine(loaded, lab.study.model.batch_size), source.judge_on[:limit]
    task, intact = source.judging, np.zeros(loaded.grid.size, dtype=bool)
    with TemporaryDirectory() as place, Store(Path(place) / ROWS) as store:
        question = Question("tuned", loaded.dtype, task.name, task.version, task.outcome_kind)
        meter = Meter(engine, store, task, question, Cost())
        return outcomes_under(meter, intact, examples, lab.progress, f"{source.name}, tuned")


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
    controls = [control for task, each in found.items() if (control := _control_of(each, task))]
    own = float(np.mean([control["located"] for control in controls]))
    drawn = float(np.mean([np.mean(control["changes"]) for control in controls]))
    return (
        f"Tuning its located neurons gains a task {own:.2f} nats a token, tuning as many random "
        f"ones of the same layers {drawn:.2f}; more than any draw: {beaten} of {len(found)} tasks"
    )


def beats_every_draw(result: Results, task: str) -> bool:
    """Ask whether the located arm gained more on its own task than every layer-matched draw."""
    control = _control_of(result, task)
    return bool(control) and all(control["located"] > each for each in control["changes"])


def _control_of(result: Results, task: str) -> Any:
    """Find the layer-matched draws' part, None if they were not tuned."""
    wanted = {"arm": RANDOM, "task": task, "measure": GOLD}
    return next((each for each in result["controls"] if wanted.items() <= each.items()), None)


def _changes_of(arms: Sequence[Results], task: str, measure: str) -> Iterator[Any]:
    """Find the changes of several arms on a task, as far as they were measured."""
    for arm in arms:
        yield from (c for c in arm["changes"] if (c["task"], c["measure"]) == (task, measure))


def tuned_arms_exhibit(task: str, result: Results) -> Exhibit:
    """Show one task's arms: what each gains on the task itself."""
    drawn: dict[str, list[Any]] = {}
    for arm in result["arms"]:
        drawn.setdefault(arm["arm"], []).append(arm)

    def changes(arms: Sequence[Results], measure: str) -> list[Any]:
        return [each["change"] for each in _changes_of(arms, task, measure)]

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
                "change of score": _over_draws(changes(arms, METRIC)),
                "change of log-probability": _over_draws(changes(arms, GOLD)),
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
        {"log-probability": [bounds_of_draws(changes(a, GOLD)) for a in drawn.values()]},
        label="change of log-probability, nats a token",
    )
    name = f"enhancement-{task.replace('/', '-')}"
    return Exhibit.of(name, f"Tuning for {task}", rows, notes, draw)


def _over_draws(changes: Sequence[Results]) -> str:
    """Write the change of one arm with its interval, of several draws the mean and the ends."""
    if len(changes) == 1:
        return ranged(changes[0])
    mean, least, most = bounds_of_draws(changes)
    return NOTHING if mean is None else f"{mean:z.3f} ({least:z.3f} to {most:z.3f})"


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
