"""How much of a model a circuit is."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool

from caploc.commonality.result import Result
from caploc.neurons.circuits.graph import Edges
from caploc.neurons.circuits.opening import OpenModel


@dataclass(frozen=True)
class Size(Result):
    """How large a circuit is: edges, nodes and parameters it touches, and their shares of all.

    A node is the input, a head, an MLP or the logits; a head is touched if an edge leaves it or
    enters its query. Parameters are those of touched heads (query and output weights, and keys and
    values of the key-value heads they read or an edge enters) and MLPs, as a share of those of all
    heads and MLPs. What is counted by a published share of a model is often not said: see which.
    """

    edges: int
    nodes: int
    parameters: int
    share_of_edges: float
    share_of_nodes: float
    share_of_parameters: float


def measure(opened: OpenModel, chosen: Edges) -> Size:
    """The size of a circuit; `prune` it before, or edges that lead nowhere count too."""
    everything = _touched(opened, np.ones_like(chosen))
    nodes, parameters = _touched(opened, chosen)
    edges = int(np.count_nonzero(chosen))
    return Size(
        edges,
        nodes,
        parameters,
        edges / len(chosen),
        nodes / everything[0],
        parameters / everything[1],
    )


def _touched(opened: OpenModel, chosen: Edges) -> tuple[int, int]:
    """Number of nodes touched, and of their parameters."""
    grid = opened.grid
    edges = grid.as_matrix(chosen)
    leaves: np.ndarray = np.asarray(edges.any(axis=0))
    enters: np.ndarray = np.asarray(edges.any(axis=1))
    nodes = int(leaves[0]) + int(enters[-1])
    parameters = 0
    for stage in grid.stages[:-1]:
        layer = opened.decoder[stage.layer]
        out, into = leaves[stage.sources], enters[stage.targets]
        if stage.kind == "mlp":
            touched = out | into
            parameters += int(touched[0]) * _count(layer.mlp)
        else:
            touched = out | into[: grid.heads]
            serves = (grid.feeds & touched).any(axis=1)
            serves[grid.heads :] |= into[grid.heads :]
            parameters += _count_attention(opened, stage.layer, touched, serves)
        nodes += int(touched.sum())
    return nodes, parameters


def _count_attention(
    opened: OpenModel,
    number: int,
    heads: Bool[np.ndarray, " heads"],
    readings: Bool[np.ndarray, " readings"],
) -> int:
    layer = opened.decoder[number]
    total = int(heads.sum()) * (layer.output.weight.numel() // opened.grid.heads)
    for reading in layer.reads:
        chosen = int(readings[reading.readings].sum())
        total += chosen * (_count(reading.module) // len(reading.order))
    return total


def _count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
