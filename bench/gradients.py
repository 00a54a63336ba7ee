"""Scores of heads that need gradients instead of knockouts: attribution, and learned gates.

Both multiply what each head hands to its output projection by a gate. The derivative with respect
to gates of 1 is the sum over positions of (gradient x activation): what a knockout would do if the
model were linear. Learned gates follow the idea of causal head gating (Nam et al., 2025).
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import rivals
from caploc import designs
from caploc.engine.encoding import RequestEncoder, Span
from caploc.errors import BadOption
from caploc.measurement import Meter
from caploc.models.loading import LoadedModel
from caploc.search import Problem
from caploc.tasks.harness import HarnessTask
from clock import Stopwatch
from driving import Done
from metering import metered

PENALTIES = (0.01, 0.03, 0.1)  # nats that an open gate costs; each gives a set, the best is kept
STEPS, BATCH = 100, 16
SPEED = 0.1  # of Adam
OPEN = 2.0  # logit of a gate to begin with: 0.88
PASSES = 3  # rows that one pass forward and backward counts as
ATTRIBUTION, GATES = "gradient x activation", "learned gates"


@dataclass(frozen=True)
class Scored:
    """Effects by which heads are ranked (most negative first), and what they took.

    `passes` counts readings of an example, in units of a pass forward.
    """

    effects: list[np.ndarray]
    passes: int
    seconds: float


class Gold:
    """The gold answers of a task's examples, as tokens to read and to score."""

    def __init__(self, loaded: LoadedModel, task: HarnessTask, examples: Sequence[int]) -> None:
        """Word the examples.

        Raises:
            BadOption: if the task has no gold answers.
        """
        asked = HarnessTask(task.name, task.leaves, task.group, "logprob")
        wording = RequestEncoder(loaded.model, loaded.tokenizer)
        self.loaded = loaded
        self.spans: list[Span] = [
            span
            for example in examples
            for request in asked.requests(example)
            for span in wording.spans(request)  # type: ignore[arg-type]
        ]

    def logprob(self, chosen: Sequence[int]) -> Tensor:
        """The mean log-probability of a token of the gold answer, for each of the spans chosen."""
        spans = [self.spans[number] for number in chosen]
        total = logprobs(self.loaded, spans)
        counts = torch.tensor([len(span.continuation) for span in spans], device=total.device)
        return total / counts


def logprobs(loaded: LoadedModel, spans: Sequence[Span]) -> Tensor:
    """The log-probability of each span's continuation, its tokens summed."""
    longest = max(len(span.inputs) for span in spans)
    ids = torch.zeros((len(spans), longest), dtype=torch.long)
    rows, positions, tokens = [], [], []
    for row, span in enumerate(spans):
        end, scored = len(span.inputs), len(span.continuation)
        ids[row, :end] = torch.tensor(span.inputs)
        rows += [row] * scored
        positions += range(end - scored, end)
        tokens += span.continuation
    model: Any = loaded.model
    # padding stands behind the text, where causal attention does not look
    hidden = model.base_model(ids.to(model.device), use_cache=False).last_hidden_state
    logits = model.get_output_embeddings()(hidden[rows, positions]).float()
    read = torch.log_softmax(logits, dim=-1)[range(len(tokens)), tokens]
    return read.new_zeros(len(spans)).index_add(0, torch.tensor(rows, device=read.device), read)


@contextmanager
def gated(loaded: LoadedModel, gates: Tensor) -> Iterator[None]:
    """Multiply what every head hands on by its gate inside the block.

    `gates` is one row for all texts of a batch, or a row for each.
    """

    def scale(columns: slice) -> Any:
        def hook(module: Any, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            mixed, *rest = args
            per_head = mixed.unflatten(-1, (columns.stop - columns.start, -1))
            return (per_head * gates[..., None, columns, None]).flatten(-2), *rest

        return hook

    handles = [
        projection.register_forward_pre_hook(scale(columns))
        for projection, columns in zip(loaded.projections, loaded.grid.layer_slices, strict=True)
        if projection is not None
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def attribution(gold: Gold) -> Scored:
    """Gradient x activation: to first order, what each knockout does to the log-probability."""
    watch = Stopwatch()
    gold.loaded.model.requires_grad_(False)
    gates = torch.ones(gold.loaded.grid.size, device=gold.loaded.device, requires_grad=True)
    count = len(gold.spans)
    with gated(gold.loaded, gates):
        for start in range(0, count, BATCH):
            gold.logprob(range(start, min(start + BATCH, count))).sum().backward()
    assert gates.grad is not None
    effect = -gates.grad.double().cpu().numpy() / count
    return Scored([effect], PASSES * count, watch.read().wall)


def learned_gates(gold: Gold, seed: int) -> Scored:
    """Gates that stay open only where the gold answers need them, one set for each penalty.

    Maximises the mean log-probability less `penalty` times the sum of the gates; the more open its
    gate ends, the more a head is needed.
    """
    watch = Stopwatch()
    gold.loaded.model.requires_grad_(False)
    effects = [-trained(gold, penalty, seed) for penalty in PENALTIES]
    return Scored(effects, PASSES * STEPS * BATCH * len(PENALTIES), watch.read().wall)


def trained(gold: Gold, penalty: float, seed: int) -> np.ndarray:
    """The gates' logits after training."""
    random = designs.generator(seed)
    logits = torch.full((gold.loaded.grid.size,), OPEN, device=gold.loaded.device)
    logits.requires_grad_()
    optimizer = torch.optim.Adam([logits], lr=SPEED)
    size = min(BATCH, len(gold.spans))
    for _ in range(STEPS):
        chosen = random.choice(len(gold.spans), size=size, replace=False).tolist()
        gates = torch.sigmoid(logits)
        with gated(gold.loaded, gates):
            loss = penalty * gates.sum() - gold.logprob(chosen).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return logits.detach().double().cpu().numpy()


def graded(
    loaded: LoadedModel, meter: Meter, problem: Problem, methods: Collection[str]
) -> Iterator[tuple[str, Done]]:
    """What both find, of the methods named (all if none is); nothing without gold answers."""
    try:
        gold = Gold(loaded, meter.task, problem.examples)  # type: ignore[arg-type]
    except BadOption:
        return
    for name in (ATTRIBUTION, GATES):
        if methods and name not in methods:
            continue
        attributed = name == ATTRIBUTION
        scored = attribution(gold) if attributed else learned_gates(gold, problem.settings.seed)
        done = metered(rivals.best_of(problem, scored.effects), [meter])
        yield (
            name,
            replace(
                done,
                rows=done.rows + scored.passes,
                measuring=done.measuring + scored.seconds,
            ),
        )
