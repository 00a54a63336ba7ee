"""Does tuning the located neurons help, more than tuning as many others?

    evaluation = Evaluation(outcomes, gold={"demo/addition": test_spans})
    found = enhance(loaded, train_spans, evaluation, arms(located, loaded.grid), Recipe())

Every arm is tuned on the same lessons, evaluated as a plain model, and undone.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float64

from caploc.commonality.intervals import Interval, paired_interval
from caploc.commonality.result import Result
from caploc.commonality.specificity import FEWEST, specificity
from caploc.engine.encoding import Span
from caploc.errors import BadData, BadOption
from caploc.models.loading import CutModel
from caploc.neurons.tuning.arms import DRAWN, LOCATED, Arm, check, opened
from caploc.neurons.tuning.batches import gold_log_probabilities
from caploc.neurons.tuning.training import Fit, Lessons, Recipe, lessons, search
from caploc.progress import Progress

Outcomes = Float64[np.ndarray, " examples"]
# the model in its current state -> one outcome an example, by task
Evaluate = Callable[[CutModel], Mapping[str, Outcomes]]
METRIC, GOLD = "metric", "gold log-probability"
Measured = dict[tuple[str, str], Outcomes]  # by task and measure


@dataclass(frozen=True)
class Evaluation:
    """What every arm is evaluated on.

    `outcomes` returns each task's per-example outcomes, NaN where there is none; the model it gets
    has other weights every time, so it must keep nothing of an earlier call. `gold` has spans whose
    mean log-probability a token is measured beside it (in nats): it still moves where a metric is
    at its best.
    """

    outcomes: Evaluate | None = None
    gold: Mapping[str, Sequence[Span]] = field(default_factory=dict)

    def measure(self, loaded: CutModel) -> Measured:
        """Every task's outcomes under every measure.

        Raises:
            BadData: if there is nothing to evaluate on.
        """
        found: Measured = {}
        if self.outcomes is not None:
            found |= {(task, METRIC): each for task, each in self.outcomes(loaded).items()}
        for task, spans in self.gold.items():
            found[task, GOLD] = gold_log_probabilities(loaded.model, spans)
        if not found:
            raise BadData("There is nothing to evaluate on; give outcomes of a task, or spans.")
        return found


@dataclass(frozen=True)
class Change(Result):
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
class Tuned(Result):
    """One arm: what was tuned (`fit` None: nothing), and what that changed.

    `neurons` is the number tuned, None where the arm is not one of neurons. `seconds`: tuning and
    evaluation.
    """

    arm: str
    draw: int | None
    neurons: int | None
    fit: Fit | None
    changes: tuple[Change, ...]
    seconds: float


@dataclass(frozen=True)
class Control(Result):
    """The draws of a random arm on one task under one measure, beside the located neurons.

    `mean` and `sd` (of a sample) are of the draws' `changes`; `excess` is the located neurons'
    change less the mean draw's, by bootstrap over examples; `gain` the same in units of `sd`, None
    if the draws do not differ. `p` is one-sided: the share of changes, the located one included,
    that reach it, so with n draws never below 1 / (n + 1).
    """

    arm: str
    task: str
    measure: str
    located: float
    changes: tuple[float, ...]
    mean: float
    sd: float
    excess: Interval
    gain: float | None
    p: float | None


@dataclass(frozen=True)
class Enhancement(Result):
    """All arms, and the located one held against the random ones.

    `trained_on` and `held_out` count the training examples that weights were fitted to and the
    learning rate was chosen by.
    """

    recipe: Recipe
    trained_on: int
    held_out: int
    arms: tuple[Tuned, ...]
    controls: tuple[Control, ...]


def enhance(
    loaded: CutModel,
    spans: Sequence[Span],
    evaluation: Evaluation,
    arms: Sequence[Arm],
    recipe: Recipe,
    *,
    progress: Progress | None = None,
) -> Enhancement:
    """Tune each arm on the spans' continuations and evaluate it; the model is left as it was.

    Raises:
        BadOption: if there is no arm, or the recipe has a value that cannot be used.
        BadData: if there are fewer than 2 spans, or nothing to evaluate on.
        ModelRefused: if the model's weights cannot be tuned.
        RunFailed: if an arm's training diverges at every learning rate.
    """
    if not arms:
        raise BadOption("There is no arm to tune; name at least one.")
    given = lessons(spans, recipe, loaded.model.device)
    for arm in arms:
        check(loaded.model, arm, recipe)
    before = evaluation.measure(loaded)
    tuned: list[Tuned] = []
    after: dict[str, list[Measured]] = defaultdict(list)
    for arm in arms:
        begun = time.perf_counter()
        fit, measured = tune(loaded, arm, given, evaluation, recipe, progress)
        measured = before if measured is None else measured
        after[arm.name].append(measured)
        seconds = time.perf_counter() - begun
        tuned.append(
            Tuned(
                arm=arm.name,
                draw=arm.draw,
                neurons=None if arm.chosen is None or arm.name == "lora" else int(arm.chosen.sum()),
                fit=fit,
                changes=changes(before, measured, recipe.seed),
                seconds=seconds,
            )
        )
    return Enhancement(
        recipe=recipe,
        trained_on=given.examples,
        held_out=given.held_out,
        arms=tuple(tuned),
        controls=controls(before, after, recipe.seed),
    )


def tune(
    loaded: CutModel,
    arm: Arm,
    given: Lessons,
    evaluation: Evaluation,
    recipe: Recipe,
    progress: Progress | None,
) -> tuple[Fit | None, Measured | None]:
    """Tune one arm and evaluate it; None twice where there is nothing to tune."""
    with opened(loaded.model, arm, recipe) as trainable:
        if trainable is None:
            return None, None
        what = f"tuning {arm.label}"
        fit = search(loaded.model, trainable, given, recipe, progress=progress, what=what)
        with trainable.written():
            return fit, evaluation.measure(loaded)


def changes(before: Measured, after: Measured, seed: int) -> tuple[Change, ...]:
    """The change of every task under every measure."""
    found = []
    for (task, measure), old in before.items():
        new = after[task, measure]
        known = ~np.isnan(old) & ~np.isnan(new)
        interval = paired_interval(new, old, seed=seed)
        means = [float(each[known].mean()) if known.any() else np.nan for each in (old, new)]
        found.append(Change(task, measure, means[0], means[1], interval))
    return tuple(found)


def controls(
    before: Measured, after: Mapping[str, Sequence[Measured]], seed: int
) -> tuple[Control, ...]:
    """The located neurons beside each random arm, where both were tuned."""
    found = []
    for name in DRAWN:
        if LOCATED not in after or len(after.get(name, ())) < FEWEST:
            continue
        for key, old in before.items():
            own = after[LOCATED][0][key] - old
            drawn = np.stack([measured[key] - old for measured in after[name]])
            known = ~np.isnan(own) & ~np.isnan(drawn).any(axis=0)
            found.append(_control(name, key, own[known], drawn[:, known], seed))
    return tuple(found)


def _control(
    arm: str,
    key: tuple[str, str],
    located: Outcomes,
    drawn: Float64[np.ndarray, "draws examples"],
    seed: int,
) -> Control:
    held = specificity(located, drawn, seed=seed)
    each = drawn.mean(axis=1) if drawn.size else np.full(len(drawn), np.nan)
    return Control(
        arm=arm,
        task=key[0],
        measure=key[1],
        located=float(located.mean()) if located.size else np.nan,
        changes=tuple(each.tolist()),
        mean=float(each.mean()),
        sd=float(each.std(ddof=1)),
        excess=held.excess,
        gain=held.pooled_gain,
        p=held.p,
    )
