"""A small study that nothing disturbed, and how many faults there are."""

import os
import signal

# Ray reads it when it is imported: every node of a test is bound to 127.0.0.1.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import pytest
from disturbance import Job, Outcome

from worlds.planted import Planted, write_planted


@pytest.fixture(scope="session")
def times():
    """How many faults to inject where there may be many; FAULTS says so."""
    return int(os.environ.get("FAULTS", "10"))


@pytest.fixture(scope="session", autouse=True)
def heard():
    """SIGHUP reaches the runs, even if `nohup` started the tests: a run leaves ignored what was."""
    before = signal.signal(signal.SIGHUP, lambda *_: None)  # programs start with the default
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="session")
def planted(tmp_path_factory):
    """A model whose answers are known, with its task."""
    folder = tmp_path_factory.mktemp("planted")
    write_planted(folder, Planted(layers=3, heads=6, needed=4, examples=600, seed=1))
    return folder


@pytest.fixture(scope="session")
def job(planted, tmp_path_factory):
    """A study of 2,300 rows in batches of 16: 150 times that rows are stored."""
    return Job(
        (
            "locate", str(planted), "--task", str(planted / "planted.yaml"), "--method", "css",
            "--masks", "30", "--rate", "0.1", "--examples", "60", "--controls", "2", "--limit",
            "100", "--device", "cpu", "--batch-size", "16",
        ),
        tmp_path_factory.mktemp("said"),
    )  # fmt: skip


@pytest.fixture(scope="session")
def truth(job, tmp_path_factory):
    """What the study comes to when nothing disturbs it."""
    folder = tmp_path_factory.mktemp("truth") / "run"
    job.finish(folder)
    return Outcome.of(folder)
