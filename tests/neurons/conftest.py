"""Planted models, and runs without pages."""

import pytest
from planted_models import Planter


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Planter:
    """Planted models, each written and loaded once."""
    return Planter(tmp_path_factory)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pages, which take longer than all else and have tests of their own."""
    monkeypatch.setattr("caploc.neurons.report.write_exhibits", lambda *told: None)
