"""A loaded model as its neurons, and the proof that cutting at the sites found cuts neurons.

Three things are shown before anything is measured, on short random token ids, each able to fail:

1. *A neuron reads one position only.* What a site reads at the last position does not change when
   the layer is given another past; attention would carry it there.
2. *An empty cut changes nothing*: with an empty mask and a hook at every site the logits are
   bit-identical (to rounding, where routed experts are computed by another kernel).
3. *A cut is a cut, and shows*: two masks, each with a random tenth of every layer's neurons, in one
   forward pass as two rows beside an intact one; each row equals the model with the weights that
   read those neurons set to zero, and differs from the intact one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from caploc.errors import ModelRefused
from caploc.models.cutting import Projections, replaced, temporary_hooks
from caploc.models.loading import CutModel
from caploc.models.placement import is_whole
from caploc.models.projections import ATTENTION_NAMES, module_name
from caploc.models.proof import (
    Call,
    CutProof,
    columns_zeroed,
    logits_of,
    masks_to_prove,
    resting,
)
from caploc.neurons.experts import Experts
from caploc.neurons.sites import NeuronGrid, find_sites, list_projections

SHARE = 0.1  # of each layer's neurons, cut in the proof
MIXED = 0.01  # share of what is read that may move with the past: rounding, not attention
# Two kernels for the same experts add in different orders.
ROUNDING = {torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.1}


@dataclass(frozen=True)
class NeuronModel(CutModel):
    """A model whose parts are its feed-forward neurons, read by the output projections."""

    grid: NeuronGrid


def as_neurons(loaded: CutModel) -> NeuronModel:
    """Take a model as its neurons, their output projections found and proved.

    Raises:
        ModelRefused: if they are not found or fail the proof, or the weights are not whole here.
    """
    if not is_whole(loaded.model):
        raise ModelRefused(
            f"{loaded.name} is quantized, spread over devices or shared among processes; neurons "
            "are found with gradients and proved on plain weights, so load it whole on one device."
        )
    sites, grid = find_sites(loaded.model)
    prove(loaded.model, sites, grid)
    same = {field.name: getattr(loaded, field.name) for field in fields(CutModel)}
    return NeuronModel(**same | {"grid": grid, "projections": sites})


@torch.no_grad()
def prove(
    model: PreTrainedModel, projections: Projections, grid: NeuronGrid, *, seed: int = 0
) -> None:
    """Show that the sites are feed-forward outputs and that masks cut what they say.

    The model is left as it was: weights, hooks and training mode.
    """
    proof = CutProof(
        projections,
        grid,
        lambda mask: _zero_weights_plainly(projections, grid, mask),
        lambda mask: f"{int(mask.sum())} neurons",
        "the feed-forward outputs",
    )
    with resting(model, seed) as (tokens, intact):
        _prove_one_position(model, projections, tokens)
        _prove_empty(model, projections, grid, tokens, intact)
        proof.hold(model, masks_to_prove(grid, seed, SHARE), tokens, intact)


def _prove_one_position(
    model: PreTrainedModel, projections: Projections, tokens: Int[Tensor, "rows tokens"]
) -> None:
    """Call each block that holds a site again with another past: nothing may move at the end."""
    for layer, _, module in list_projections(projections):
        inner = module.module if isinstance(module, Experts) else module
        block = model.get_submodule(module_name(model, inner).rpartition(".")[0])
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
                f"What {type(inner).__name__} in layer {layer} of {type(model).__name__} reads at "
                "one position depends on earlier positions: it is no feed-forward output."
            )


def _prove_empty(
    model: PreTrainedModel,
    projections: Projections,
    grid: NeuronGrid,
    tokens: Tensor,
    intact: Float[Tensor, "rows tokens vocabulary"],
) -> None:
    empty = torch.zeros(1, grid.size, dtype=torch.bool)
    with replaced(projections, grid, empty, None, every_layer=True):
        hooked = logits_of(model, tokens)
    routed = any(isinstance(module, Experts) for _, _, module in list_projections(projections))
    allowed = ROUNDING.get(model.dtype, 1e-4) * float(intact.abs().max()) if routed else 0.0
    error = float((hooked - intact).abs().max())
    if not error <= allowed:
        raise ModelRefused(
            f"{type(model).__name__}: with nothing knocked out and a hook at every feed-forward "
            f"output the logits differ from the intact model's, by {error:.2g}."
        )


@contextmanager
def _zero_weights_plainly(
    projections: Projections, grid: NeuronGrid, mask: Bool[Tensor, " neurons"]
) -> Iterator[None]:
    """Zero weights, experts computed plainly as under a cut, so that only the cut differs."""
    looking = (
        module.register_forward_pre_hook(lambda *_: None)
        for _, _, module in list_projections(projections)
    )
    with temporary_hooks(looking), columns_zeroed(projections, grid, mask):
        yield
