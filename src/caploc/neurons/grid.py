"""Neurons, and the grid that gives each neuron of a model its column in a mask.

A neuron is one coordinate of what a feed-forward block's output projection reads: in a gated block
`act(gate) * up`. In a layer of experts the experts stand one after another, then what all tokens
share.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool

from caploc.errors import BadOption, UnknownName
from caploc.grid import Grid

NAME = re.compile(r"L(\d+)N(\d+)", re.IGNORECASE)
Chosen = Bool[np.ndarray, " neurons"]  # True is chosen (and, where it is a mask, knocked out)


@dataclass(frozen=True, slots=True, order=True)
class Neuron:
    """One feed-forward neuron: layer and index within the layer, both from 0."""

    layer: int
    index: int

    def __str__(self) -> str:
        return f"L{self.layer}N{self.index}"

    @classmethod
    def parse(cls, text: str) -> "Neuron":
        """Read `L3N217`.

        Raises:
            BadOption: if the text is not of that form.
        """
        match = NAME.fullmatch(text.strip())
        if not match:
            raise BadOption(
                f"{text!r} is not a neuron; write layer and neuron from 0, such as L3N217."
            )
        return cls(int(match[1]), int(match[2]))


@dataclass(frozen=True)
class NeuronGrid(Grid):
    """All neurons of a model, layer by layer; `column(neuron)` is a neuron's place in a mask.

    `experts` says for each layer how many of its first neurons belong to each expert (0: the layer
    has no experts), which `describe` uses.
    """

    neurons_per_layer: tuple[int, ...]
    expert_widths: tuple[int, ...] = ()
    expert_counts: tuple[int, ...] = ()

    @property
    def per_layer(self) -> tuple[int, ...]:
        """Number of neurons of each layer."""
        return self.neurons_per_layer

    def column(self, neuron: Neuron) -> int:
        """The neuron's place in a mask.

        Raises:
            UnknownName: if the model has no such neuron.
        """
        if neuron.layer >= self.layers:
            raise UnknownName(
                f"There is no neuron {neuron}: the model has layers L0 to L{self.layers - 1}."
            )
        count = self.neurons_per_layer[neuron.layer]
        if neuron.index >= count:
            has = f"neurons N0 to N{count - 1}" if count else "no feed-forward neurons"
            raise UnknownName(f"There is no neuron {neuron}: layer {neuron.layer} has {has}.")
        return int(self.layer_slices[neuron.layer].start) + neuron.index

    def neuron(self, column: int) -> Neuron:
        """The neuron of a column."""
        starts = [columns.start for columns in self.layer_slices]
        layer = int(np.searchsorted(starts, column, side="right")) - 1
        return Neuron(layer, int(column) - starts[layer])

    def expert(self, neuron: Neuron) -> int | None:
        """The expert that the neuron belongs to; None if every token passes through it."""
        if not self.expert_widths or not self.expert_widths[neuron.layer]:
            return None
        expert = neuron.index // self.expert_widths[neuron.layer]
        return expert if expert < self.expert_counts[neuron.layer] else None

    def mask(self, neurons: Iterable[Neuron | str]) -> Chosen:
        """The set of the neurons named.

        Raises:
            BadOption: if a name is malformed.
            UnknownName: if the model has no such neuron.
        """
        chosen = np.zeros(self.size, dtype=bool)
        for each in neurons:
            chosen[self.column(Neuron.parse(each) if isinstance(each, str) else each)] = True
        return chosen

    def named(self, chosen: Chosen) -> list[Neuron]:
        """The neurons of a set, by layer and index."""
        return [self.neuron(int(column)) for column in np.flatnonzero(chosen)]

    def counts(self, chosen: Chosen) -> list[int]:
        """How many neurons of a set lie in each layer."""
        return [int(chosen[columns].sum()) for columns in self.layer_slices]


def parse_neurons(texts: str | Sequence[str]) -> list[Neuron]:
    """Read `L3N217,L0N5`, or several such texts; duplicates are dropped, order is kept.

    Raises:
        BadOption: if a name is malformed.
    """
    joined = texts if isinstance(texts, str) else ",".join(texts)
    names = [name for name in joined.split(",") if name.strip()]
    return list(dict.fromkeys(Neuron.parse(name) for name in names))
