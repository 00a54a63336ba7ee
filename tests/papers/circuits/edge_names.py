"""Nodes and edges of a decoder by name, such as `L0H3>L2H5.q`, in the order of their columns."""

import numpy as np


def nodes_and_edges(grid):
    """All nodes and edges by name, written down anew."""
    sources, edges = ["input"], []
    for layer in range(grid.decoder_layers):
        heads = [f"L{layer}H{head}" for head in range(grid.heads)]
        reading = [f"{head}.q" for head in heads]
        for kind in "kv":
            reading += [f"L{layer}KV{group}.{kind}" for group in range(grid.key_value_heads)]
        edges += [(source, target) for target in reading for source in sources]
        before = sources if grid.parallel else sources + heads
        edges += [(source, f"L{layer}M") for source in before]
        sources = [*sources, *heads, f"L{layer}M"]
    return sources, edges + [(source, "logits") for source in sources]


def edge_names(grid, chosen):
    """The names of the edges that are chosen."""
    _, edges = nodes_and_edges(grid)
    return [f"{edges[column][0]}>{edges[column][1]}" for column in np.flatnonzero(chosen)]
