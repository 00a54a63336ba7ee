"""Tune what an arm may tune, each arm at its own best learning rate; and which arms there are.

Teacher-forced cross-entropy of the gold answer tokens alone, the same lessons for every arm; AdamW
without weight decay, which would move weights that have no gradient; linear warm-up, then a
constant rate; gradients clipped by their norm. How the paper's authors tuned is not known to us:
this recipe is ours.
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate.utils.memory import clear_device_cache
from torch import Tensor, nn
from transformers import PreTrainedModel

from caploc.cache import digest
from caploc.components import Grid
from caploc.designs import generator
from caploc.engine.encoding import Span
from caploc.errors import BadData, BadOption, RunFailed, pick
from caploc.neurons.engine import (
    Batch,
    Batcher,
    checkpointed,
    gold_logprobs,
    gold_means,
)
from caploc.neurons.model import Chosen, find_sites
from caploc.neurons.weights import (
    Trainable,
    TrainableLora,
    TrainableRows,
    TrainableWhole,
    Trains,
    adaptable,
    check_chosen,
    require_peft_to_train,
    shares_by_projection,
)
from caploc.progress import Progress, Silent
from caploc.stats import JsonRecord
from caploc.stats.chance import FEWEST, random_sets
from caploc.workbench import ModelOptions

RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
FOLLOWED = 10  # last steps whose mean is the training loss


@dataclass(frozen=True)
class TuningRecipe(JsonRecord):
    """How every arm is tuned.

    Each of `rates`, in rising order, is tried with `steps` batches of `batch_size` examples, of
    which the first `warmup` raise the rate linearly. `held_out` is the share of the training
    examples on which the best rate is chosen; where it is the lowest or highest tried, up to
    `extensions` more are tried beyond it, spaced alike. `clip` is the largest gradient norm.
    `trains` says which weights of a neuron are tuned. `seed` fixes the split, the batches and
    the random start of adapters. With `checkpointing` layers are run again on the way back instead
    of keeping what they computed.
    """

    steps: int = 60
    batch_size: int = 16
    warmup: int = 5
    clip: float = 1.0
    rates: tuple[float, ...] = RATES
    extensions: int = 4
    held_out: float = 0.2
    trains: Trains = "all"
    seed: int = 0
    checkpointing: bool = False

    def check(self) -> None:
        for name, least in (("steps", 1), ("batch_size", 1), ("warmup", 0), ("extensions", 0)):
            if getattr(self, name) < least:
                raise BadOption(f"{name} must be {least} or more; got {getattr(self, name)}.")
        if not 0 < self.clip < math.inf:
            raise BadOption(
                f"clip, the largest gradient norm, must be positive; got {self.clip:g}."
            )
        if not 0 < self.held_out < 1:
            raise BadOption(
                f"held_out is a share of the training examples between 0 and 1; "
                f"got {self.held_out:g}."
            )
        rising = all(low < high for low, high in zip(self.rates, self.rates[1:], strict=False))
        if not self.rates or not rising or not 0 < self.rates[0] <= self.rates[-1] < math.inf:
            raise BadOption(
                f"rates must be one or more positive learning rates in rising order; got "
                f"{', '.join(f'{rate:g}' for rate in self.rates) or 'none'}."
            )


@dataclass(frozen=True)
class Lessons:
    """The batches that every arm is tuned with, in order, and those it is chosen by."""

    train: tuple[tuple[Span, ...], ...]
    validation: tuple[Span, ...]
    examples: int


@dataclass(frozen=True)
class RateTrial(JsonRecord):
    """One learning rate; losses in nats a token, None where training diverged.

    `train_loss` is the mean of the last 10 steps, `validation_loss` that of the examples held out.
    """

    rate: float
    train_loss: float | None
    validation_loss: float | None


@dataclass(frozen=True)
class TuningFit(JsonRecord):
    """What tuning an arm came to.

    `parameters` is the number of values trained, `untuned_loss` the validation loss before.
    `at_edge`: the best rate is the lowest or highest of several tried, so that a better one may lie
    beyond.
    """

    parameters: int
    steps: int
    best: RateTrial
    at_edge: bool
    untuned_loss: float
    trials: tuple[RateTrial, ...]


def check_tunable(asked: ModelOptions) -> None:
    """Refuse, as a BadOption before they are read, weights that cannot be changed in place."""
    weights = asked.weights()
    if weights.quantized or weights.where.spread:
        how = "quantized" if weights.quantized else "spread over devices"
        raise BadOption(
            f"Tuning changes the weights of {asked.name}, which are {how} in this run; locate its "
            "neurons on plain weights on one device, in a new folder, and tune those."
        )


def make_lessons(spans: Sequence[Span], recipe: TuningRecipe) -> Lessons:
    """Split the training examples and deal them into batches."""
    recipe.check()
    train, held_out = split_validation(spans, recipe.held_out, recipe.seed)
    ordered = deal(train, recipe.batch_size, recipe.steps, recipe.seed)
    return Lessons(tuple(ordered), held_out, len(train))


def split_validation(
    spans: Sequence[Span], share: float, seed: int
) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    """Part what to train on from a random part, `share` of all and at least one, to choose by.

    Raises BadData if there are fewer than 2 spans.
    """
    if len(spans) < 2:
        raise BadData(
            f"{len(spans)} training examples cannot be split into some to train on and some to "
            "choose the learning rate by; give at least 2, and better 100."
        )
    held_out = min(max(1, round(share * len(spans))), len(spans) - 1)
    order = generator(seed).permutation(len(spans)).tolist()
    return tuple(spans[i] for i in order[held_out:]), tuple(spans[i] for i in order[:held_out])


def deal(spans: Sequence[Span], size: int, count: int, seed: int) -> list[tuple[Span, ...]]:
    """Deal spans into batches of `size`, each once before any comes again, every round shuffled.

    Asking for more batches keeps the first ones. Fewer spans than `size` make smaller ones.
    """
    size, random = min(size, len(spans)), generator(seed)
    order: list[int] = []
    while len(order) < size * count:
        order += random.permutation(len(spans)).tolist()
    return [tuple(spans[i] for i in order[n * size : (n + 1) * size]) for n in range(count)]


def find_best_rate(
    model: PreTrainedModel,
    trainable: Trainable,
    given: Lessons,
    recipe: TuningRecipe,
    progress: Progress | None = None,
    what: str = "tune",
) -> TuningFit:
    """Tune at every rate from the same start, and leave `trainable` at the best one's weights.

    Raises RunFailed if the training diverges at every rate.
    """
    progress = progress or Silent()

    def copy() -> list[Tensor]:
        return [parameter.detach().clone() for parameter in trainable.parameters()]

    start = copy()
    untuned = validation_loss(model, given)
    trials: dict[float, RateTrial] = {}
    weights: list[Tensor] = start
    planned = list(recipe.rates)
    progress.start(what, recipe.steps * len(planned))
    while planned:
        rate = planned.pop(0)
        _set(trainable, start)
        trials[rate] = train_once(model, trainable, given, rate, recipe, progress)
        if _best(trials) == trials[rate]:
            weights = copy()
        if not planned and len(trials) < len(recipe.rates) + recipe.extensions:
            planned = _beyond(trials)
            if planned:
                progress.start(f"{what}, at {planned[0]:.1g}", recipe.steps)
    _set(trainable, weights)
    best = _best(trials)
    if best is None:
        raise RunFailed(
            f"{what}: training diverged at every learning rate from {min(trials):.1g} to "
            f"{max(trials):.1g}; give lower ones."
        )
    return TuningFit(
        parameters=sum(parameter.numel() for parameter in trainable.parameters()),
        steps=recipe.steps,
        best=best,
        at_edge=bool(_beyond(trials)),
        untuned_loss=untuned,
        trials=tuple(trials[rate] for rate in sorted(trials)),
    )


def train_once(
    model: PreTrainedModel,
    trainable: Trainable,
    given: Lessons,
    rate: float,
    recipe: TuningRecipe,
    progress: Progress,
) -> RateTrial:
    """Take every lesson once, in order, at one learning rate."""
    parameters = trainable.parameters()
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / max(1, recipe.warmup))
    )
    batcher, sites = Batcher(model), find_sites(model)[0]
    losses: list[float] = []
    for number, spans in enumerate(given.train):
        optimizer.zero_grad()
        with checkpointed(model, sites) if recipe.checkpointing else nullcontext():
            losses.append(accumulate_gradients(model, trainable, spans, batcher))
        if not math.isfinite(losses[-1]):
            progress.advance(len(given.train) - number, 0)
            return RateTrial(rate, None, None)
        nn.utils.clip_grad_norm_(parameters, recipe.clip)
        optimizer.step()
        schedule.step()
        trainable.settle()
        progress.advance(1, sum(len(span.inputs) for span in spans))
    last = losses[-FOLLOWED:]
    after = validation_loss(model, given)
    finite = math.isfinite(after)
    return RateTrial(rate, sum(last) / len(last) if finite else None, after if finite else None)


def accumulate_gradients(
    model: PreTrainedModel, trainable: Trainable, spans: Sequence[Span], batcher: Batcher
) -> float:
    """Add up the gradients of the mean loss of a batch, in as many passes as memory asks for.

    Where a pass does not fit the batch is begun again in smaller ones. Returns the loss, in nats a
    token. Raises OutOfMemory if not even one example fits.
    """
    count = sum(len(span.continuation) for span in spans)
    longest = max(spans, key=lambda span: len(span.inputs))
    rows = min(len(spans), batcher.rows(longest, 1))
    try:
        total = 0.0
        for start in range(0, len(spans), rows):
            batch = Batch.of(spans[start : start + rows], model.device)
            loss = -gold_logprobs(model, batch).sum() / count
            loss.backward()
            total += float(loss.detach())
        return total
    except Exception as error:
        batcher.sizer.shrink(error, smallest=rows == 1)
        batcher.sizer.most = rows // 2
    # Outside the handler: the failed pass's tensors are held by the exception until here.
    clear_device_cache(garbage_collection=True)
    for parameter in (*trainable.parameters(), *model.parameters()):
        parameter.grad = None
    return accumulate_gradients(model, trainable, spans, batcher)


def validation_loss(model: PreTrainedModel, given: Lessons) -> float:
    """Average the loss of the held-out examples' answer tokens, in nats."""
    lengths = [len(span.continuation) for span in given.validation]
    return -float(np.average(gold_means(model, given.validation), weights=lengths))


def _best(trials: dict[float, RateTrial]) -> RateTrial | None:
    known = [trial for trial in trials.values() if trial.validation_loss is not None]
    return min(known, key=lambda trial: trial.validation_loss or 0.0, default=None)


def _beyond(trials: dict[float, RateTrial]) -> list[float]:
    """Name the rate to try next where the best is the lowest or highest of several, else none."""
    rates = sorted(trials)
    best = _best(trials)
    if len(rates) < 2 or (best is not None and rates[0] < best.rate < rates[-1]):
        return []
    # where every rate diverged, only lower ones can help
    edge, inner = (rates[0], rates[1]) if best is None or best.rate == rates[0] else rates[:-3:-1]
    return [edge * edge / inner]


@torch.no_grad()
def _set(trainable: Trainable, values: Sequence[Tensor]) -> None:
    for parameter, value in zip(trainable.parameters(), values, strict=True):
        parameter.copy_(value)
        parameter.grad = None
    trainable.settle()


LOCATED, RANDOM = "located", "random"
ARMS = {
    "none": "nothing is tuned",
    LOCATED: "the located neurons",
    RANDOM: "as many random neurons in each layer as are located there, drawn several times",
    "lora": "low-rank adapters with as many parameters as the located neurons",
    "full": "all weights of the model",
}
USUAL = tuple(name for name in ARMS if name != "full")  # whose memory grows with the model


@dataclass(frozen=True)
class TuningArm:
    """One thing to tune: `name` is of `ARMS`, `draw` counts the sets of a random arm from 0.

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

    @property
    def label(self) -> str:
        return self.name if self.draw is None else f"{self.name} {self.draw + 1}"

    def question(self) -> dict[str, Any]:
        """Tell what is tuned, whatever it is tuned with."""
        columns = None if self.chosen is None else np.flatnonzero(self.chosen).tolist()
        return {"arm": self.name, "draw": self.draw, "neurons": digest({"columns": columns})}

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
    names: Sequence[str] = tuple(ARMS),
    draws: int = FEWEST,
    seed: int = 0,
) -> list[TuningArm]:
    """Make the arms of these names, the random one `draws` times.

    Random neurons leave the located ones out, as far as there are enough others. Asking for more
    draws keeps the first ones. Raises UnknownName if there is no arm of such a name; BadOption if
    nothing is located, draws are fewer than 5, or "lora" has no PEFT.
    """
    check_chosen(located, grid.size)
    for name in names:
        pick(ARMS, name, "arm")
    if draws < FEWEST and RANDOM in names:
        raise BadOption(
            f"draws={draws}: a random arm needs {FEWEST} draws or more for its standard deviation."
        )
    if "lora" in names:
        require_peft_to_train()
    found: list[TuningArm] = []
    for name in dict.fromkeys(names):
        if name == RANDOM:
            drawn = random_sets(located, grid, draws, seed=seed)
            found += [TuningArm(name, each, number) for number, each in enumerate(drawn)]
        else:
            found.append(TuningArm(name, None if name in ("none", "full") else located))
    return found


def parameter_count(model: PreTrainedModel, chosen: Chosen, recipe: TuningRecipe) -> int:
    """Count the values that tuning these neurons trains."""
    return sum(
        value.numel()
        for share in shares_by_projection(model, chosen, recipe.trains)
        for value in share.read().values()
    )
