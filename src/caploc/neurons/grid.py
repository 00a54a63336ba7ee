"""Neurons, and the grid that gives each neuron of a model its column in a mask.

A neuron is one coordinate of what a feed-forward block's output projection reads: in a gated block
`act(gate) * up`. In a layer of experts the experts stand one after another, then what all tokens
share.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool

from caploc.grid import Grid, Part

Chosen = Bool[np.ndarray, " neurons"]  # True is chosen (and, where it is a mask, knocked out)


class Neuron(Part):
    """One feed-forward neuron, written `L3N217`: layer and index within it, both from 0."""

    LETTER, KIND, PLURAL, EXAMPLE = "N", "neuron", "feed-forward neurons", "L3N217"


@dataclass(frozen=True)
class NeuronGrid(Grid[Neuron]):
    """All neurons of a model, layer by layer; `column(neuron)` is a neuron's place in a mask.

    `experts` says for each layer how many of its first neurons belong to each expert (0: the layer
    has no experts), which `describe` uses.
    """

    PART = Neuron

    neurons_per_layer: tuple[int, ...]
    expert_widths: tuple[int, ...] = ()
    expert_counts: tuple[int, ...] = ()

    @property
    def per_layer(self) -> tuple[int, ...]:
        """Number of neurons of each layer."""
        return self.neurons_per_layer

    def expert(self, neuron: Neuron) -> int | None:
        """The expert that the neuron belongs to; None if every token passes through it."""
        if not self.expert_widths or not self.expert_widths[neuron.layer]:
            return None
        expert = neuron.index // self.expert_widths[neuron.layer]
        return expert if expert < self.expert_counts[neuron.layer] else None
