"""Circuits: what each edge does for an answer, and what the model answers when only some work.

A clean and a corrupted prompt of the same number of tokens ask for two answers, gold and other.

*Edge attribution patching with integrated gradients* (EAP-IG). With the loss `-(logit gold - logit
other)` at the last position, the score of an edge is

    sum over positions (corrupted - clean output of the source) . gradient at the target's input,

the gradient averaged over m steps of the input embedding from the corrupted to the clean prompt. It
estimates how much the loss rises when the edge alone carries what it carries for the corrupted
prompt: a positive edge works for the gold answer. Hanna, Pezzelle and Belinkov (2024), "Have faith
in faithfulness"; used for knowledge circuits by Yao et al. (2024). The steps lie at the middle of m
equal parts of the way, which is our choice: of all rules with m points it integrates best.

*Running a circuit* is edge-wise patching. Every target's input is put together as

    its input for the corrupted prompt
    + sum over its edges in the circuit of (what the source writes now - wrote for the corrupted),

so that edges outside the circuit carry what they carry for the corrupted prompt, and a source in
the circuit writes what it makes of its own patched input. All edges give the clean run, none the
corrupted one.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from caploc.errors import BadOption
from caploc.neurons.circuits.graph import EdgeGrid, Edges, EdgeStage
from caploc.neurons.circuits.opening import OpenModel, copied
from caploc.stats.intervals import JsonRecord

STEPS = 100  # as released code takes for large models; small ones need no more than 20
BATCH = 20  # steps, or circuits, run at a time


@dataclass(frozen=True)
class PromptPair:
    """Two prompts of equal length, as token ids, and the token that each asks for.

    Raises:
        BadOption: if the lengths differ or are 0, or the answers begin alike.
    """

    clean: tuple[int, ...]
    corrupted: tuple[int, ...]
    gold: int
    other: int

    def __post_init__(self) -> None:
        if len(self.clean) != len(self.corrupted) or not self.clean:
            raise BadOption(
                f"The clean prompt has {len(self.clean)} tokens and the corrupted one "
                f"{len(self.corrupted)}; both need the same number, at least 1."
            )
        if self.gold == self.other:
            raise BadOption(
                f"Both answers are token {self.gold}; a circuit is found by telling them apart."
            )


@dataclass(frozen=True)
class Recording:
    """What every source wrote and every stage could read in a run of one prompt, and the logits."""

    outputs: Float[Tensor, "sources time width"]
    residuals: tuple[Float[Tensor, "time width"], ...]
    logits: Float[Tensor, " vocabulary"]


class _Recorder:
    """Keeps what passes by."""

    def __init__(self) -> None:
        self.outputs: list[Tensor] = []
        self.residuals: list[Tensor] = []

    def enter(self, hidden: Tensor) -> Tensor:
        self.outputs.append(hidden[:, :, None])
        return hidden

    def read(self, stage: EdgeStage, residual: Tensor) -> Tensor:
        self.residuals.append(residual[0])
        return copied(stage, residual)

    def wrote(self, stage: EdgeStage, output: Callable[[], Tensor]) -> None:
        self.outputs.append(output())


@torch.no_grad()
def record_prompt(opened: OpenModel, prompt: tuple[int, ...]) -> Recording:
    """Run a prompt as it is and keep everything."""
    recorder = _Recorder()
    logits = opened.run(torch.tensor([prompt]), recorder)
    outputs = torch.cat(recorder.outputs, dim=2)[0].transpose(0, 1).contiguous()
    return Recording(outputs, tuple(recorder.residuals), logits[0])


class _Steps:
    """Sends points between two embeddings through the model, and keeps each target's copy."""

    def __init__(self, hidden: Float[Tensor, "rows time width"]) -> None:
        """Take the points, one for each row."""
        self.hidden = hidden.requires_grad_()
        self.copies: list[Tensor] = []

    def enter(self, hidden: Tensor) -> Tensor:
        return self.hidden

    def read(self, stage: EdgeStage, residual: Tensor) -> Tensor:
        copies = copied(stage, residual)
        self.copies.append(copies)
        return copies

    def wrote(self, stage: EdgeStage, output: Callable[[], Tensor]) -> None:
        """Let pass what is written."""


def attribute(
    opened: OpenModel, pair: PromptPair, *, steps: int = STEPS, batch: int = BATCH
) -> Float64[np.ndarray, " edges"]:
    """Score every edge, in logits.

    One forward and one backward pass for each step, `batch` of them at a time, whatever the number
    of edges. The scores of the edges from the input sum to the loss of the corrupted prompt less
    that of the clean one, but for the error of the steps.

    Raises:
        BadOption: if `steps` or `batch` is below 1.
    """
    if min(steps, batch) < 1:
        raise BadOption(f"steps and batch must be 1 or more; got {steps} and {batch}.")
    clean, corrupted = (record_prompt(opened, each) for each in (pair.clean, pair.corrupted))
    change, grid = corrupted.outputs - clean.outputs, opened.grid
    change = change.to(torch.promote_types(change.dtype, torch.float32))
    scores = change.new_zeros(grid.n_targets, grid.n_sources)
    first, last = corrupted.outputs[0], clean.outputs[0]
    shares = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps
    for some in shares.split(batch):
        with torch.enable_grad():
            walk = _Steps(first + some.to(first)[:, None, None] * (last - first))
            logits = opened.run(torch.tensor([pair.clean] * len(some)), walk)
            loss = -(logits[:, pair.gold] - logits[:, pair.other]).sum()
            found = torch.autograd.grad(loss, walk.copies)
        for stage, each in zip(grid.stages, found, strict=True):
            gradient = each.sum(0).transpose(0, 1).to(change).flatten(1)
            before = change[: stage.reach].flatten(1)
            scores[stage.targets, : stage.reach] += gradient @ before.T
    return grid.as_columns((scores / steps).double().cpu().numpy())


def strongest(scores: Float64[np.ndarray, " edges"], share: float) -> Edges:
    """Choose the edges of largest |score|: a share of all, rounded up.

    Of equal scores the earlier column goes first.

    Raises:
        BadOption: if the share is out of range.
    """
    if not 0 < share <= 1:
        raise BadOption(f"The share of edges to keep is above 0 and at most 1; got {share:g}.")
    chosen = np.zeros(len(scores), dtype=bool)
    kept = int(np.ceil(share * len(scores)))
    chosen[np.argsort(-np.abs(scores), kind="stable")[:kept]] = True
    return chosen


class _Patching:
    """Puts every target's input together from what flows along its edges, circuit by circuit."""

    def __init__(
        self, grid: EdgeGrid, circuits: Bool[np.ndarray, "rows edges"], baseline: Recording
    ) -> None:
        self.baseline = baseline
        self.edges = torch.from_numpy(grid.as_matrix(circuits))
        # (rows, sources, time, width): what each source writes now, less what the baseline has
        self.changes = baseline.outputs.new_zeros(len(circuits), *baseline.outputs.shape)
        self.stages = iter(baseline.residuals)

    def enter(self, hidden: Tensor) -> Tensor:
        self.changes[:, 0] = hidden - self.baseline.outputs[0]
        return hidden

    def read(self, stage: EdgeStage, residual: Tensor) -> Tensor:
        """Take the baseline's residual stream, and what the circuit's edges change in it."""
        edges = self.edges[:, stage.targets, : stage.reach].to(self.changes)
        changes = self.changes[:, : stage.reach]
        changed = torch.bmm(edges, changes.flatten(2)).unflatten(2, changes.shape[2:])
        return (next(self.stages) + changed).transpose(1, 2)

    def wrote(self, stage: EdgeStage, output: Callable[[], Tensor]) -> None:
        before = self.baseline.outputs[stage.sources]
        self.changes[:, stage.sources] = output().transpose(1, 2) - before


@torch.no_grad()
def run_circuits(
    opened: OpenModel,
    pair: PromptPair,
    circuits: Bool[np.ndarray, "circuits edges"],
    *,
    rows: int = BATCH,
) -> Float[Tensor, "circuits vocabulary"]:
    """Compute the logits after the clean prompt with only a circuit's edges at work, for each.

    Raises:
        BadOption: if the circuits are not of this model.
    """
    if circuits.shape[1] != opened.grid.size:
        raise BadOption(
            f"The circuits have {circuits.shape[1]:,} columns and the model {opened.grid.size:,} "
            "edges; give circuits that were found in this model."
        )
    baseline = record_prompt(opened, pair.corrupted)
    found = [baseline.logits[None][:0]]
    for start in range(0, len(circuits), rows):
        some = circuits[start : start + rows]
        tokens = torch.tensor([pair.clean] * len(some))
        found.append(opened.run(tokens, _Patching(opened.grid, some, baseline)))
    return torch.cat(found)


@dataclass(frozen=True)
class CircuitOutcome(JsonRecord):
    """What a run answers: logit of gold less that of other; gold's probability, its log, its rank.

    The rank counts from 1, the best; tokens with the same logit as gold do not push it back.
    """

    logit_difference: float
    probability: float
    log_probability: float
    rank: int


def outcomes_of(logits: Float[Tensor, "runs vocabulary"], pair: PromptPair) -> list[CircuitOutcome]:
    """Say what each run answers."""
    wide = logits.double()
    log_probability = wide.log_softmax(dim=-1)[:, pair.gold]
    rank = 1 + (wide > wide[:, pair.gold, None]).sum(dim=-1)
    difference = wide[:, pair.gold] - wide[:, pair.other]
    figures = (each.tolist() for each in (difference, log_probability.exp(), log_probability, rank))
    return [CircuitOutcome(*each) for each in zip(*figures, strict=True)]


def faithfulness(circuit: float, *, empty: float, full: float) -> float:
    """Tell how much of a metric's way from the empty circuit to the full model a circuit goes.

    `(circuit - empty) / (full - empty)`: 0 as the empty circuit, 1 as the full model, and outside
    of that where a circuit does worse or better than either; NaN where the two agree.
    """
    return (circuit - empty) / (full - empty) if full != empty else float("nan")
