"""Find every feed-forward output projection of a model, by name and shape: where neurons are cut.

What is found here is a guess until `proof.prove` has passed.
"""

from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from caploc.errors import ModelRefused
from caploc.models.cutting import Beside, Projections, Site
from caploc.models.projections import ATTENTION_NAMES, MIXED_NAMES, input_width, text_config
from caploc.neurons.experts import Experts, is_experts
from caploc.neurons.grid import NeuronGrid

OUTPUT_NAMES = frozenset(
    {"down_proj", "dense_4h_to_h", "fc_out", "fc2", "c_proj", "w2", "wo", "linear_2", "output_proj"}
)


def find_sites(model: PreTrainedModel) -> tuple[list[Site | None], NeuronGrid]:
    """Every layer's feed-forward output projection (None: a layer without one), and the grid.

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
    found = [[_sites(model, layer) for layer in stack] for stack in stacks]
    found = [stack for stack in found if any(stack)]
    if len(found) != 1:
        raise ModelRefused(
            f"The feed-forward output projections of a model of type {type(model).__name__} are "
            f"not found: {len(found)} lists of {layers} layers have a module named one of "
            f"{', '.join(sorted(OUTPUT_NAMES))} that writes as many values as the model is wide."
        )
    sites = [_joined(parts) for parts in found[0]]
    experts = [next((p for p in parts if isinstance(p, Experts)), None) for parts in found[0]]
    grid = NeuronGrid(
        tuple(width(site) for site in sites),
        tuple(each.width if each else 0 for each in experts) if any(experts) else (),
        tuple(each.count if each else 0 for each in experts) if any(experts) else (),
    )
    return sites, grid


def width(site: Site | None) -> int:
    """Number of neurons of a site."""
    if site is None:
        return 0
    if isinstance(site, Beside):
        return sum(site.widths)
    return site.count * site.width if isinstance(site, Experts) else input_width(site)


def parts(projections: Projections) -> list[tuple[int, slice, Any]]:
    """Every projection or experts by itself: its layer, its columns in the grid, the module."""
    found = []
    start = 0
    for layer, site in enumerate(projections):
        if site is None:
            continue
        beside = site.modules if isinstance(site, Beside) else (site,)
        for module in beside:
            found.append((layer, slice(start, start + width(module)), module))
            start += width(module)
    return found


def _joined(parts: list[Any]) -> Site | None:
    if len(parts) < 2:
        return parts[0] if parts else None
    ordered = sorted(parts, key=lambda part: not isinstance(part, Experts))
    return Beside(tuple(ordered), tuple(width(part) for part in ordered))


def _sites(model: nn.Module, layer: nn.Module) -> list[Any]:
    hidden = text_config(model).hidden_size
    found: list[Any] = []
    for name, module in layer.named_modules():
        *around, own = name.split(".")
        if any(part in ATTENTION_NAMES | MIXED_NAMES for part in around):
            continue
        if is_experts(module):
            found.append(Experts(module))
        elif own in OUTPUT_NAMES and isinstance(module, nn.Linear | Conv1D):
            weight = module.weight
            writes = weight.shape[1 if isinstance(module, Conv1D) else 0]
            if writes == hidden:
                found.append(module)
    return found
