"""What the tests of this folder share."""

from concurrent.futures import ThreadPoolExecutor

import pytest


@pytest.fixture(autouse=True)
def hub_out_of_reach(monkeypatch):
    """No test may ask the Hugging Face Hub."""

    def refuse(*args, **kwargs):
        raise ConnectionError("no network in tests")

    monkeypatch.setattr("caploc.models.sources.HfApi.model_info", refuse)


@pytest.fixture
def in_another_thread():
    """Call a function in a thread of its own; its exception is raised here."""
    with ThreadPoolExecutor(1) as threads:
        yield lambda *call: threads.submit(*call).result()
