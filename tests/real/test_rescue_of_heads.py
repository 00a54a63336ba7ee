"""A head of SmolLM2 that breaks a task alone, and does little once a certain other one is gone."""

import pytest

from caploc.declaration import ModelOptions
from caploc.measurement import Meters
from caploc.naming import is_fetched
from caploc.options import TaskOptions
from caploc.progress import Silent
from caploc.store import Store
from caploc.validation import Check
from caploc.validation.members import confirm_members

pytestmark = pytest.mark.real

BREAKER, RESCUER = 6, 0  # L0H6 and L0H0
JUDGED = list(range(40))


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    if not is_fetched("smollm2"):
        pytest.fail("smollm2 is not here; run `caploc models fetch smollm2`, or `make test-real`.")
    with Store(tmp_path_factory.mktemp("rescue") / "rows.sqlite") as store:
        yield Meters(ModelOptions("smollm2", device="cpu").engine(), store)


@pytest.fixture(scope="module")
def meter(bench):
    options = ModelOptions("smollm2", device="cpu")
    (task,) = options.tasks(["words/upper"], TaskOptions())
    return bench.meter(task)


def test_a_head_that_only_rescues_what_another_breaks_is_not_confirmed(bench, meter):
    check = Check(meter, bench.engine.loaded.grid, JUDGED, True, 0, 0, Silent())
    assert confirm_members(check, [RESCUER, BREAKER]) == [BREAKER]
