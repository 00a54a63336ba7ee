"""Edge attribution patching with integrated gradients (EAP-IG): what each edge does for an answer.

A clean and a corrupted prompt of the same number of tokens ask for two answers, gold and other.
With the loss `-(logit gold - logit other)` at the last position, the score of an edge is

    sum over positions (corrupted - clean output of the source) . gradient at the target's input,

the gradient averaged over m steps of the input embedding from the corrupted to the clean prompt. It
estimates how much the loss rises when the edge alone carries what it carries for the corrupted
prompt: a positive edge works for the gold answer. Hanna, Pezzelle and Belinkov (2024), "Have faith
in faithfulness"; used for knowledge circuits by Yao et al. (2024). The steps lie at the middle of m
equal parts of the way, which is our choice: of all rules with m points it integrates best. m is 100
by default, as in released code for large models; small ones need no more than 20.
"""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from caploc.errors import BadOption
from caploc.neurons.circuits.graph import Stage
from caploc.neurons.circuits.opening import OpenModel, copied
from caploc.neurons.circuits.recording import Pair, record

STEPS = 100
BATCH = 20  # steps run at a time


class _Steps:
    """Sends points between two embeddings through the model, and keeps each target's copy."""

    def __init__(self, hidden: Float[Tensor, "rows time width"]) -> None:
        """Take the points, one for each row."""
        self.hidden = hidden.requires_grad_()
        self.copies: list[Tensor] = []

    def enter(self, hidden: Tensor) -> Tensor:
        """Put the points in place of the input."""
        return self.hidden

    def read(self, stage: Stage, residual: Tensor) -> Tensor:
        """Give each target a copy to take a gradient at."""
        copies = copied(stage, residual)
        self.copies.append(copies)
        return copies

    def wrote(self, stage: Stage, output: Callable[[], Tensor]) -> None:
        """What is written is not needed here."""


def attribute(
    opened: OpenModel, pair: Pair, *, steps: int = STEPS, batch: int = BATCH
) -> Float64[np.ndarray, " edges"]:
    """The score of every edge, in logits.

    One forward and one backward pass for each step, `batch` of them at a time, whatever the number
    of edges. The scores of the edges from the input sum to the loss of the corrupted prompt less
    that of the clean one, but for the error of the steps.

    Raises:
        BadOption: if `steps` or `batch` is below 1.
    """
    if min(steps, batch) < 1:
        raise BadOption(f"steps and batch must be 1 or more; got {steps} and {batch}.")
    clean, corrupted = record(opened, pair.clean), record(opened, pair.corrupted)
    change, grid = corrupted.outputs - clean.outputs, opened.grid
    change = change.to(torch.promote_types(change.dtype, torch.float32))
    scores = change.new_zeros(grid.n_targets, grid.n_sources)
    shares = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps
    for some in shares.split(batch):
        gradients = _gradients(opened, pair, (corrupted.outputs[0], clean.outputs[0]), some)
        for stage, gradient in zip(grid.stages, gradients, strict=True):
            before = change[: stage.reach].flatten(1)
            scores[stage.targets, : stage.reach] += gradient.to(change).flatten(1) @ before.T
    return grid.as_columns((scores / steps).double().cpu().numpy())


def _gradients(
    opened: OpenModel,
    pair: Pair,
    ends: tuple[Float[Tensor, "time width"], Float[Tensor, "time width"]],
    shares: Float[Tensor, " rows"],
) -> list[Float[Tensor, "targets time width"]]:
    """Of the loss at each target's input, summed over the steps, stage by stage."""
    first, last = ends
    share = shares.to(first)[:, None, None]
    with torch.enable_grad():
        walk = _Steps(first + share * (last - first))
        logits = opened.run(torch.tensor([pair.clean] * len(shares)), walk)
        loss = -(logits[:, pair.gold] - logits[:, pair.other]).sum()
        found = torch.autograd.grad(loss, walk.copies)
    return [each.sum(0).transpose(0, 1) for each in found]
