"""The same scores as lm-eval's own evaluator on the same weights, for every kind of task."""

import logging

import numpy as np
import pytest
from lm_eval import simple_evaluate
from lm_eval.models.huggingface import HFLM

import caploc
from caploc.engine.batch import BatchEngine
from caploc.measurement import Cost, Meter
from caploc.models.loading import load_model
from caploc.options import TaskOptions
from caploc.progress import Silent
from caploc.store import Question, Store
from caploc.tasks.catalog import load_task, own_manager
from worlds import DEMO, TASKS

LIMIT = 40
KINDS = {
    "demo/addition": ["exact_match,none"],  # generate_until
    "demo/code": ["acc,none"],  # generate_until, scored by running
    "demo/capitals": ["acc,none"],  # multiple_choice, one token
    "demo/sentences": ["acc,none"],  # multiple_choice, several tokens
    "demo/recall": ["acc,none", "perplexity,none"],  # loglikelihood
    "demo/prose": ["word_perplexity,none", "bits_per_byte,none"],  # rolling
    "demo/facts": ["acc,none"],  # a group
}
HEADS = ["L0H10", "L0H15", "L0H13", "L1H0", "L5H1", "L5H15"]

pytestmark = pytest.mark.filterwarnings("ignore")  # lm-eval's own evaluator warns of its own


@pytest.fixture(scope="module")
def loaded():
    return load_model(DEMO)


@pytest.fixture(scope="module", params=[[], HEADS], ids=["intact", "knocked out"])
def heads(request):
    return request.param


@pytest.fixture(scope="module")
def reference(loaded, heads):
    """lm-eval's scores, with the heads gone by the public knockout."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    harness = HFLM(pretrained=loaded.model, tokenizer=loaded.tokenizer, batch_size=16)
    with caploc.knockout(loaded, heads):
        results = simple_evaluate(
            harness,
            # The group brings its own tasks; lm-eval refuses to be given one twice.
            tasks=[name for name in KINDS if name != "demo/capitals"],
            limit=LIMIT,
            task_manager=own_manager(TASKS),
            bootstrap_iters=0,
        )
    return results["results"]


@pytest.fixture
def meter_of(loaded, tmp_path):
    engine = BatchEngine(loaded)
    with Store(tmp_path / "rows.sqlite") as store:
        yield lambda task: Meter(
            engine, store, task, Question("m", "d", task.name, task.metric.name, "metric"), Cost()
        )


@pytest.mark.parametrize(("name", "metric"), [(n, m) for n, ms in KINDS.items() for m in ms])
def test_scores_equal_lm_evals(loaded, heads, reference, meter_of, name, metric):
    task = load_task(name, TaskOptions(metric=metric))
    meter = meter_of(task)
    examples = list(range(LIMIT))
    if name == "demo/facts":
        examples += range(512, 512 + LIMIT)
    rows = meter.under(loaded.grid.mask(heads), examples, Silent(), name)
    ours, theirs = meter.score(rows).score, reference[name][metric]
    if metric.startswith(("acc", "exact")):
        assert ours == theirs
    else:
        assert ours == pytest.approx(theirs, rel=1e-6)


def test_the_knockout_of_the_test_shows(loaded, meter_of):
    task = load_task("demo/addition")
    meter = meter_of(task)
    empty = np.zeros(loaded.grid.size, dtype=bool)
    scores = [
        meter.score(meter.under(mask, range(LIMIT), Silent(), "")).score
        for mask in (empty, loaded.grid.mask(HEADS))
    ]
    assert scores[0] > scores[1] + 0.2
