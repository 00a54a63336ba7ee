"""The demo model exported, scored on all of the demo's tasks, beside the runtime knockout."""

import pytest
import torch
from lm_eval import simple_evaluate
from lm_eval.models.huggingface import HFLM
from transformers import AutoModelForCausalLM, AutoTokenizer

from caploc.evaluation import Evaluation, evaluate
from caploc.export import Export
from caploc.heads import Head
from caploc.models.sources import DEMO_FOLDER
from caploc.tasks.catalog import own_manager, own_names
from caploc.workbench import ModelOptions

PeftModel = pytest.importorskip("peft").PeftModel

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
]
HEADS = tuple(Head.parse_all("L0H10,L0H15,L0H13,L1H0,L2H3,L5H1"))
TASKS = tuple(name for name in own_names() if name.startswith("demo/"))


def scores(model, heads, folder, limit=None):
    asked = Evaluation(ModelOptions(str(model)), heads, TASKS, limit=limit)
    told = evaluate(asked, folder).as_dict()["tasks"]
    way = "knocked_out" if heads else "intact"
    return {row["name"]: row[way] | {"metric": row["metric"]} for row in told}


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    return scores("demo", HEADS, tmp_path_factory.mktemp("demo"))


def test_the_checkpoint_scores_as_the_knocked_out_model_on_every_task(wanted, tmp_path):
    Export(ModelOptions("demo"), HEADS, "checkpoint", tmp_path / "cut").write()
    got = scores(tmp_path / "cut", (), tmp_path / "exported")
    assert len(TASKS) >= 12 and got == wanted


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    place = tmp_path_factory.mktemp("lora") / "lora"
    done = Export(ModelOptions("demo"), HEADS, "lora", place).write()
    return place, {(each.way, each.dtype): each for each in done.agreements}


def adapted(place):
    base = AutoModelForCausalLM.from_pretrained(DEMO_FOLDER, dtype=torch.float32)
    return PeftModel.from_pretrained(base, place)


def test_the_merged_adapter_scores_as_the_knocked_out_model(adapter, wanted, tmp_path):
    place, stated = adapter
    assert stated["adapter merged", "float32"].exact
    adapted(place).merge_and_unload().save_pretrained(tmp_path / "merged")
    AutoTokenizer.from_pretrained(DEMO_FOLDER).save_pretrained(tmp_path / "merged")
    assert scores(tmp_path / "merged", (), tmp_path / "exported") == wanted


@pytest.mark.filterwarnings("ignore")  # lm-eval's own evaluator warns of its own
def test_the_adapter_at_work_scores_within_its_stated_error(adapter, tmp_path, limit=60):
    place, stated = adapter
    assert 0 < stated["adapter on the base model", "float32"].error < 1e-4
    tokenizer = AutoTokenizer.from_pretrained(DEMO_FOLDER)
    model = HFLM(adapted(place).get_base_model(), tokenizer=tokenizer, batch_size=16)
    # the group brings its own tasks, which lm-eval refuses to be given twice
    names = [name for name in TASKS if name not in ("demo/capitals", "demo/elements")]
    manager = own_manager("demo")
    told = simple_evaluate(
        model, tasks=names, limit=limit, task_manager=manager, bootstrap_iters=0
    )["results"]
    expected = scores("demo", HEADS, tmp_path / "run", limit)
    for name in TASKS:
        metric = f"{expected[name]['metric']},none"
        got = told[name][metric]
        # a text's log-probability may differ in the error stated, answers may not
        near = pytest.approx(expected[name]["score"], rel=1e-4)
        assert got == (near if "perplexity" in metric else expected[name]["score"]), name
