"""What the tests of this folder share."""

import pytest
from kernel import slowly

from caploc.models.loading import load_model
from worlds import DEMO


@pytest.fixture(scope="module")
def loaded():
    """The demo model."""
    return load_model(DEMO)


@pytest.fixture
def short_prefixes(monkeypatch):
    """Let prefixes be shared however little that saves."""
    monkeypatch.setattr("caploc.engine.planning.UPKEEP", 0)
    monkeypatch.setattr("caploc.engine.planning.SHORTEST", 8)


@pytest.fixture
def by_kernel(monkeypatch):
    """Let the CPU read rows as a GPU does in 16 bits; says of each reading if it was causal."""
    calls = []

    def counted(*args, **kwargs):
        calls.append(kwargs["causal"])
        return slowly(*args, **kwargs)

    monkeypatch.setattr("caploc.engine.attention.has_kernel", lambda device, dtype: True)
    monkeypatch.setattr("caploc.engine.attention.reads_ragged", lambda queries, values: True)
    monkeypatch.setattr("caploc.engine.kernels.attend_pairs", counted)
    return calls
