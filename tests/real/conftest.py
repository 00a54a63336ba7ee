"""The pretrained models, which `make test-real` fetches first."""

import os

import pytest

from caploc.naming import PRETRAINED, is_fetched

ASKED = os.environ.get("MODELS", "smollm2")


def pytest_generate_tests(metafunc):
    """Every test that takes a model's name is run on each of those that `MODELS` asks for."""
    if "name" in metafunc.fixturenames:
        names = list(PRETRAINED) if ASKED == "all" else ASKED.split(",")
        metafunc.parametrize("name", names, scope="session")


@pytest.fixture(scope="session")
def loaded(name):
    from caploc.models.loading import load_model

    if not is_fetched(name):
        pytest.fail(f"{name} is not here; run `caploc models fetch {name}`, or `make test-real`.")
    return load_model(name, device="cpu")
