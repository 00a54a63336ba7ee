"""A model damaged by noise, which has something to learn again."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel

from caploc.neurons.weights import dense_projections


@contextmanager
def degraded(model: PreTrainedModel, noise: float, seed: int) -> Iterator[None]:
    """Add noise of so many standard deviations to every feed-forward weight, for a block."""
    weights = [module.weight.detach() for module in dense_projections(model).values()]
    originals = [weight.clone() for weight in weights]
    generator = torch.Generator().manual_seed(seed)
    try:
        for weight in weights:
            drawn = torch.randn(weight.shape, generator=generator)
            weight += noise * weight.std() * drawn
        yield
    finally:
        for weight, original in zip(weights, originals, strict=True):
            weight.copy_(original)
