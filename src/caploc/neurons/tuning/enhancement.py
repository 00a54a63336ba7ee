"""Does tuning the located neurons help, more than tuning as many others?

    arms = make_arms(located, loaded.grid)
    found = enhance(loaded, train_spans, measure, arms, TuningRecipe())

Every arm is tuned on the same lessons, evaluated as a plain model, and undone. The paper compares
located neurons with random ones; the other arms are ours.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from transformers import PreTrainedModel

from caploc.engine.encoding import Span
from caploc.errors import BadOption
from caploc.grid import Grid
from caploc.lookup import pick
from caploc.models.loading import CutModel
from caploc.neurons.sites import Chosen
from caploc.neurons.tuning.trainable import (
    Trainable,
    TrainableLora,
    TrainableRows,
    TrainableWhole,
    adaptable,
    require_peft_to_train,
)
from caploc.neurons.tuning.training import (
    Lessons,
    TuningFit,
    TuningRecipe,
    find_best_rate,
    make_lessons,
)
from caploc.neurons.tuning.weights import check_chosen, shares_by_projection
from caploc.progress import Progress
from caploc.stats.chance import FEWEST, bottom, layer_matched, specificity, uniform
from caploc.stats.intervals import Interval, JsonRecord, paired_interval
from caploc.stats.threshold import Scores

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
DRAWN = ("random-uniform", "random-layer-matched")
METRIC, GOLD = "metric", "gold log-probability"
Outcomes = Float64[np.ndarray, " examples"]
Measured = dict[tuple[str, str], Outcomes]  # by task and measure; NaN where there is no outcome
# The model it gets has other weights every time, so it must keep nothing of an earlier call.
Measure = Callable[[CutModel], Measured]


@dataclass(frozen=True)
class TuningArm:
    """One thing to tune: `name` is of `ARMS`, `draw` counts the sets of a random arm from 0.

    `chosen` are the neurons tuned or, of adapters, those whose number of parameters they match;
    None for the arms "none" and "full".
    """

    name: str
    chosen: Chosen | None = None
    draw: int | None = None

    @property
    def label(self) -> str:
        return self.name if self.draw is None else f"{self.name} {self.draw + 1}"

    def check(self, model: PreTrainedModel, recipe: TuningRecipe) -> None:
        """Refuse, before anything is tuned, an arm that this model cannot have."""
        if self.chosen is not None:
            shares_by_projection(model, self.chosen, recipe.trains)
        if self.name == "lora":
            adaptable(model, recipe.trains)

    @contextmanager
    def opened(self, model: PreTrainedModel, recipe: TuningRecipe) -> Iterator[Trainable | None]:
        """Open what the arm may tune, None for "none"; after it the model is what it was."""
        trainable = self._trainable(model, recipe)
        try:
            yield trainable
        finally:
            if trainable is not None:
                trainable.detach()

    def _trainable(self, model: PreTrainedModel, recipe: TuningRecipe) -> Trainable | None:
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
        if name == "random-uniform":
            drawn = uniform(located, draws, seed=seed)
        elif name == "random-layer-matched":
            drawn = layer_matched(located, grid, draws, seed=seed)
        else:
            found.append(TuningArm(name, _chosen(name, located, scores)))
            continue
        found += [TuningArm(name, each, number) for number, each in enumerate(drawn)]
    return found


def _chosen(name: str, located: Chosen, scores: Scores | None) -> Chosen | None:
    if name == "bottom" and scores is not None:
        return bottom(scores, located)
    if name in ("none", "full"):
        return None
    return ~located if name == "complement" else located


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

    `neurons` is the number tuned, None where the arm is not one of neurons. `seconds`: tuning and
    evaluation.
    """

    arm: str
    draw: int | None
    neurons: int | None
    fit: TuningFit | None
    changes: tuple[TuningChange, ...]
    seconds: float


@dataclass(frozen=True)
class TuningControl(JsonRecord):
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
        begun = time.perf_counter()
        fit, measured = _tune(loaded, arm, given, measure, recipe, progress)
        measured = before if measured is None else measured
        after[arm.name].append(measured)
        neurons = None if arm.chosen is None or arm.name == "lora" else int(arm.chosen.sum())
        changes = _changes(before, measured, recipe.seed)
        seconds = time.perf_counter() - begun
        tuned.append(Tuned(arm.name, arm.draw, neurons, fit, changes, seconds))
    return TuningResult(
        recipe=recipe,
        trained_on=given.examples,
        held_out=given.held_out,
        arms=tuple(tuned),
        controls=tuple(_controls(before, after, recipe.seed)),
    )


def _tune(
    loaded: CutModel,
    arm: TuningArm,
    given: Lessons,
    measure: Measure,
    recipe: TuningRecipe,
    progress: Progress | None,
) -> tuple[TuningFit | None, Measured | None]:
    """Tune one arm and evaluate it; None twice where there is nothing to tune."""
    with arm.opened(loaded.model, recipe) as trainable:
        if trainable is None:
            return None, None
        what = f"tuning {arm.label}"
        fit = find_best_rate(loaded.model, trainable, given, recipe, progress=progress, what=what)
        with trainable.written():
            return fit, measure(loaded)


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
                mean=float(each.mean()),
                sd=float(each.std(ddof=1)),
                excess=held.excess,
                gain=held.pooled_gain,
                p=held.p,
            )
