"""The demo model, which tests must leave as they found it, and the tiny models of every family."""

import sys
from pathlib import Path

import pytest

from caploc.models.loading import LoadedModel, load_model
from caploc.neurons.model import NeuronModel, as_neurons
from worlds import DEMO

for folder in ("models", "neurons"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))


@pytest.fixture(scope="session")
def demo() -> LoadedModel:
    return load_model(DEMO, device="cpu")


@pytest.fixture(scope="session")
def neurons(demo: LoadedModel) -> NeuronModel:
    return as_neurons(demo)
