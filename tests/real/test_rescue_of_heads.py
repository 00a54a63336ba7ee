"""A head of SmolLM2 that breaks a task alone, and does little once a certain other one is gone."""

import pytest

from caploc.interactions import contrast_rescues, describe_contrasts, search_rescuers
from caploc.measurement import search
from caploc.naming import is_fetched
from caploc.progress import Silent
from caploc.search import Problem, Settings
from caploc.search.published import Sheet
from caploc.store import Store
from caploc.tasks.catalog import TaskOptions
from caploc.validation import Check
from caploc.validation.members import judge
from caploc.workbench import ModelOptions, Workbench

pytestmark = pytest.mark.real

BREAKER, RESCUER, IDLE = 6, 0, 2  # L0H6, L0H0 and L0H2
SEARCHED, JUDGED = list(range(100, 160)), list(range(40))


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    if not is_fetched("smollm2"):
        pytest.fail("smollm2 is not here; run `caploc fetch smollm2`, or `make test-real`.")
    with Store(tmp_path_factory.mktemp("rescue") / "rows.sqlite") as store:
        yield Workbench(ModelOptions("smollm2", device="cpu").engine(), store)


@pytest.fixture(scope="module")
def meter(bench):
    options = ModelOptions("smollm2", device="cpu")
    (task,) = options.tasks(["words/upper"], TaskOptions())
    return bench.meter(task)


def test_without_l0h0_the_model_does_without_l0h6(bench, meter):
    """All 269 heads are asked; L0H0 is among the ones whose absence rescues, and named."""
    grid = bench.engine.loaded.grid
    problem = Problem(grid.size, SEARCHED, Settings())
    (found,) = search([meter], search_rescuers(problem, [BREAKER], None), Silent())
    assert found.breaker == BREAKER and RESCUER in found.rescuers and IDLE not in found.rescuers
    asking = contrast_rescues(Sheet(problem, JUDGED), [found])
    told = describe_contrasts(search([meter], asking, Silent()), grid)
    (row,) = [row for row in told if row["second"] == ["L0H0"]]
    assert row["meaning"].startswith("rescue") and row["q"] < 1e-3
    assert row["cost_alone"] > 0.7 and row["cost_together"] < 0.4


def test_a_set_in_which_one_head_rescues_another_is_not_named_whole(bench, meter):
    check = Check(meter, bench.engine.loaded.grid, JUDGED, True, 0, 0, Silent())
    found = judge(check, [RESCUER, BREAKER])
    assert found.named == [BREAKER] and found.subsets.p < 1e-3
    drops = {tuple(row.heads): row.drop for row in found.subsets.tried}
    assert drops["L0H6",] > 0.7 > 0.4 > drops["L0H0", "L0H6"]
