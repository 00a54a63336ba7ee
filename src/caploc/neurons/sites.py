"""Feed-forward neurons of a model: the modules that read them, and the grid that numbers them.

A neuron is one coordinate of what a feed-forward block's output projection reads: in a gated block
`act(gate) * up`. In a layer of experts the experts stand one after another, then what all tokens
share. Projections are found by name and shape, which is a guess until `proof.prove` has passed.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from caploc.errors import ModelRefused
from caploc.grid import Grid, Part
from caploc.models.cutting import Beside, Projections, Site
from caploc.models.projections import ATTENTION_NAMES, MIXED_NAMES, input_width, text_config
from caploc.neurons.experts import Experts, is_experts

OUTPUT_NAMES = frozenset(
    {"down_proj", "dense_4h_to_h", "fc_out", "fc2", "c_proj", "w2", "wo", "linear_2", "output_proj"}
)
Chosen = Bool[np.ndarray, " neurons"]  # True is chosen (and, where it is a mask, knocked out)


class Neuron(Part):
    """One feed-forward neuron, written `L3N217`: layer and index within it, both from 0."""

    LETTER, KIND, PLURAL, EXAMPLE = "N", "neuron", "feed-forward neurons", "L3N217"


@dataclass(frozen=True)
class NeuronGrid(Grid[Neuron]):
    """All neurons of a model, layer by layer; `column(neuron)` is a neuron's place in a mask.

    `expert_widths` and `expert_counts` say for each layer how many neurons an expert has and how
    many experts there are (0: the layer has none).
    """

    PART = Neuron

    neurons_per_layer: tuple[int, ...]
    expert_widths: tuple[int, ...] = ()
    expert_counts: tuple[int, ...] = ()

    @property
    def per_layer(self) -> tuple[int, ...]:
        return self.neurons_per_layer

    def expert(self, neuron: Neuron) -> int | None:
        """Return the expert that a neuron belongs to; None if every token passes through it."""
        if not self.expert_widths or not self.expert_widths[neuron.layer]:
            return None
        expert = neuron.index // self.expert_widths[neuron.layer]
        return expert if expert < self.expert_counts[neuron.layer] else None


def find_sites(model: PreTrainedModel) -> tuple[list[Site | None], NeuronGrid]:
    """Find every layer's feed-forward output projection (None: a layer without one), and the grid.

    A layer of experts has all of its experts in one site, and what its tokens share beside them.

    Raises:
        ModelRefused: if none is found.
    """
    layers = text_config(model).num_hidden_layers
    stacks = [
        stack
        for stack in model.get_decoder().modules()
        if isinstance(stack, nn.ModuleList) and len(stack) == layers
    ]
    found = [[_find_in(model, layer) for layer in stack] for stack in stacks]
    found = [stack for stack in found if any(stack)]
    if len(found) != 1:
        raise ModelRefused(
            f"The feed-forward output projections of a model of type {type(model).__name__} are "
            f"not found: {len(found)} lists of {layers} layers have a module named one of "
            f"{', '.join(sorted(OUTPUT_NAMES))} that writes as many values as the model is wide."
        )
    sites = [_join(modules) for modules in found[0]]
    experts = [next((m for m in modules if isinstance(m, Experts)), None) for modules in found[0]]
    grid = NeuronGrid(
        tuple(count_neurons(site) for site in sites),
        tuple(each.width if each else 0 for each in experts) if any(experts) else (),
        tuple(each.count if each else 0 for each in experts) if any(experts) else (),
    )
    return sites, grid


def count_neurons(site: Site | None) -> int:
    """Count the neurons of a site."""
    if site is None:
        return 0
    if isinstance(site, Beside):
        return sum(site.widths)
    return site.count * site.width if isinstance(site, Experts) else input_width(site)


def list_projections(projections: Projections) -> list[tuple[int, slice, Any]]:
    """List each projection or experts by itself: its layer, its columns in the grid, the module."""
    found = []
    start = 0
    for layer, site in enumerate(projections):
        if site is None:
            continue
        for module in site.modules if isinstance(site, Beside) else (site,):
            found.append((layer, slice(start, start + count_neurons(module)), module))
            start += count_neurons(module)
    return found


def _join(modules: list[Any]) -> Site | None:
    if len(modules) < 2:
        return modules[0] if modules else None
    ordered = sorted(modules, key=lambda module: not isinstance(module, Experts))
    return Beside(tuple(ordered), tuple(count_neurons(module) for module in ordered))


def _find_in(model: nn.Module, layer: nn.Module) -> list[Any]:
    hidden = text_config(model).hidden_size
    found: list[Any] = []
    for name, module in layer.named_modules():
        *around, own = name.split(".")
        if any(part in ATTENTION_NAMES | MIXED_NAMES for part in around):
            continue
        if is_experts(module):
            found.append(Experts(module))
        elif own in OUTPUT_NAMES and isinstance(module, nn.Linear | Conv1D):
            writes = module.weight.shape[1 if isinstance(module, Conv1D) else 0]
            if writes == hidden:
                found.append(module)
    return found
