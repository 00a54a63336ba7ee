"""A degraded start: a model that was good at everything, given something to recover."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel

from caploc.errors import BadOption
from caploc.neurons.experts import Experts
from caploc.neurons.sites import find_sites, parts
from caploc.neurons.tuning.weights import dense_projections


@contextmanager
def degraded(model: PreTrainedModel, noise: float, seed: int) -> Iterator[None]:
    """Gaussian noise on every feed-forward weight inside, and bit for bit the model's own after it.

    The noise's standard deviation is `noise` times that of the weight matrix it is added to; biases
    are left alone. It depends on the seed and the weights' shapes only, whatever the device.

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
    """Every weight matrix of the feed-forward blocks, those of routed experts among them."""
    dense = [module.weight.detach() for module in dense_projections(model).values()]
    experts = [
        parameter.detach()
        for _, _, module in parts(find_sites(model)[0])
        if isinstance(module, Experts)
        for parameter in module.module.parameters(recurse=False)
        if parameter.ndim == 3
    ]
    return dense + experts
