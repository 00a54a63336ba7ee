"""Feed-forward neurons of a model: what reads them, and the proof that it does.

A neuron is one coordinate of what a feed-forward block's output projection reads: in a gated block
`act(gate) * up`. In a layer of experts the experts stand one after another, then what all tokens
share. Projections are found by name and shape, which is a guess until `prove` has passed.
Routed experts are one module with three-dimensional weights (`Experts`).

Three things are shown before anything is measured, on short random token ids, each able to fail:

1. *A neuron reads one position only.* What a site reads at the last position does not change when
   the layer is given another past; attention would carry it there.
2. *An empty cut changes nothing*: with an empty mask and a hook at every site the logits are
   bit-identical (to rounding, where routed experts are computed by another kernel).
3. *A cut is a cut, and shows*: two masks, each with a random tenth of every layer's neurons, in one
   forward pass as two rows beside an intact one; each row equals the model with the weights that
   read those neurons set to zero, and differs from the intact one.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from caploc.errors import ModelRefused
from caploc.grid import Grid, Part
from caploc.models.cutting import Beside, Projections, Site, knocked_out, standing
from caploc.models.hooks import temporary_hooks
from caploc.models.loading import CutModel
from caploc.models.placement import is_whole
from caploc.models.projections import (
    ATTENTION_NAMES,
    MIXED_NAMES,
    input_width,
    is_linear,
    module_name,
    search_layers,
    text_config,
)
from caploc.models.proof import (
    Call,
    CutProof,
    columns_zeroed,
    inputs_zeroed,
    is_writable,
    logits_of,
    masks_to_prove,
    prove_each_layer,
    resting,
)

OUTPUT_NAMES = frozenset(
    {"down_proj", "dense_4h_to_h", "fc_out", "fc2", "c_proj", "w2", "wo", "linear_2", "output_proj"}
)
Chosen = Bool[np.ndarray, " neurons"]  # True is chosen (and, where it is a mask, knocked out)
Hook = Callable[[nn.Module, tuple[Tensor, ...]], Any]


class Experts:
    """The routed experts of a layer, to be hooked like a projection: their neurons in the open.

    They are one `module`, of transformers' interface of experts, computed by whichever kernel
    transformers picks; no module of it reads the neurons. While it has a hook it computes plainly
    instead, and hands what every token gives to every expert, (tokens, experts x width) with zeros
    where a token was not routed, to a hook on the way to the output projections.
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

    def register_forward_pre_hook(self, hook: Hook) -> Any:
        """Let a hook see, and replace, what the output projections read; return its handle."""
        if not self.hooks:
            self.module.forward = self.forward  # of the instance, in place of the class's
        self.hooks.append(hook)
        return SimpleNamespace(remove=partial(self.remove, hook))

    def remove(self, hook: Hook) -> None:
        """Take a hook away; without hooks the module is as it was."""
        self.hooks.remove(hook)
        if not self.hooks:
            del self.module.forward

    def forward(self, hidden: Tensor, routed: Tensor, shares: Tensor) -> Tensor:
        """Compute what the module computes, its neurons in the open.

        `hidden` is (tokens, reads); `routed` and `shares`, (tokens, chosen experts), are the
        experts of each token and the weight of each.
        """
        module = self.module
        given = hidden.new_zeros(len(hidden), self.count, self.width)
        for expert in routed.unique().tolist():
            at, _ = torch.where(routed == expert)
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


def has_experts(model: nn.Module) -> bool:
    """Tell whether a model routes tokens to experts that are one module."""
    return any(map(is_experts, model.modules()))


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
    Raises ModelRefused if none is found.
    """
    layers = text_config(model).num_hidden_layers
    found = search_layers(model, layers, _find_in)
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
        tuple(map(count_neurons, sites)),
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
    grid = NeuronGrid(tuple(map(count_neurons, projections)))
    return [(place.layer, columns, each) for place, columns, each in standing(projections, grid)]


def _find_in(model: nn.Module, layer: nn.Module) -> list[Any]:
    hidden = text_config(model).hidden_size
    found: list[Any] = []
    for name, module in layer.named_modules():
        *around, own = name.split(".")
        if any(part in ATTENTION_NAMES | MIXED_NAMES for part in around):
            continue
        if is_experts(module):
            found.append(Experts(module))
        elif own in OUTPUT_NAMES and is_linear(module):
            # packed weights tell no width
            writes = module.nf if isinstance(module, Conv1D) else module.out_features
            if writes == hidden:
                found.append(module)
    return found


SHARE = 0.1  # of each layer's neurons, cut in the proof
MIXED = 0.01  # share of what is read that may move with the past: rounding, not attention
# Two kernels for the same experts add in different orders.
ROUNDING = {torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.1}


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
    if not is_whole(loaded.model) and (whole or has_experts(loaded.model)):
        raise ModelRefused(
            f"{loaded.name} is quantized or spread over devices, and this reads its feed-forward "
            "weights; load it whole on one device."
        )
    sites, grid = find_sites(loaded.model)
    prove(loaded.model, sites, grid)
    return NeuronModel(**vars(loaded) | {"grid": grid, "projections": sites})


@torch.no_grad()
def prove(
    model: PreTrainedModel, projections: Projections, grid: NeuronGrid, *, seed: int = 0
) -> None:
    """Show that the sites are feed-forward outputs and that masks cut what they say.

    The model is left as it was: weights, hooks and training mode.
    """
    writable = all(is_writable(module) for *_, module in list_projections(projections))
    zeroed = _zero_weights_plainly if writable else inputs_zeroed
    proof = CutProof(
        projections,
        grid,
        zeroed,
        lambda mask: f"{int(mask.sum())} neurons",
        "the feed-forward outputs",
    )
    with resting(model, seed) as (tokens, intact):
        _prove_one_position(model, projections, tokens)
        empty = torch.zeros(1, grid.size, dtype=torch.bool)
        with knocked_out(projections, grid, empty, every_layer=True):
            error = float((logits_of(model, tokens) - intact).abs().max())
        routed = any(isinstance(module, Experts) for *_, module in list_projections(projections))
        allowed = ROUNDING.get(model.dtype, 1e-4) * float(intact.abs().max()) if routed else 0.0
        if not error <= allowed:
            raise ModelRefused(
                f"{type(model).__name__}: with nothing knocked out and a hook at every "
                f"feed-forward output the logits differ from the intact model's, by {error:.2g}."
            )
        if not writable:
            prove_each_layer(model, projections, grid, tokens, "neurons")
            _prove_gradients(model, projections, tokens)
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


@contextmanager
def _zero_weights_plainly(
    projections: Projections, grid: Grid, mask: Bool[Tensor, " neurons"]
) -> Iterator[None]:
    """Zero weights, experts computed plainly as under a cut, so that only the cut differs."""
    looking = (
        module.register_forward_pre_hook(lambda *_: None)
        for _, _, module in list_projections(projections)
    )
    with temporary_hooks(looking), columns_zeroed(projections, grid, mask):
        yield
