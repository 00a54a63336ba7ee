"""What the tests of this folder share."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))  # for `import tiny`


@pytest.fixture
def short_prefixes(monkeypatch):
    """Let prefixes be shared however little that saves."""
    monkeypatch.setattr("caploc.engine.planning.UPKEEP", 0)
    monkeypatch.setattr("caploc.engine.planning.SHORTEST", 8)
