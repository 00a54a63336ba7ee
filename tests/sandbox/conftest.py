"""Sandboxes that tests share: starting one takes a while."""

import pytest
from walled import TIGHT, WALLS, Behind, forced

from caploc.sandbox.worker import Worker, WorkerFailed


@pytest.fixture(scope="session")
def opened():
    """Opens one sandbox a kind of wall, and keeps it for the session."""
    known = {}
    facts = {}

    def open_behind(name):
        if name not in facts:
            try:
                worker = Worker(TIGHT, WALLS[name])
            except WorkerFailed as error:
                facts[name] = error
            else:
                worker.stop()
                facts[name] = worker.facts
        if isinstance(facts[name], WorkerFailed):
            pytest.skip(f"this machine gives no {name} walls: {facts[name]}")
        if name not in known:
            known[name] = Behind(name)
            with forced(name):  # its one worker starts now, and stays
                assert known[name].verdict("ready = 1", "assert ready == 1").passed
        known[name].facts = facts[name]
        return known[name]

    yield open_behind
    for each in known.values():
        each.sandbox.close()


@pytest.fixture
def behind(opened, request):
    """The sandbox behind the walls that the test's parameter names."""
    return opened(request.param)


@pytest.fixture(scope="session")
def default(opened):
    """A sandbox for tests of what holds behind any walls: the strongest there are."""
    for name in WALLS:
        try:
            return opened(name)
        except pytest.skip.Exception:
            continue
    raise AssertionError("no program can be run here")
