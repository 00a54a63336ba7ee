"""Which weights are a neuron's, and what may be tuned of a model: neurons, adapters, all of it.

A feed-forward block reads hidden states by one or two input projections and writes them back by an
output projection. Neuron i is row i of every input projection (with its bias) and column i of the
output projection; that it is all of these is our choice.

What an optimizer moves are float32 parameters, whatever the model's dtype: in bfloat16 a step of a
thousandth of a weight would round to nothing. After each step the weights are made of them, so that
every arm is trained as the plain model that it is judged as.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from caploc.errors import BadOption, ModelRefused
from caploc.models.projections import input_width, module_name, text_config
from caploc.models.proof import reads_first
from caploc.neurons.model import Chosen, find_sites, list_projections

GOLDEN = (5**0.5 - 1) / 2


@dataclass
class TunedWeight:
    """Entries of a weight, and the float32 parameters that they are made of.

    `index` says which entries, as it would stand in brackets. `build` makes them of their own
    values and the parameters.
    """

    weight: nn.Parameter
    index: Any
    parameters: Sequence[nn.Parameter]
    build: Callable[..., Tensor]

    def __post_init__(self) -> None:
        self.original = self.weight.detach()[self.index].clone()

    @classmethod
    def moved(cls, weight: nn.Parameter, index: Any) -> "TunedWeight":
        """Add a change to entries, none at first."""
        change = torch.zeros_like(weight.detach()[index], dtype=torch.float32)
        return cls(weight, index, [nn.Parameter(change)], torch.add)

    def made(self) -> Tensor:
        return self.build(self.original.float(), *self.parameters)

    @torch.enable_grad()
    def carry(self, weight: Tensor) -> None:
        """Carry the weight's gradient on to the parameters."""
        assert weight.grad is not None
        self.made().backward(weight.grad[self.index].float())
        weight.grad = None

    @torch.no_grad()
    def write(self, entries: Tensor) -> None:
        self.weight[self.index] = entries.to(self.weight)


class Tunable:
    """What is tuned of a model; `with` gives the model its own weights back, bit for bit."""

    def __init__(self, weights: Sequence[TunedWeight]) -> None:
        self.weights = weights
        self.parameters = [parameter for each in weights for parameter in each.parameters]
        self.required = [each.weight.requires_grad for each in weights]
        self.handles: list[RemovableHandle] = []

    def __enter__(self) -> "Tunable":
        for each in self.weights:
            each.weight.requires_grad_(True)
            # a hook, so that no more than one weight's gradient is held
            self.handles.append(each.weight.register_post_accumulate_grad_hook(each.carry))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()
        for each, required in zip(self.weights, self.required, strict=True):
            each.weight.requires_grad_(required)
            each.weight.grad = None
            each.write(each.original)

    @torch.no_grad()
    def settle(self, values: Sequence[Tensor] | None = None) -> None:
        """Make the weights of the parameters, which are first set to values if some are given."""
        for parameter, value in zip(self.parameters, values or self.parameters, strict=True):
            parameter.copy_(value)
        for each in self.weights:
            each.write(each.made())


def tune_neurons(model: PreTrainedModel, chosen: Chosen) -> Tunable:
    """Open the weights of the chosen neurons.

    Raises BadOption if none is chosen, or they are another model's; ModelRefused if a block's input
    projections are not found.
    """
    check_chosen(chosen, find_sites(model)[1].size)
    found = []
    for columns, output in list_outputs(model):
        places = torch.from_numpy(np.flatnonzero(chosen[columns])).to(output.weight.device)
        if not len(places):
            continue
        for each in input_projections(model, output):
            by_row = (slice(None), places) if isinstance(each, Conv1D) else (places,)
            found.append(TunedWeight.moved(each.weight, by_row))
            if each.bias is not None:
                found.append(TunedWeight.moved(each.bias, (places,)))
        by_column = (places,) if isinstance(output, Conv1D) else (slice(None), places)
        found.append(TunedWeight.moved(output.weight, by_column))
    return Tunable(found)


def tune_adapters(model: PreTrainedModel, chosen: Chosen, seed: int) -> Tunable:
    """Open low-rank adapters of feed-forward projections, with as many parameters as neurons have.

    An adapter (LoRA, Hu et al. 2021) adds `up @ down`: `down` begins at random, `up` at zero, so
    that a new one changes nothing. Raises as `tune_neurons`.
    """
    wanted = sum(each.numel() for each in tune_neurons(model, chosen).parameters)
    projections = [
        each
        for _, output in list_outputs(model)
        for each in (*input_projections(model, output), output)
    ]
    generator = torch.Generator().manual_seed(seed)
    found = []
    shapes = [reads_first(each).shape for each in projections]
    ranks = choose_ranks([sum(shape) for shape in shapes], wanted)
    for each, (reads, writes), rank in zip(projections, shapes, ranks, strict=True):
        if rank:
            down = nn.init.kaiming_uniform_(torch.empty(rank, reads), 5**0.5, generator=generator)
            parts = [
                nn.Parameter(part.to(each.weight.device))
                for part in (down, torch.zeros(writes, rank))
            ]
            build = partial(add_adapter, transposed=isinstance(each, Conv1D))
            found.append(TunedWeight(each.weight, ..., parts, build))
    return Tunable(found)


def add_adapter(own: Tensor, down: Tensor, up: Tensor, *, transposed: bool) -> Tensor:
    """Add an adapter to the weight of a linear layer, or of one that has it transposed."""
    change = up @ down
    return own + (change.T if transposed else change)


def tune_everything(model: PreTrainedModel) -> Tunable:
    """Open every weight of a model."""
    return Tunable(
        [
            # copied: in float32 it would be the weight itself
            TunedWeight(
                each,
                ...,
                [nn.Parameter(each.detach().to(torch.float32, copy=True))],
                lambda _, copy: copy,
            )
            for each in model.parameters()
            if each.is_floating_point()
        ]
    )


def check_chosen(chosen: Chosen, neurons: int) -> None:
    """Refuse a set that is empty or another model's."""
    if len(chosen) != neurons:
        raise BadOption(
            f"The set is of a model with {len(chosen):,} neurons, and this one has {neurons:,}; "
            "choose neurons of this model."
        )
    if not chosen.any():
        raise BadOption("No neuron is chosen, so that there is nothing to tune; choose at least 1.")


def list_outputs(model: PreTrainedModel) -> Iterator[tuple[slice, Any]]:
    """Yield every output projection, with the columns of its neurons in a mask."""
    for _, columns, module in list_projections(find_sites(model)[0]):
        yield columns, module


def input_projections(model: PreTrainedModel, output: Any) -> list[Any]:
    """Find the projections beside an output projection that write its neurons.

    Each reads as many values as the model is wide and writes as many as the output projection
    reads; one that writes the two of a gated block at once is none.
    """
    name, hidden, width = (
        module_name(model, output),
        text_config(model).hidden_size,
        input_width(output),
    )
    found = [
        module
        for module in model.get_submodule(name.rpartition(".")[0]).children()
        if module is not output
        and isinstance(module, nn.Linear | Conv1D)
        and tuple(reads_first(module).shape) == (hidden, width)
    ]
    if not found:
        raise ModelRefused(
            f"Beside {name} there is no projection from {hidden} values to its {width} neurons, so "
            "that they cannot be tuned; choose a model whose blocks have one."
        )
    return found


def choose_ranks(costs: Sequence[int], wanted: int) -> list[int]:
    """Choose whole ranks, at most one apart, whose costs add up to about `wanted`; not all are 0.

    An adapter of rank r costs `r (reads + writes)` parameters, and those of rank 1 everywhere may
    already be more than a few neurons have; higher ranks are spread over the layers.
    """
    base = wanted // sum(costs)
    left = wanted - base * sum(costs)
    found = [base] * len(costs)
    # multiples of the golden ratio, modulo 1, visit the projections evenly spread
    for place in sorted(range(len(costs)), key=lambda place: place * GOLDEN % 1):
        if abs(left - costs[place]) < left:
            found[place] += 1
            left -= costs[place]
    if not any(found):
        found[costs.index(min(costs))] = 1
    return found
