"""The tiny models of every family serve here too."""

import sys
from pathlib import Path

import pytest

from caploc.models.loading import LoadedModel, load_model
from caploc.neurons.model import NeuronModel, as_neurons
from worlds import DEMO

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))


@pytest.fixture(scope="session")
def demo() -> LoadedModel:
    """The demo model; tests must leave it as they found it."""
    return load_model(DEMO, device="cpu")


@pytest.fixture(scope="session")
def neurons(demo: LoadedModel) -> NeuronModel:
    """The same, seen as its neurons."""
    return as_neurons(demo)
