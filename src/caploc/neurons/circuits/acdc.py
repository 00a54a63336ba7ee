"""Automatic circuit discovery (ACDC): leave out edge after edge as long as nothing is lost.

From the logits back to the first layer, each edge is left out, and stays out if the negative
log-likelihood of the gold token rises by less than a threshold. An edge left out carries nothing
(zero ablation), or what it carries for the corrupted prompt. Conmy et al. (2023), "Towards
automated circuit discovery"; used for knowledge circuits by Yao et al. (2024) with zero ablation
and a threshold of 0.01.

Every edge of which a path still leads to the logits costs a run of the model, so this is for small
graphs.
"""

import numpy as np
import torch

from caploc.errors import BadOption
from caploc.lookup import pick
from caploc.neurons.circuits.circuit import outcomes, run_circuits
from caploc.neurons.circuits.graph import Edges, prune, used_targets
from caploc.neurons.circuits.opening import OpenModel
from caploc.neurons.circuits.recording import Pair, Recording, record, zero_baseline

THRESHOLD = 0.01
LARGEST = 20_000  # edges; beyond it the runs would take hours
BASELINES = {
    "zero": zero_baseline,
    "corrupted": lambda opened, pair: record(opened, pair.corrupted),
}


def discover(
    opened: OpenModel, pair: Pair, *, threshold: float = THRESHOLD, ablation: str = "zero"
) -> Edges:
    """The circuit of a pair, pruned.

    Raises:
        UnknownName: if the ablation is neither zero nor corrupted.
        BadOption: if the model has more than 20,000 edges, or the threshold is not a number.
    """
    grid = opened.grid
    if grid.size > LARGEST:
        raise BadOption(
            f"ACDC runs the model for each of its {grid.size:,} edges, and takes at most "
            f"{LARGEST:,}; find the circuit by EAP-IG instead."
        )
    if np.isnan(threshold):
        raise BadOption("The threshold of ACDC is a rise of the loss in nats, such as 0.01.")
    baseline = pick(BASELINES, ablation, "ablation")(opened, pair)
    chosen = np.ones(grid.size, dtype=bool)
    current = _loss(opened, pair, chosen, baseline)
    ends = np.cumsum(grid.reach)
    for target in reversed(range(grid.n_targets)):
        columns = range(ends[target] - grid.reach[target], ends[target])
        if not used_targets(grid, grid.as_matrix(chosen))[target]:
            chosen[columns.start : columns.stop] = False
            continue
        for column in reversed(columns):
            chosen[column] = False
            loss = _loss(opened, pair, chosen, baseline)
            chosen[column] = loss - current >= threshold
            current = current if chosen[column] else loss
    return prune(grid, chosen)


@torch.no_grad()
def _loss(opened: OpenModel, pair: Pair, chosen: Edges, baseline: Recording) -> float:
    """Negative log-likelihood of gold, in nats."""
    logits = run_circuits(opened, pair, chosen[None], baseline=baseline)
    return -outcomes(logits, pair)[0].log_probability
