"""What every test may use. No test needs a network or a GPU."""

import gc
import os
import re
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import settings
from jaxtyping import _import_hook

from worlds import DEMO, TASKS

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TQDM_DISABLE"] = "1"
os.environ["CAPLOC_TASKS"] = TASKS
# Tests run beside each other, those in processes of their own too: a core each.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The machines are shared: how long an example takes says nothing about the code.
settings.register_profile("caploc", deadline=None, derandomize=True)
settings.load_profile("caploc")


class _Loader(_import_hook._JaxtypingLoader):
    """Instruments a module as jaxtyping does, and leaves alone what the module imports.

    jaxtyping's own loader renames the compiled files of all that is imported meanwhile, so that
    every process would compile torch and transformers anew.
    """

    def get_code(self, fullname):
        renamed = partial(_import_hook._optimized_cache_from_source, self._typechecker.get_hash())
        with patch("importlib._bootstrap_external.cache_from_source", renamed):
            return super().get_code(fullname)

    exec_module = SourceFileLoader.exec_module


_import_hook._JaxtypingLoader = _Loader


def pytest_ignore_collect(collection_path, config):
    """Leave out, before it is imported, a file that asks for a mark which the run leaves out."""
    given = [config.invocation_params.dir / each.partition("::")[0] for each in config.args]
    if collection_path.suffix != ".py" or collection_path in given:
        return None
    left_out = re.findall(r"(?:^| and )not (\w+)(?= and |$)", config.option.markexpr)
    marks = re.search(r"^pytestmark = \[?\s*pytest\.mark\.(\w+)", collection_path.read_text(), re.M)
    return True if marks and marks[1] in left_out else None


def pytest_collection_finish():
    """Spare the garbage collector what stays until the end: tests that call it look at millions."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Tests run beside each other; each uses one core."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)


# Whose tests may use models that `caploc models fetch` has put on this machine.
WITH_MODELS = {"real", "slow", "vllm"}


@pytest.fixture(autouse=True)
def _no_fetched_models(request, monkeypatch, tmp_path_factory):
    """Let default tests see no fetched model, here as on a machine that has none."""
    if not any(mark.name in WITH_MODELS for mark in request.node.iter_markers()):
        monkeypatch.setenv("CAPLOC_CACHE", str(tmp_path_factory.getbasetemp() / "no models"))


@pytest.fixture
def as_if_fetched(monkeypatch):
    """Let every model of the table look as if it had been fetched: as the demo model."""
    monkeypatch.setattr("caploc.models.sources.is_fetched", lambda name: True)
    monkeypatch.setattr("caploc.models.sources.model_folder", lambda name: Path(DEMO))


@pytest.fixture(scope="session")
def demo():
    """The demo model; tests must leave it as they found it."""
    from caploc.models.loading import load_model

    return load_model(DEMO, device="cpu")


@pytest.fixture(scope="session")
def neurons(demo):
    """The same, seen as its neurons."""
    from caploc.neurons.model import as_neurons

    return as_neurons(demo)
