"""What every test may use. No test needs a network or a GPU."""

import os

import pytest
from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TQDM_DISABLE"] = "1"
# Tests run beside each other, those in processes of their own too: a core each.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The machines are shared: how long an example takes says nothing about the code.
settings.register_profile("caploc", deadline=None, derandomize=True)
settings.load_profile("caploc")


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Tests run beside each other; each uses one core."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
