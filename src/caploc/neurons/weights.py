"""Which weights are a neuron's, and what may be trained of a model: neurons, adapters, all of it.

A feed-forward block reads hidden states by one or two input projections and writes them back by an
output projection. Neuron i is row i of every input projection (with its bias) and column i of the
output projection. Here all of these are handled with neurons first: (chosen, hidden).

What is trained takes its place in the model when it is made, at the cost of what is trained, and
gives the model back bit for bit by `detach`; `written` shows a plain model with the tuned weights
inside.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from caploc.errors import BadOption, ModelRefused
from caploc.models.hooks import temporary_hooks
from caploc.models.projections import input_width, text_config
from caploc.models.proof import Call, reads_first
from caploc.neurons.model import Chosen, find_sites, list_projections

Trains = Literal["all", "output"]  # all rows and columns of a neuron, or its output column alone
TRAINS = ("all", "output")
T = TypeVar("T")
TOKENS = 4  # of the proof of a fused projection


@dataclass(frozen=True)
class NeuronShare:
    """What one projection holds of the chosen neurons.

    `writes` is true of an input projection, which writes the neurons, and false of an output
    projection, which reads them; `places` are the chosen rows or columns of its weight, `columns`
    those of all its neurons in a mask.
    """

    name: str
    module: Any
    writes: bool
    places: Int[Tensor, " chosen"]
    columns: slice

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
        weight: Tensor = reads_first(self.module)
        return weight.T if self.writes else weight


def shares_by_projection(
    model: PreTrainedModel, chosen: Chosen, trains: Trains = "all"
) -> list[NeuronShare]:
    """Find every projection's share of the chosen neurons, layer by layer.

    With `trains` "output" the input projections have none. Raises BadOption if no neuron is chosen,
    or the set is another model's; ModelRefused if the weights are quantised, or a block's input
    projections are not found.
    """
    sites, grid = find_sites(model)
    check_chosen(chosen, grid.size)
    names = {id(module): name for name, module in model.named_modules()}
    found: list[NeuronShare] = []
    for _, columns, module in list_projections(sites):
        places = torch.from_numpy(np.flatnonzero(chosen[columns]))
        if not len(places):
            continue
        output = _share(names[id(module)], module, False, places, columns)
        inputs = _input_shares(model, output) if trains == "all" else []
        found += [*inputs, output]
    return found


def check_chosen(chosen: Chosen, neurons: int) -> None:
    """Refuse a set that is empty or another model's."""
    if len(chosen) != neurons:
        raise BadOption(
            f"The set is of a model with {len(chosen):,} neurons, and this one has {neurons:,}; "
            "choose neurons of this model."
        )
    if not chosen.any():
        raise BadOption("No neuron is chosen, so that there is nothing to tune; choose at least 1.")


def dense_projections(model: PreTrainedModel, trains: Trains = "all") -> dict[str, Any]:
    """Find every projection of neurons: output and, for "all", input ones."""
    names = {id(module): name for name, module in model.named_modules()}
    found: dict[str, Any] = {}
    for _, _, module in list_projections(find_sites(model)[0]):
        name = names[id(module)]
        found |= _input_projections(model, name) if trains == "all" else {}
        found[name] = module
    return found


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
        and reads_first(module).shape[1] in (width, 2 * width)
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
        if reads_first(module).shape[1] == 2 * width:
            places = torch.cat([places, places + width])
            _prove_halves(model.get_submodule(name.rpartition(".")[0]), module, output)
        found.append(_share(name, module, True, places, output.columns))
    return found


def _share(
    name: str, module: nn.Module, writes: bool, places: Tensor, columns: slice
) -> NeuronShare:
    weight: Any = module.weight
    if not weight.is_floating_point():
        raise ModelRefused(
            f"{name} has weights of type {weight.dtype}: a quantised model cannot be tuned; load "
            "it in float32, bfloat16 or float16."
        )
    return NeuronShare(name, module, writes, places.to(weight.device), columns)


@torch.no_grad()
def _prove_halves(block: nn.Module, fused: nn.Module, output: NeuronShare) -> None:
    """Show that rows i and i + width of a fused projection are neuron i's, and no other's."""
    weight: Any = fused.weight
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, TOKENS, input_width(fused), generator=generator).to(weight)
    width = input_width(output.module)
    call = Call(block, output.module)
    with call.listening():
        block(hidden)
    for half in (0, width):

        def move(
            _: nn.Module, __: Any, written: Tensor, places: Tensor = output.places + half
        ) -> Tensor:
            return written.index_add(-1, places, torch.ones_like(written[..., places]))

        with temporary_hooks([fused.register_forward_hook(move)]), call.listening():
            block(hidden)
        moved = (call.read[-1] != call.read[0]).any(dim=(0, 1))
        expected = torch.zeros_like(moved)
        expected[output.places] = True
        if not bool((moved == expected).all()):
            raise ModelRefused(
                f"Rows i and i + {width} of the fused input projection beside {output.name} are "
                "not those of neuron i; tune the output columns alone with trains='output'."
            )


try:
    import peft
except ImportError:  # an extra, of which only adapters have need
    peft = None  # type: ignore[assignment]

ADAPTER = "caploc"
GOLDEN = (5**0.5 - 1) / 2


class Trainable(ABC):
    """What an arm may tune of a model; `with` detaches it at the end."""

    @abstractmethod
    def parameters(self) -> list[nn.Parameter]:
        """List what the optimizer moves."""

    def settle(self) -> None:  # noqa: B027
        """Let what the optimizer moved take effect in the model, where it has not at once."""

    @abstractmethod
    def merge_(self) -> None:
        """Write the trained weights into the plain model for good, and detach."""

    @abstractmethod
    def restore(self) -> None:
        """Give the plain model its own weights back, bit for bit."""

    @abstractmethod
    def detach(self) -> None:
        """Leave the model as it was."""

    @contextmanager
    def written(self) -> Iterator[None]:
        """Hold the trained weights in the plain model inside, and bit for bit its own after it."""
        try:
            self.merge_()
            yield
        finally:
            self.restore()

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()


class TrainableRows(Trainable):
    """The chosen neurons' weights of a model, trainable; the model itself stays frozen.

        with TrainableRows(model, chosen) as rows:
            optimizer = torch.optim.AdamW(rows.parameters(), lr=1e-3, weight_decay=0)
            ...
            rows.merge_()          # or rows.delta(), to keep the change apart

    Every projection runs as it is and a hook adds what the change of the chosen rows or columns
    does: `y = frozen(x) + change`. So gradients and optimizer state are as large as the selection.
    The change is kept in float32; in a model of another dtype it is rounded when written.

    `trains` "all": a neuron's rows of the input projections, with biases, and its column of the
    output projection; "output": the column alone. That a neuron is all of these is our choice.
    Raises as `shares_by_projection`.
    """

    def __init__(self, model: PreTrainedModel, chosen: Chosen, trains: Trains = "all") -> None:
        found = shares_by_projection(model, chosen, trains)
        self.chosen, self.trains, self.shares = chosen, trains, found
        self.originals = {key: value for share in found for key, value in share.read().items()}
        self.changes = {
            key: nn.Parameter(torch.zeros_like(value, dtype=torch.float32))
            for key, value in self.originals.items()
        }
        self.handles = [share.module.register_forward_hook(self._hook(share)) for share in found]

    def parameters(self) -> list[nn.Parameter]:
        return list(self.changes.values())

    def delta(self) -> dict[str, Tensor]:
        """Compute the chosen neurons' weights as trained, neurons first, by the parameters' names.

        They have the model's dtype: they are exactly what `merge_` writes.
        """
        return {
            key: (value.float() + self.changes[key].detach()).to(value.dtype)
            for key, value in self.originals.items()
        }

    def detach(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles = []

    def merge_(self) -> None:
        trained = self.delta()
        self.detach()
        for share in self.shares:
            share.write(trained)

    def restore(self) -> None:
        for share in self.shares:
            share.write(self.originals)

    def _hook(self, share: NeuronShare) -> Callable[[Any, Any, Tensor], Tensor]:
        weight, *bias = (self.changes[key] for key in share.keys)

        def correct(
            _: Any, args: tuple[Tensor, ...], written: Float[Tensor, "*batch writes"]
        ) -> Float[Tensor, "*batch writes"]:
            change = weight.to(args[0].dtype)
            if not share.writes:
                return written + args[0][..., share.places] @ change
            own = functional.linear(args[0], change, *(each.to(change.dtype) for each in bias))
            return written.index_add(-1, share.places, own.to(written.dtype))

        return correct


class TrainableWhole(Trainable):
    """Every weight of a model, trainable as float32 copies whatever the model's dtype.

    In bfloat16 a step of a thousandth of a weight would round to nothing, and full tuning would
    look worse than it is.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.weights = [each for each in model.parameters() if each.is_floating_point()]
        self.required = [weight.requires_grad for weight in self.weights]
        self.originals = [weight.detach().clone() for weight in self.weights]
        # copied: in float32 they would be the originals themselves
        self.copies = [nn.Parameter(each.to(torch.float32, copy=True)) for each in self.originals]
        self.handles: list[RemovableHandle] = []

        def hand_over(weight: Tensor, copy: nn.Parameter) -> None:
            assert weight.grad is not None
            gradient = weight.grad.float()
            copy.grad = gradient if copy.grad is None else copy.grad + gradient
            weight.grad = None

        for weight, copy in zip(self.weights, self.copies, strict=True):
            weight.requires_grad_(True)
            hook = partial(hand_over, copy=copy)
            self.handles.append(weight.register_post_accumulate_grad_hook(hook))

    def parameters(self) -> list[nn.Parameter]:
        return self.copies

    @torch.no_grad()
    def settle(self) -> None:
        """Write the copies into the model, rounded to its dtype."""
        for weight, copy in zip(self.weights, self.copies, strict=True):
            weight.copy_(copy)

    @torch.no_grad()
    def detach(self) -> None:
        """Give the model its own weights back, bit for bit; no gradient flows to them."""
        self._release()
        for weight, original in zip(self.weights, self.originals, strict=True):
            weight.copy_(original)

    def merge_(self) -> None:
        self._release()
        self.settle()

    def restore(self) -> None:
        self.detach()

    def _release(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles = []
        for weight, required in zip(self.weights, self.required, strict=True):
            weight.requires_grad_(required)
            weight.grad = None


class TrainableLora(Trainable):
    """Low-rank adapters (PEFT's LoRA) on feed-forward projections, about `wanted` parameters.

    A rank is a whole number, and an adapter of rank 1 on every projection may already be larger
    than a few neurons. So ranks differ by one from projection to projection, 0 included, with the
    higher ones spread over the layers: our choice, so that the counts agree. Scaled by 1 (alpha
    equal to rank); the learning rate is searched anyway.
    """

    def __init__(self, model: PreTrainedModel, wanted: int, trains: Trains, seed: int) -> None:
        """Put adapters around projections; a new one changes nothing."""
        projections = adaptable(model, trains)
        costs = [input_width(each) + reads_first(each).shape[1] for each in projections.values()]
        ranked = zip(projections, ranks(costs, wanted), strict=True)
        self.model: Any = model
        self.targets = {name: rank for name, rank in ranked if rank > 0}
        self.bases = {name: projections[name] for name in self.targets}
        self.originals: dict[str, Tensor] = {}
        self.required = {name: each.requires_grad for name, each in model.named_parameters()}
        try:
            self._inject(seed)
        except BaseException:
            self.detach()
            raise
        self.layers = {name: model.get_submodule(name) for name in self.targets}

    def parameters(self) -> list[nn.Parameter]:
        return [
            matrix
            for layer in self.layers.values()
            for adapters in (layer.lora_A, layer.lora_B)
            for matrix in adapters.parameters()  # type: ignore[union-attr]
        ]

    def detach(self) -> None:
        for name, base in self.bases.items():
            around, _, own = name.rpartition(".")
            setattr(self.model.get_submodule(around), own, base)
        if hasattr(self.model, "peft_config"):
            del self.model.peft_config
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(self.required[name])

    @torch.no_grad()
    def merge_(self) -> None:
        self.detach()
        self.originals = {n: base.weight.detach().clone() for n, base in self.bases.items()}
        for name, base in self.bases.items():
            change = self.layers[name].get_delta_weight(ADAPTER)  # type: ignore[operator]
            base.weight.copy_(self.originals[name].float() + change.float())

    @torch.no_grad()
    def restore(self) -> None:
        for name, original in self.originals.items():
            self.bases[name].weight.copy_(original)

    def _inject(self, seed: int) -> None:
        config = peft.LoraConfig(
            r=1,
            lora_alpha=1,
            target_modules=list(self.targets),
            rank_pattern=self.targets,
            alpha_pattern=self.targets,
            fan_in_fan_out=any(isinstance(base, Conv1D) for base in self.bases.values()),
        )
        # the adapters' random start comes from the processor's own generator
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            peft.inject_adapter_in_model(config, self.model, adapter_name=ADAPTER)
        for name, parameter in self.model.named_parameters():
            if f".{ADAPTER}." in name:
                parameter.data = parameter.data.float()


def adaptable(model: PreTrainedModel, trains: Trains) -> dict[str, Any]:
    """Find the projections that adapters can be put around, by name.

    Raises BadOption if PEFT is not installed.
    """
    require_peft_to_train()
    return dense_projections(model, trains)


def ranks(costs: Sequence[int], wanted: int) -> list[int]:
    """Choose whole ranks, at most one apart, whose costs add up to about `wanted`; not all are 0.

    An adapter of rank r costs `r (reads + writes)` parameters.
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


def require_peft_to_train() -> None:
    """Refuse adapters where PEFT is not installed."""
    if peft is None:
        raise BadOption(
            "The arm 'lora' needs PEFT, which is not installed: pip install 'caploc[peft]', or "
            "leave the arm out."
        )
