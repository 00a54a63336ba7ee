"""The tiny models of every family serve here too."""

import sys
from pathlib import Path

import pytest
from planted_models import Planter

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


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Planter:
    """Planted models, each written and loaded once."""
    return Planter(tmp_path_factory)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pages, which take longer than all else and have tests of their own."""
    monkeypatch.setattr("caploc.neurons.report.write_exhibits", lambda *told: None)
