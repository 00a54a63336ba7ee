"""Low-rank adapters (PEFT's LoRA) with as many parameters as some neurons have.

A rank is a whole number, and an adapter of rank 1 on every feed-forward projection may already be
larger than a few neurons. So ranks differ by one from projection to projection, 0 included, with
the higher ones spread over the layers: our choice, so that the counts agree.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from caploc.errors import BadOption, ModelRefused
from caploc.models.projections import input_width
from caploc.neurons.tuning.weights import Trains, dense_projections, output_width

try:
    import peft
except ImportError:  # an extra, of which only this arm has need
    peft = None  # type: ignore[assignment]

ADAPTER = "caploc"
GOLDEN = (5**0.5 - 1) / 2


class TrainableLora:
    """Adapters on a model's feed-forward projections, about `wanted` parameters in all.

    Scaled by 1 (alpha equal to rank); the learning rate is searched anyway.
    """

    def __init__(self, model: PreTrainedModel, wanted: int, trains: Trains, seed: int) -> None:
        """Put adapters around projections; a new one changes nothing."""
        projections = adaptable(model, trains)
        self.model: Any = model
        self.targets = ranked(projections, wanted)
        self.bases = {name: projections[name] for name in self.targets}
        self.required = {name: each.requires_grad for name, each in model.named_parameters()}
        try:
            self._inject(seed)
        except BaseException:
            self.detach()
            raise
        self.layers = {name: model.get_submodule(name) for name in self.targets}

    def parameters(self) -> list[nn.Parameter]:
        """What an optimizer moves: both matrices of every adapter."""
        return [
            matrix
            for layer in self.layers.values()
            for adapters in (layer.lora_A, layer.lora_B)
            for matrix in adapters.parameters()  # type: ignore[union-attr]
        ]

    def settle(self) -> None:
        """Let what the optimizer moved take effect; it does at once."""

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
        """The plain model holds the adapted weights inside, and bit for bit its own after it."""
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
    """The projections that adapters can be put around, by name.

    Raises:
        BadOption: if PEFT is not installed.
        ModelRefused: if there is none.
    """
    check_peft()
    found = dense_projections(model, trains)
    if not found:
        raise ModelRefused(
            f"{type(model).__name__} has routed experts only, which adapters do not fit around; "
            "leave the arm 'lora' out."
        )
    return found


def ranked(projections: dict[str, Any], wanted: int) -> dict[str, int]:
    """The rank of each projection's adapter, for about `wanted` parameters; those of 0 left out.

    An adapter of rank r has `r (reads + writes)` parameters.
    """
    costs = [input_width(each) + output_width(each) for each in projections.values()]
    return {
        name: rank for name, rank in zip(projections, ranks(costs, wanted), strict=True) if rank > 0
    }


def ranks(costs: Sequence[int], wanted: int) -> list[int]:
    """Whole ranks, at most one apart, whose costs add up to about `wanted`; not all are 0."""
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


def check_peft() -> None:
    """Refuse adapters where PEFT is not installed.

    Raises:
        BadOption: if it is not.
    """
    if peft is None:
        raise BadOption(
            "The arm 'lora' needs PEFT, which is not installed: pip install 'caploc[peft]', or "
            "leave the arm out."
        )
