"""Tune what an arm may tune, each arm at its own best learning rate; and which arms there are.

Teacher-forced cross-entropy of the gold answer tokens alone, the same lessons for every arm; AdamW
without weight decay, which would move weights that have no gradient; linear warm-up, then a
constant rate; gradients clipped by their norm. How the paper's authors tuned is not known to us:
this recipe is ours.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate.utils.memory import clear_device_cache
from torch import Tensor, nn
from transformers import PreTrainedModel

from caploc.components import Grid
from caploc.declaration import ModelOptions
from caploc.designs import generator
from caploc.engine.encoding import Span
from caploc.errors import BadData, BadOption, RunFailed, pick
from caploc.files import digest
from caploc.neurons.chance import random_sets
from caploc.neurons.engine import Batch, Batcher, gold_logprobs, gold_means
from caploc.neurons.model import Chosen
from caploc.neurons.options import FEWEST, RANDOM, TUNED, TuningRecipe
from caploc.neurons.result import TuningFit
from caploc.neurons.weights import (
    Tunable,
    check_chosen,
    tune_adapters,
    tune_everything,
    tune_neurons,
)
from caploc.progress import Progress, Silent

WARMUP = 5  # first steps, which raise the rate linearly
CLIP = 1.0  # the largest norm of a step's gradients
HELD_OUT = 0.2  # of the training examples, by which the rate is chosen


@dataclass(frozen=True)
class Lessons:
    """The batches that every arm is tuned with, in order, and the examples it is chosen by."""

    train: tuple[tuple[Span, ...], ...]
    validation: tuple[Span, ...]
    examples: int


def check_tunable(asked: ModelOptions) -> None:
    """Refuse, as a BadOption before they are read, weights that cannot be changed in place."""
    weights = asked.weights()
    if weights.quantized or weights.spread:
        how = "quantized" if weights.quantized else "spread over devices"
        raise BadOption(
            f"Tuning changes the weights of {asked.name}, which are {how} in this run; locate its "
            "neurons on plain weights on one device, in a new folder, and tune those."
        )


def make_lessons(spans: Sequence[Span], recipe: TuningRecipe) -> Lessons:
    """Split the training examples and deal them into batches.

    Raises BadData if there are fewer than 2.
    """
    train, held_out = split_validation(spans, HELD_OUT, recipe.seed)
    ordered = deal(train, recipe.batch_size, recipe.steps, recipe.seed)
    return Lessons(tuple(ordered), held_out, len(train))


def split_validation(
    spans: Sequence[Span], share: float, seed: int
) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    """Part what to train on from a random part, `share` of all and at least one, to choose by."""
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


def find_best_rate(  # noqa: PLR0913  (what is tuned, with what, and how it is told)
    model: PreTrainedModel,
    tunable: Tunable,
    lessons: Lessons,
    recipe: TuningRecipe,
    progress: Progress | None = None,
    what: str = "tune",
    tried: Sequence[float] = (),
) -> TuningFit:
    """Tune at every rate from the same start, and leave the model at the best one's weights.

    Where some rates are `tried`, the recipe's others are not. Raises RunFailed if the training
    diverges at every rate.
    """
    progress = progress or Silent()

    def copy() -> list[Tensor]:
        return [parameter.detach().clone() for parameter in tunable.parameters]

    start = best = copy()
    untuned, losses = validation_loss(model, lessons), dict[float, float]()
    rates = tried or recipe.rates
    progress.start(what, recipe.steps * len(rates))
    for rate in rates:
        tunable.settle(start)
        losses[rate] = train_once(model, tunable, lessons, rate, recipe, progress)
        if losses[rate] == min(losses.values()):
            best = copy()
    tunable.settle(best)
    found = min(losses, key=lambda rate: losses[rate])
    if losses[found] == math.inf:
        raise RunFailed(
            f"{what}: training diverged at every learning rate from {min(losses):.1g} to "
            f"{max(losses):.1g}; give lower ones."
        )
    return TuningFit(
        parameters=sum(parameter.numel() for parameter in tunable.parameters),
        rate=found,
        at_edge=len(recipe.rates) > 1 and found in (recipe.rates[0], recipe.rates[-1]),
        untuned_loss=untuned,
        losses={rate: loss if loss < math.inf else None for rate, loss in losses.items()},
    )


def train_once(
    model: PreTrainedModel,
    tunable: Tunable,
    lessons: Lessons,
    rate: float,
    recipe: TuningRecipe,
    progress: Progress,
) -> float:
    """Take every lesson once, in order, at one learning rate; the loss after it, inf if none."""
    optimizer = torch.optim.AdamW(tunable.parameters, lr=rate, weight_decay=0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / WARMUP)
    )
    batcher = Batcher(model)
    for number, spans in enumerate(lessons.train):
        optimizer.zero_grad()
        loss = accumulate_gradients(model, tunable, spans, batcher)
        if not math.isfinite(loss):
            progress.advance(len(lessons.train) - number, 0)
            return math.inf
        nn.utils.clip_grad_norm_(tunable.parameters, CLIP)
        optimizer.step()
        schedule.step()
        tunable.settle()
        progress.advance(1, sum(len(span.inputs) for span in spans))
    after = validation_loss(model, lessons)
    return after if math.isfinite(after) else math.inf


def accumulate_gradients(
    model: PreTrainedModel, tunable: Tunable, spans: Sequence[Span], batcher: Batcher
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
    for parameter in (*tunable.parameters, *model.parameters()):
        parameter.grad = None
    return accumulate_gradients(model, tunable, spans, batcher)


def validation_loss(model: PreTrainedModel, lessons: Lessons) -> float:
    """Average the loss of the held-out examples' answer tokens, in nats."""
    lengths = [len(span.continuation) for span in lessons.validation]
    return -float(np.average(gold_means(model, lessons.validation), weights=lengths))


@dataclass(frozen=True)
class TuningArm:
    """One thing to tune: `name` is of `TUNED`, `draw` counts the sets of a random arm from 0.

    `chosen` are the neurons tuned or, of adapters, those whose number of parameters they match;
    None for the arms "none" and "full".
    """

    name: str
    chosen: Chosen | None = None
    draw: int | None = None

    @property
    def tunes(self) -> bool:
        return self.name != "none"

    @property
    def label(self) -> str:
        return self.name if self.draw is None else f"{self.name} {self.draw + 1}"

    def question(self) -> dict[str, Any]:
        """Tell what is tuned, whatever it is tuned with."""
        columns = None if self.chosen is None else np.flatnonzero(self.chosen).tolist()
        return {"arm": self.name, "draw": self.draw, "neurons": digest({"columns": columns})}

    def open(self, model: PreTrainedModel, seed: int) -> Tunable:
        """Open what the arm may tune, to be used with `with`."""
        if self.chosen is None:
            return tune_everything(model) if self.name == "full" else Tunable([])
        if self.name == "lora":
            return tune_adapters(model, self.chosen, seed)
        return tune_neurons(model, self.chosen)


def make_arms(
    located: Chosen,
    grid: Grid,
    *,
    names: Sequence[str] = tuple(TUNED),
    draws: int = FEWEST,
    seed: int = 0,
) -> list[TuningArm]:
    """Make the arms of these names, the random one `draws` times.

    Random neurons leave the located ones out, as far as there are enough others. Asking for more
    draws keeps the first ones. Raises UnknownName if there is no arm of such a name; BadOption if
    nothing is located.
    """
    check_chosen(located, grid.size)
    found: list[TuningArm] = []
    for name in dict.fromkeys(names):
        pick(TUNED, name, "arm")
        if name == RANDOM:
            drawn = random_sets(located, grid, draws, seed=seed)
            found += [TuningArm(name, each, number) for number, each in enumerate(drawn)]
        else:
            found.append(TuningArm(name, None if name in ("none", "full") else located))
    return found
