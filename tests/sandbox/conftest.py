"""Sandboxes that tests share: starting one takes a while."""

import pytest
from profiles import TIGHT, Opened, forced, readable_python

from caploc.sandbox import pool
from caploc.sandbox.pool import Worker, WorkerFailed
from caploc.sandbox.protocol import PROFILES


@pytest.fixture(scope="session", autouse=True)
def everyones_python():
    """Workers run a Python that others than root may read, where there is one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "EXECUTABLE", readable_python())
        yield


@pytest.fixture(scope="session")
def opened(everyones_python):
    """Opens one sandbox a profile, and keeps it for the session."""
    known = {}
    facts = {}

    def open_behind(name):
        if name not in facts:
            try:
                started = Worker(TIGHT, name)
            except WorkerFailed as error:
                facts[name] = error
            else:
                started.stop()
                facts[name] = started
        if isinstance(facts[name], WorkerFailed):
            pytest.skip(f"this machine gives no profile {name}: {facts[name]}")
        if name not in known:
            known[name] = Opened(name)
            with forced(name):  # its one worker starts now, and stays
                assert known[name].verdict("ready = 1", "assert ready == 1").passed
        known[name].open_ways = facts[name].open_ways
        return known[name]

    yield open_behind
    for each in known.values():
        each.sandbox.close()


@pytest.fixture
def behind(opened, request):
    """The sandbox of the profile that the test's parameter names."""
    return opened(request.param)


@pytest.fixture(scope="session")
def default(opened):
    """A sandbox for tests of what holds in any profile: the strongest there are."""
    for name in PROFILES:
        try:
            return opened(name)
        except pytest.skip.Exception:
            continue
    raise AssertionError("no program can be run here")
