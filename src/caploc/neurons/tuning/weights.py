"""Which weights belong to a neuron: its column of the output projection, its rows of the inputs.

A feed-forward block reads hidden states by one or two input projections and writes them back by an
output projection. Neuron i is row i of every input projection (with its bias) and column i of the
output projection. Here all of these are handled with neurons first: (chosen, hidden).
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from caploc.errors import BadOption, ModelRefused
from caploc.models.cutting import temporary_hooks
from caploc.models.projections import input_width, text_config
from caploc.neurons.experts import Experts
from caploc.neurons.sites import Chosen, find_sites, list_projections

Trains = Literal["all", "output"]  # all rows and columns of a neuron, or its output column alone
TRAINS = ("all", "output")
TOKENS = 4  # of the proof of a fused projection


@dataclass(frozen=True)
class NeuronShare:
    """What one projection holds of the chosen neurons.

    `writes` is true of an input projection, which writes the neurons, and false of an output
    projection, which reads them; `places` are the chosen rows or columns of its weight.
    """

    name: str
    module: Any
    writes: bool
    places: Int[Tensor, " chosen"]

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the parameters that the neurons have a share of."""
        biased = self.writes and self.module.bias is not None
        return (f"{self.name}.weight", f"{self.name}.bias") if biased else (f"{self.name}.weight",)

    def read(self) -> dict[str, Tensor]:
        """Copy the chosen neurons' values: (chosen, hidden) and, of a bias, (chosen)."""
        return {key: self._neurons_first(key)[self.places] for key in self.keys}

    @torch.no_grad()
    def write(self, values: Mapping[str, Tensor]) -> None:
        """Put values of the same shapes in their place, rounded to the weights' dtype."""
        for key in self.keys:
            weight = self._neurons_first(key)
            weight[self.places] = values[key].to(weight)

    def _neurons_first(self, key: str) -> Float[Tensor, "neurons ..."]:
        if key.endswith(".bias"):
            return self.module.bias.detach()
        weight: Tensor = self.module.weight.detach()
        # a Linear's weight is (writes, reads), a Conv1D's (reads, writes)
        return weight if self.writes != isinstance(self.module, Conv1D) else weight.T


def shares_by_projection(
    model: PreTrainedModel, chosen: Chosen, trains: Trains = "all"
) -> list[NeuronShare]:
    """Find every projection's share of the chosen neurons, layer by layer.

    With `trains` "output" the input projections have none.

    Raises:
        BadOption: if no neuron is chosen, or the set is another model's.
        ModelRefused: if a chosen neuron is a routed expert's, the weights are quantised, or a
            block's input projections are not found.
    """
    sites, grid = find_sites(model)
    check_chosen(chosen, grid.size, trains)
    names = {id(module): name for name, module in model.named_modules()}
    found: list[NeuronShare] = []
    for layer, columns, module in list_projections(sites):
        places = torch.from_numpy(np.flatnonzero(chosen[columns]))
        if not len(places):
            continue
        if isinstance(module, Experts):
            raise ModelRefused(
                f"{len(places)} of the chosen neurons belong to the routed experts of layer "
                f"{layer}, which cannot be tuned by themselves; choose neurons that every token "
                "passes through."
            )
        output = _share(names[id(module)], module, False, places)
        inputs = _input_shares(model, output) if trains == "all" else []
        found += [*inputs, output]
    return found


def check_chosen(chosen: Chosen, neurons: int, trains: str = "all") -> None:
    """Refuse a set that is empty or another model's.

    Raises:
        BadOption: if it is, or `trains` is unknown.
    """
    if trains not in TRAINS:
        raise BadOption(f"trains={trains!r} is not one of {', '.join(TRAINS)}.")
    if len(chosen) != neurons:
        raise BadOption(
            f"The set is of a model with {len(chosen):,} neurons, and this one has {neurons:,}; "
            "choose neurons of this model."
        )
    if not chosen.any():
        raise BadOption("No neuron is chosen, so that there is nothing to tune; choose at least 1.")


def dense_projections(model: PreTrainedModel, trains: Trains = "all") -> dict[str, Any]:
    """Find every projection that neurons have weights in: output and, for "all", input ones.

    Routed experts are left out.
    """
    names = {id(module): name for name, module in model.named_modules()}
    found: dict[str, Any] = {}
    for _, _, module in list_projections(find_sites(model)[0]):
        if not isinstance(module, Experts):
            name = names[id(module)]
            found |= _input_projections(model, name) if trains == "all" else {}
            found[name] = module
    return found


def output_width(projection: nn.Module) -> int:
    """Count the values that a projection writes."""
    return int(projection.weight.shape[1 if isinstance(projection, Conv1D) else 0])  # type: ignore[index]


def _input_projections(model: PreTrainedModel, name: str) -> dict[str, Any]:
    """Find the projections beside an output projection that write its neurons.

    Each reads as many values as the model is wide and writes as many as the output projection
    reads, or twice as many where the two of a gated block are one.
    """
    hidden = text_config(model).hidden_size
    around, _, own = name.rpartition(".")
    width = input_width(model.get_submodule(name))
    found = {
        f"{around}.{other}": module
        for other, module in model.get_submodule(around).named_children()
        if other != own
        and isinstance(module, nn.Linear | Conv1D)
        and input_width(module) == hidden
        and output_width(module) in (width, 2 * width)
    }
    if not found:
        raise ModelRefused(
            f"Beside {name} there is no projection from {hidden} values to its {width} neurons; "
            "tune the output columns alone with trains='output'."
        )
    return found


def _input_shares(model: PreTrainedModel, output: NeuronShare) -> list[NeuronShare]:
    found = []
    width = input_width(output.module)
    for name, module in _input_projections(model, output.name).items():
        places = output.places
        if output_width(module) == 2 * width:
            places = torch.cat([places, places + width])
            _prove_halves(model.get_submodule(name.rpartition(".")[0]), module, output)
        found.append(_share(name, module, True, places))
    return found


def _share(name: str, module: nn.Module, writes: bool, places: Tensor) -> NeuronShare:
    weight: Any = module.weight
    if not weight.is_floating_point():
        raise ModelRefused(
            f"{name} has weights of type {weight.dtype}: a quantised model cannot be tuned; load "
            "it in float32, bfloat16 or float16."
        )
    return NeuronShare(name, module, writes, places.to(weight.device))


@torch.no_grad()
def _prove_halves(block: nn.Module, fused: nn.Module, output: NeuronShare) -> None:
    """Show that rows i and i + width of a fused projection are neuron i's, and no other's."""
    weight: Any = fused.weight
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, TOKENS, input_width(fused), generator=generator).to(weight)
    width = input_width(output.module)
    before = _read(block, output.module, hidden)
    for half in (0, width):
        with _moved(fused, output.places + half):
            moved = (_read(block, output.module, hidden) != before).any(dim=(0, 1))
        expected = torch.zeros_like(moved)
        expected[output.places] = True
        if not bool((moved == expected).all()):
            raise ModelRefused(
                f"Rows i and i + {width} of the fused input projection beside {output.name} are "
                "not those of neuron i; tune the output columns alone with trains='output'."
            )


def _read(block: nn.Module, projection: nn.Module, hidden: Tensor) -> Tensor:
    """Note what a block's output projection reads for hidden states."""
    read: list[Tensor] = []
    reading = projection.register_forward_pre_hook(lambda _, args: read.append(args[0].clone()))
    with temporary_hooks([reading]):
        block(hidden)
    return read[0]


def _moved(projection: nn.Module, places: Tensor) -> AbstractContextManager[None]:
    """Add one, inside, to what the projection writes at these places."""

    def move(_: nn.Module, __: Any, written: Tensor) -> Tensor:
        return written.index_add(-1, places, torch.ones_like(written[..., places]))

    return temporary_hooks([projection.register_forward_hook(move)])


@contextmanager
def degraded(model: PreTrainedModel, noise: float, seed: int) -> Iterator[None]:
    """Add Gaussian noise to every feed-forward weight; after the block they are what they were.

    A model that was good at everything has something to recover then. The noise's standard
    deviation is `noise` times that of the weight matrix it is added to; biases are left alone. It
    depends on the seed and the weights' shapes only, whatever the device.

    Raises:
        BadOption: if `noise` is negative or not finite.
    """
    if not 0 <= noise < float("inf"):
        raise BadOption(f"noise is a share of the weights' own spread, 0 or more; got {noise:g}.")
    weights = feed_forward_weights(model)
    originals = [weight.clone() for weight in weights]
    generator = torch.Generator().manual_seed(seed)
    try:
        for weight in weights:
            drawn = torch.randn(weight.shape, generator=generator).to(weight.device)
            weight += (noise * weight.float().std() * drawn).to(weight.dtype)
        yield
    finally:
        for weight, original in zip(weights, originals, strict=True):
            weight.copy_(original)


def feed_forward_weights(model: PreTrainedModel) -> list[Tensor]:
    """List every weight matrix of the feed-forward blocks, those of routed experts among them."""
    dense = [module.weight.detach() for module in dense_projections(model).values()]
    experts = [
        parameter.detach()
        for _, _, module in list_projections(find_sites(model)[0])
        if isinstance(module, Experts)
        for parameter in module.module.parameters(recurse=False)
        if parameter.ndim == 3
    ]
    return dense + experts
