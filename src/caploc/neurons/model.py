"""Feed-forward neurons of a model: what reads them, and the proof that it does.

A neuron is one coordinate of what a feed-forward block's output projection reads: in a gated block
`act(gate) * up`. Projections are found by name and shape, which is a guess until `prove` has
passed. Models that route tokens to experts are refused.

Three things are shown before anything is measured, on short random token ids, each able to fail:

1. *A neuron reads one position only.* What a site reads at the last position does not change when
   the layer is given another past; attention would carry it there.
2. *An empty cut changes nothing*: with an empty mask and a hook at every site the logits are
   bit-identical.
3. *A cut is a cut, and shows*: two masks, each with a random tenth of every layer's neurons, in one
   forward pass as two rows beside an intact one; each row equals the model with the weights that
   read those neurons set to zero, and differs from the intact one.
"""

from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from caploc.components import Component, Grid
from caploc.errors import ModelRefused
from caploc.models.cutting import Projections, list_sites
from caploc.models.hooks import temporary_hooks
from caploc.models.loading import CutModel
from caploc.models.placement import is_whole
from caploc.models.projections import (
    ATTENTION_NAMES,
    MIXED_NAMES,
    decoder_layers,
    input_width,
    is_linear,
    module_name,
    search_layers,
    text_config,
)
from caploc.models.proof import (
    Call,
    is_writable,
    logits_of,
    masks_to_prove,
    name_layers,
    prove_cut,
    resting,
)

OUTPUT_NAMES = frozenset(
    {"down_proj", "dense_4h_to_h", "fc_out", "fc2", "c_proj", "w2", "wo", "linear_2", "output_proj"}
)
Chosen = Bool[np.ndarray, " neurons"]  # True is chosen (and, where it is a mask, knocked out)


class Neuron(Component):
    """One feed-forward neuron, written `L3N217`: layer and index within it, both from 0."""

    LETTER, KIND, PLURAL, EXAMPLE = "N", "neuron", "feed-forward neurons", "L3N217"


@dataclass(frozen=True)
class NeuronGrid(Grid[Neuron]):
    """All neurons of a model, layer by layer; `column(neuron)` is a neuron's place in a mask."""

    COMPONENT = Neuron

    neurons_per_layer: tuple[int, ...]

    @property
    def per_layer(self) -> tuple[int, ...]:
        return self.neurons_per_layer


def find_sites(model: PreTrainedModel) -> tuple[list[nn.Module | None], NeuronGrid]:
    """Find every layer's feed-forward output projection (None: a layer without one), and the grid.

    Raises ModelRefused if none is found, or the model has routed experts.
    """
    layers = text_config(model).num_hidden_layers
    found = search_layers(model, layers, _find_in)
    if any(map(is_experts, model.modules())) or any(len(each) > 1 for each in chain(*found)):
        raise ModelRefused(
            f"{type(model).__name__} routes tokens to experts, whose neurons are not covered; "
            "choose a model with one feed-forward block in a layer, or look at this one's heads."
        )
    if len(found) != 1:
        raise ModelRefused(
            f"The feed-forward output projections of a model of type {type(model).__name__} are "
            f"not found: {len(found)} lists of {layers} layers have a module named one of "
            f"{', '.join(sorted(OUTPUT_NAMES))} that writes as many values as the model is wide."
        )
    sites = [next(iter(modules), None) for modules in found[0]]
    return sites, grid_of(sites)


def is_experts(module: nn.Module) -> bool:
    """Tell whether a module holds routed experts, as transformers does: in one parameter."""
    down = getattr(module, "down_proj", None)
    return isinstance(down, nn.Parameter) and down.ndim == 3


def grid_of(projections: Projections) -> NeuronGrid:
    """Count the neurons that each projection reads."""
    return NeuronGrid(tuple(0 if each is None else input_width(each) for each in projections))


def list_projections(projections: Projections) -> list[tuple[int, slice, Any]]:
    """List each projection: its layer, its columns in the grid, the module."""
    return list_sites(projections, grid_of(projections))


def _find_in(model: nn.Module, layer: nn.Module) -> list[Any]:
    hidden = text_config(model).hidden_size
    found: list[Any] = []
    for name, module in layer.named_modules():
        *around, own = name.split(".")
        if any(part in ATTENTION_NAMES | MIXED_NAMES for part in around):
            continue
        if own in OUTPUT_NAMES and is_linear(module):
            # packed weights tell no width
            writes = module.nf if isinstance(module, Conv1D) else module.out_features
            if writes == hidden:
                found.append(module)
    return found


SHARE = 0.1  # of each layer's neurons, cut in the proof
MIXED = 0.01  # share of what is read that may move with the past: rounding, not attention


@dataclass(frozen=True)
class NeuronModel(CutModel):
    """A model whose parts are its feed-forward neurons, read by the output projections."""

    grid: NeuronGrid


def as_neurons(loaded: CutModel, *, whole: bool = True) -> NeuronModel:
    """Take a model as its neurons, their output projections found and proved.

    Weights must be plain and on one device unless `whole` is false; scores and cuts need no more
    than modules that can be called. Raises ModelRefused if they are not found or fail the proof, or
    the weights are not as they must.
    """
    if whole and not is_whole(loaded.model):
        raise ModelRefused(
            f"{loaded.name} is quantized or spread over devices, and this reads its feed-forward "
            "weights; load it whole on one device."
        )
    sites, grid = find_sites(loaded.model)
    prove(loaded.model, sites, grid)
    own = {"grid": grid, "projections": sites, "uncovered": unread_weights(loaded.model, sites)}
    return NeuronModel(**vars(loaded) | own)


def unread_weights(model: PreTrainedModel, projections: Projections) -> tuple[str, ...]:
    """Name the parts of layers with matrices beside attention and the blocks with a site.

    They may hold what works as neurons do, and no mask cuts it.
    """
    blocks = {
        id(model.get_submodule(module_name(model, site).rpartition(".")[0]))
        for _, _, site in list_projections(projections)
    }
    found: dict[str, dict[int, None]] = {}
    for layer, part in enumerate(decoder_layers(model, projections)):
        inside = {
            id(weight)
            for name, module in part.named_modules()
            if id(module) in blocks or name.rpartition(".")[2] in ATTENTION_NAMES | MIXED_NAMES
            for weight in module.parameters()
        }
        for name, weight in part.named_parameters():
            if weight.ndim > 1 and id(weight) not in inside:
                found.setdefault(name.partition(".")[0], {})[layer] = None
    return tuple(f"{name} in {name_layers([*layers])}" for name, layers in found.items())


@torch.no_grad()
def prove(
    model: PreTrainedModel, projections: Projections, grid: NeuronGrid, *, seed: int = 0
) -> None:
    """Show that the sites are feed-forward outputs and that masks cut what they say.

    The model is left as it was: weights, hooks and training mode.
    """
    with resting(model, seed) as (tokens, intact):
        _prove_one_position(model, projections, tokens)
        prove_cut(
            model, projections, grid, masks_to_prove(grid, seed, SHARE), tokens, intact,
            named=lambda mask: f"{int(mask.sum())} neurons", outputs="the feed-forward outputs",
        )  # fmt: skip
        if not all(is_writable(module) for *_, module in list_projections(projections)):
            _prove_gradients(model, projections, tokens)


def _prove_one_position(
    model: PreTrainedModel, projections: Projections, tokens: Int[Tensor, "rows tokens"]
) -> None:
    """Call each block that holds a site again with another past: nothing may move at the end."""
    for layer, _, module in list_projections(projections):
        block = model.get_submodule(module_name(model, module).rpartition(".")[0])
        # in OPT the layer itself stands around, attention included
        if any(name in ATTENTION_NAMES for name, _ in block.named_children()):
            continue
        call = Call(block, module)
        with call.listening():
            model(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False)
        before = call.read[0]
        # the last token of all: a block may be given its rows end to end
        last = [
            reads.flatten(0, -2)[-1].float() for reads in (before, call.reads_with_another_past())
        ]
        scale = max(float(last[0].abs().max()), 1e-9)
        if float((last[0] - last[1]).abs().max()) > MIXED * scale:
            raise ModelRefused(
                f"What {type(module).__name__} in layer {layer} of {type(model).__name__} reads at "
                "one position depends on earlier positions: it is no feed-forward output."
            )


def _prove_gradients(
    model: PreTrainedModel, projections: Projections, tokens: Int[Tensor, "rows tokens"]
) -> None:
    """Show that a backward pass arrives at every site: some kernels of packed weights have none."""
    factors = []

    def multiply(_: Any, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        factors.append(torch.ones((), device=args[0].device, requires_grad=True))
        return (args[0] * factors[-1].to(args[0].dtype), *args[1:])

    hooks = (
        module.register_forward_pre_hook(multiply) for *_, module in list_projections(projections)
    )
    with temporary_hooks(hooks), torch.enable_grad():
        moved = logits_of(model, tokens).square().mean()
        slopes = (
            torch.autograd.grad(moved, factors, allow_unused=True) if moved.requires_grad else []
        )
    if not slopes or any(each is None or not each.abs() > 0 for each in slopes):
        raise ModelRefused(
            f"The packed weights of {type(model).__name__} compute without gradients here, which "
            "scores of neurons need; choose --quantize 8bit, or use a GPU."
        )
