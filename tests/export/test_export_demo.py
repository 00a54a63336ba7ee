"""The demo model exported, scored on all of the demo's tasks, beside the runtime knockout."""

import pytest

from caploc.components import parse_components
from caploc.declaration import ModelOptions
from caploc.evaluation import Evaluation, evaluate
from caploc.export import Export
from caploc.tasks.catalog import own_names
from worlds import DEMO

pytestmark = pytest.mark.slow
HEADS = tuple(parse_components("L0H10,L0H15,L0H13,L1H0,L2H3,L5H1"))
TASKS = tuple(name for name in own_names() if name.startswith("demo/"))


def scores(model, heads, folder, limit=None):
    asked = Evaluation(ModelOptions(str(model)), heads, TASKS, limit=limit)
    told = evaluate(asked, folder).as_dict()["tasks"]
    way = "knocked_out" if heads else "intact"
    return {row["name"]: row[way] | {"metric": row["metric"]} for row in told}


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    return scores(DEMO, HEADS, tmp_path_factory.mktemp("demo"))


def test_the_checkpoint_scores_as_the_knocked_out_model_on_every_task(wanted, tmp_path):
    Export(ModelOptions(DEMO), HEADS, "checkpoint", tmp_path / "cut").write()
    got = scores(tmp_path / "cut", (), tmp_path / "exported")
    assert len(TASKS) >= 12 and got == wanted
