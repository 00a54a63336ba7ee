"""Feed-forward neurons of a model: the modules that read them, and the grid that numbers them.

A neuron is one coordinate of what a feed-forward block's output projection reads: in a gated block
`act(gate) * up`. In a layer of experts the experts stand one after another, then what all tokens
share. Projections are found by name and shape, which is a guess until `cutting.prove` has passed.

The routed experts of a layer are one module with three-dimensional weights, computed by whichever
kernel transformers picks; no module of it reads the neurons. While it has a hook it computes
plainly instead, and hands what every token gives to every expert, (tokens, experts x width) with
zeros where a token was not routed, to a hook on the way to the output projections.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from caploc.errors import ModelRefused
from caploc.grid import Grid, Part
from caploc.models.cutting import Beside, Projections, Site
from caploc.models.projections import ATTENTION_NAMES, MIXED_NAMES, input_width, text_config

Hook = Callable[[nn.Module, tuple[Tensor, ...]], Any]


class HookHandle:
    """Takes a hook away again."""

    def __init__(self, experts: "Experts", hook: Hook) -> None:
        self.experts, self.hook = experts, hook

    def remove(self) -> None:
        """Take the hook away; without hooks the module is as it was."""
        self.experts.hooks.remove(self.hook)
        if not self.experts.hooks:
            del self.experts.module.forward


class Experts:
    """The experts of one layer, to be hooked like a projection.

    `module` follows transformers' interface of experts.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module: Any = module
        self.hooks: list[Hook] = []

    @property
    def count(self) -> int:
        return int(self.module.down_proj.shape[0])

    @property
    def width(self) -> int:
        return int(self.module.down_proj.shape[1 if self.module.is_transposed else 2])

    @property
    def weight(self) -> Tensor:
        """The output projections, (experts, width, writes), a view of the parameter."""
        down: Tensor = self.module.down_proj.detach()
        return down if self.module.is_transposed else down.transpose(1, 2)

    def register_forward_pre_hook(self, hook: Hook) -> HookHandle:
        """Let a hook see, and replace, what the output projections read."""
        if not self.hooks:
            self.module.forward = self.forward  # of the instance, in place of the class's
        self.hooks.append(hook)
        return HookHandle(self, hook)

    def forward(self, hidden: Tensor, routed: Tensor, shares: Tensor) -> Tensor:
        """Compute what the module computes, its neurons in the open.

        `hidden` is (tokens, reads); `routed` and `shares`, (tokens, chosen experts), are the
        experts of each token and the weight of each.
        """
        module = self.module
        tokens, chosen = routed.shape
        rows = torch.arange(tokens, device=hidden.device)[:, None].expand_as(routed)
        given = hidden.new_zeros(tokens, self.count, self.width)
        for expert in routed.unique().tolist():
            at = rows[routed == expert]
            given = given.index_put(
                (at, torch.full_like(at, expert)), self.activation(hidden[at], expert)
            )
        flat = given.flatten(1)
        for hook in list(self.hooks):
            result = hook(module, (flat,))
            flat = flat if result is None else result[0]
        given = flat.unflatten(1, (self.count, self.width))
        output = torch.zeros_like(hidden)
        for expert in routed.unique().tolist():
            at, place = torch.where(routed == expert)
            written = given[at, expert] @ self.read_first(module.down_proj[expert])
            if module.has_bias:
                written = written + module.down_proj_bias[expert]
            if getattr(module, "has_post_expert_norm", False):
                written = module.post_expert_norm(written)
            output = output.index_add(0, at, (written * shares[at, place, None]).to(output.dtype))
        return output

    def activation(self, hidden: Tensor, expert: int) -> Tensor:
        """Compute what the expert's output projection reads for these tokens."""
        module = self.module
        name = "gate_up_proj" if module.has_gate else "up_proj"
        before = hidden @ self.read_first(getattr(module, name)[expert])
        if module.has_bias:
            before = before + getattr(module, f"{name}_bias")[expert]
        after: Tensor = module._apply_gate(before) if module.has_gate else module.act_fn(before)
        return after

    def read_first(self, weight: Tensor) -> Tensor:
        """Turn a weight so that what it reads is the first axis."""
        return weight if self.module.is_transposed else weight.T


def is_experts(module: nn.Module) -> bool:
    """Tell whether a module follows transformers' interface of experts."""
    down = getattr(module, "down_proj", None)
    follows = all(hasattr(module, name) for name in ("has_gate", "is_transposed", "_apply_gate"))
    return follows and isinstance(down, nn.Parameter) and down.ndim == 3


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
    sites: list[Site | None] = []
    for modules in found[0]:
        ordered = sorted(modules, key=lambda module: not isinstance(module, Experts))
        several = Beside(tuple(ordered), tuple(map(count_neurons, ordered)))
        sites.append(several if len(ordered) > 1 else next(iter(ordered), None))
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
