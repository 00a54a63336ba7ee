"""Circuits: the strongest edges, and what the model answers when only they work.

Running a circuit is edge-wise patching. Every target's input is put together as

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

from caploc.commonality.result import Result
from caploc.errors import BadOption
from caploc.neurons.circuits.graph import EdgeGrid, Edges, Stage
from caploc.neurons.circuits.opening import OpenModel
from caploc.neurons.circuits.recording import Pair, Recording, record

EDGES = 5_000  # as released code keeps of a model with hundreds of thousands
ROWS = 16  # circuits run at a time


def strongest(
    scores: Float64[np.ndarray, " edges"], *, edges: int | None = None, share: float | None = None
) -> Edges:
    """The edges of largest |score|: so many, or a share of all rounded up; by default 5,000.

    Of equal scores the earlier column goes first. More edges than there are is all of them.

    Raises:
        BadOption: if both are given, or one is out of range.
    """
    if edges is not None and share is not None:
        raise BadOption(
            f"Give either the number of edges to keep or their share; got {edges} and {share:g}."
        )
    if share is not None and not 0 < share <= 1:
        raise BadOption(f"The share of edges to keep is above 0 and at most 1; got {share:g}.")
    if edges is not None and edges < 1:
        raise BadOption(f"The number of edges to keep is 1 or more; got {edges}.")
    kept = int(np.ceil(share * len(scores))) if share is not None else edges or EDGES
    chosen = np.zeros(len(scores), dtype=bool)
    chosen[np.argsort(-np.abs(scores), kind="stable")[:kept]] = True
    return chosen


class _Patching:
    """Puts every target's input together from what flows along its edges, circuit by circuit."""

    def __init__(
        self, grid: EdgeGrid, circuits: Bool[np.ndarray, "rows edges"], baseline: Recording
    ) -> None:
        """Take one circuit for each row."""
        self.baseline = baseline
        self.edges = torch.from_numpy(grid.as_matrix(circuits))
        # (rows, sources, time, width): what each source writes now, less what the baseline has
        self.changes = baseline.outputs.new_zeros(len(circuits), *baseline.outputs.shape)
        self.stages = iter(baseline.residuals)

    def enter(self, hidden: Tensor) -> Tensor:
        """The input is a source."""
        self.changes[:, 0] = hidden - self.baseline.outputs[0]
        return hidden

    def read(self, stage: Stage, residual: Tensor) -> Tensor:
        """The baseline's residual stream, and what the circuit's edges change in it."""
        edges = self.edges[:, stage.targets, : stage.reach].to(self.changes)
        changes = self.changes[:, : stage.reach]
        changed = torch.bmm(edges, changes.flatten(2)).unflatten(2, changes.shape[2:])
        return (next(self.stages) + changed).transpose(1, 2)

    def wrote(self, stage: Stage, output: Callable[[], Tensor]) -> None:
        """Note what the stage's sources write now."""
        before = self.baseline.outputs[stage.sources]
        self.changes[:, stage.sources] = output().transpose(1, 2) - before


@torch.no_grad()
def run_circuits(
    opened: OpenModel,
    pair: Pair,
    circuits: Bool[np.ndarray, "circuits edges"],
    *,
    baseline: Recording | None = None,
    rows: int = ROWS,
) -> Float[Tensor, "circuits vocabulary"]:
    """The logits after the clean prompt with only a circuit's edges at work, for each circuit.

    `baseline` is what the other edges carry (None: the run of the corrupted prompt).

    Raises:
        BadOption: if the circuits are not of this model.
    """
    if circuits.shape[1] != opened.grid.size:
        raise BadOption(
            f"The circuits have {circuits.shape[1]:,} columns and the model {opened.grid.size:,} "
            "edges; give circuits that were found in this model."
        )
    baseline = baseline or record(opened, pair.corrupted)
    found = []
    for start in range(0, len(circuits), rows):
        some = circuits[start : start + rows]
        tokens = torch.tensor([pair.clean] * len(some))
        found.append(opened.run(tokens, _Patching(opened.grid, some, baseline)))
    return torch.cat([baseline.logits[None][:0], *found])


@dataclass(frozen=True)
class Outcome(Result):
    """What a run answers: logit of gold less that of other; gold's probability, its log, its rank.

    The rank counts from 1, the best; tokens with the same logit as gold do not push it back.
    """

    logit_difference: float
    probability: float
    log_probability: float
    rank: int

    def hit(self, within: int) -> bool:
        """Whether gold is among the best `within` tokens (Hit@k)."""
        return self.rank <= within


def outcomes(logits: Float[Tensor, "runs vocabulary"], pair: Pair) -> list[Outcome]:
    """What each run answers."""
    wide = logits.double()
    log_probability = wide.log_softmax(dim=-1)[:, pair.gold]
    rank = 1 + (wide > wide[:, pair.gold, None]).sum(dim=-1)
    difference = wide[:, pair.gold] - wide[:, pair.other]
    figures = (each.tolist() for each in (difference, log_probability.exp(), log_probability, rank))
    return [Outcome(*each) for each in zip(*figures, strict=True)]


def faithfulness(circuit: float, *, empty: float, full: float) -> float:
    """How much of a metric's way from the empty circuit to the full model a circuit goes.

    `(circuit - empty) / (full - empty)`: 0 as the empty circuit, 1 as the full model, and outside
    of that where a circuit does worse or better than either; NaN where the two agree.
    """
    return (circuit - empty) / (full - empty) if full != empty else float("nan")
