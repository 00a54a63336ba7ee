"""Tiny models of every family as neurons, with the demo's tokenizer where one must be there."""

from collections.abc import Callable

import pytest
from transformers import PreTrainedModel

from caploc.neurons.model import NeuronModel, find_sites
from papers.cnl.prompts import Encoded
from worlds.tiny import tiny


@pytest.fixture(scope="session")
def as_tiny(demo) -> Callable[[str | PreTrainedModel], NeuronModel]:
    """A family's tiny model, or a model of one's own, seen as its neurons."""

    def build(given):
        model = tiny(given) if isinstance(given, str) else given
        sites, grid = find_sites(model)
        return NeuronModel(
            model=model,
            tokenizer=demo.tokenizer,
            grid=grid,
            projections=sites,
            name="tiny",
            fingerprint="",
            dtype="float32",
            device=model.device,
        )

    return build


@pytest.fixture(scope="session")
def asked() -> Encoded:
    """Seven tokens of which two are the subject's, and an answer of two."""
    return Encoded(tokens=(5, 17, 23, 8, 41, 30, 12), answer=(12, 33), subject=(1, 2))
