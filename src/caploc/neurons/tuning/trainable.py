"""What may be trained of a model, at the cost of what is trained: neurons, adapters, or all of it.

Each takes its place in the model when it is made and gives the model back bit for bit by `detach`;
`written` shows a plain model with the tuned weights inside.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from caploc.errors import BadOption, ModelRefused
from caploc.models.projections import input_width
from caploc.neurons.sites import Chosen
from caploc.neurons.tuning.weights import (
    NeuronShare,
    Trains,
    dense_projections,
    output_width,
    shares_by_projection,
)

try:
    import peft
except ImportError:  # an extra, of which only adapters have need
    peft = None  # type: ignore[assignment]

ADAPTER = "caploc"
GOLDEN = (5**0.5 - 1) / 2


@runtime_checkable
class Trainable(Protocol):
    """What an arm may tune of a model."""

    def parameters(self) -> list[nn.Parameter]:
        """List what the optimizer moves."""

    def settle(self) -> None:
        """Let what the optimizer moved take effect in the model."""

    def written(self) -> AbstractContextManager[None]:
        """Show a plain model with the tuned weights inside, and the model's own after it."""

    def detach(self) -> None:
        """Leave the model as it was."""


class TrainableRows:
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

    Raises:
        BadOption: if no neuron is chosen, or the set is another model's.
        ModelRefused: if a chosen neuron is a routed expert's, the weights are quantised, or a
            block's input projections are not found.
    """

    def __init__(self, model: PreTrainedModel, chosen: Chosen, trains: Trains = "all") -> None:
        found = shares_by_projection(model, chosen, trains)
        self.chosen, self.trains, self.shares = chosen, trains, found
        self.originals = {key: value for share in found for key, value in share.read().items()}
        self.changes = {
            key: nn.Parameter(torch.zeros_like(value, dtype=torch.float32))
            for key, value in self.originals.items()
        }
        self.handles: list[RemovableHandle] = []
        try:
            for share in found:
                self.handles.append(share.module.register_forward_hook(self._hook(share)))
        except BaseException:
            self.detach()
            raise

    def parameters(self) -> list[nn.Parameter]:
        return list(self.changes.values())

    def settle(self) -> None:
        """Do nothing: what the optimizer moved takes effect at once."""

    def delta(self) -> dict[str, Tensor]:
        """Compute the chosen neurons' weights as trained, neurons first, by the parameters' names.

        They have the model's dtype: they are exactly what `merge_` writes.
        """
        return {
            key: (value.float() + self.changes[key].detach()).to(value.dtype)
            for key, value in self.originals.items()
        }

    def detach(self) -> None:
        """Take the hooks away: the model is as it was before."""
        for handle in self.handles:
            handle.remove()
        self.handles = []

    def merge_(self) -> None:
        """Write the trained weights into the model for good, and detach."""
        trained = self.delta()
        self.detach()
        for share in self.shares:
            share.write(trained)

    @contextmanager
    def written(self) -> Iterator[None]:
        """Hold the trained weights in the model inside, and bit for bit its own after it."""
        try:
            self.merge_()
            yield
        finally:
            for share in self.shares:
                share.write(self.originals)

    def __enter__(self) -> "TrainableRows":
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

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


class TrainableWhole:
    """Every weight of a model, trainable as float32 copies whatever the model's dtype.

    In bfloat16 a step of a thousandth of a weight would round to nothing, and full tuning would
    look worse than it is.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        """Copy the weights and let their gradients flow to the copies."""
        self.weights = [each for each in model.parameters() if each.is_floating_point()]
        self.required = [weight.requires_grad for weight in self.weights]
        self.originals = [weight.detach().clone() for weight in self.weights]
        # copied: in float32 they would be the originals themselves
        self.copies = [nn.Parameter(each.to(torch.float32, copy=True)) for each in self.originals]
        self.handles: list[RemovableHandle] = []
        try:
            for weight, copy in zip(self.weights, self.copies, strict=True):
                weight.requires_grad_(True)
                handle = weight.register_post_accumulate_grad_hook(self._handing_to(copy))
                self.handles.append(handle)
        except BaseException:
            self.detach()
            raise

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

    @contextmanager
    def written(self) -> Iterator[None]:
        """Hold the trained weights in the model inside, and bit for bit its own after it."""
        try:
            self._release()
            self.settle()
            yield
        finally:
            self.detach()

    def _release(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles = []
        for weight, required in zip(self.weights, self.required, strict=True):
            weight.requires_grad_(required)
            weight.grad = None

    @staticmethod
    def _handing_to(copy: nn.Parameter) -> Callable[[Tensor], None]:
        def hand_over(weight: Tensor) -> None:
            assert weight.grad is not None
            gradient = weight.grad.float()
            copy.grad = gradient if copy.grad is None else copy.grad + gradient
            weight.grad = None

        return hand_over


class TrainableLora:
    """Low-rank adapters (PEFT's LoRA) on feed-forward projections, about `wanted` parameters.

    A rank is a whole number, and an adapter of rank 1 on every projection may already be larger
    than a few neurons. So ranks differ by one from projection to projection, 0 included, with the
    higher ones spread over the layers: our choice, so that the counts agree. Scaled by 1 (alpha
    equal to rank); the learning rate is searched anyway.
    """

    def __init__(self, model: PreTrainedModel, wanted: int, trains: Trains, seed: int) -> None:
        """Put adapters around projections; a new one changes nothing."""
        projections = adaptable(model, trains)
        costs = [input_width(each) + output_width(each) for each in projections.values()]
        ranked = zip(projections, ranks(costs, wanted), strict=True)
        self.model: Any = model
        self.targets = {name: rank for name, rank in ranked if rank > 0}
        self.bases = {name: projections[name] for name in self.targets}
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

    def settle(self) -> None:
        """Do nothing: what the optimizer moved takes effect at once."""

    def detach(self) -> None:
        """Put the projections back in their places: the model is as it was before."""
        for name, base in self.bases.items():
            around, _, own = name.rpartition(".")
            setattr(self.model.get_submodule(around), own, base)
        if hasattr(self.model, "peft_config"):
            del self.model.peft_config
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(self.required[name])

    @contextmanager
    def written(self) -> Iterator[None]:
        """Hold the adapted weights in the plain model inside, and bit for bit its own after it."""
        self.detach()
        originals = {name: base.weight.detach().clone() for name, base in self.bases.items()}
        try:
            with torch.no_grad():
                for name, base in self.bases.items():
                    layer: Any = self.layers[name]
                    change = layer.get_delta_weight(ADAPTER)
                    base.weight.copy_(originals[name].float() + change.float())
            yield
        finally:
            with torch.no_grad():
                for name, base in self.bases.items():
                    base.weight.copy_(originals[name])

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

    Raises:
        BadOption: if PEFT is not installed.
        ModelRefused: if there is none.
    """
    require_peft_to_train()
    found = dense_projections(model, trains)
    if not found:
        raise ModelRefused(
            f"{type(model).__name__} has routed experts only, which adapters do not fit around; "
            "leave the arm 'lora' out."
        )
    return found


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
    """Refuse adapters where PEFT is not installed.

    Raises:
        BadOption: if it is not.
    """
    if peft is None:
        raise BadOption(
            "The arm 'lora' needs PEFT, which is not installed: pip install 'caploc[peft]', or "
            "leave the arm out."
        )
