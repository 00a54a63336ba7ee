"""Located neurons erased: the task is lost, others are not, and random neurons cost nothing."""

import pytest
from planted_models import SHARING, TWO

from caploc.measurement import Meters
from caploc.neurons.engine import Erasure, NeuronEngine
from caploc.neurons.erasure import Eraser, tabulate_arms
from caploc.neurons.options import ARMS, LAYERS, LOCATED, RANDOM, Erasing
from caploc.progress import Silent
from caploc.store import Store

pytestmark = pytest.mark.slow  # whole studies

LIMIT = 60


@pytest.fixture(scope="module")
def eraser(planted, tmp_path_factory):
    """What erases the neurons found in a planted model; rows are measured once for all tests."""
    folder, opened = tmp_path_factory.mktemp("erased"), {}

    def make(plan=TWO, task="warm", **asked):
        model = planted(plan)
        if plan not in opened:
            store = Store(folder / str(len(opened)) / "rows.sqlite")
            engine = NeuronEngine(model.engine, model.neurons)
            opened[plan] = Meters(engine, store, intervention=Erasure())
        found = model.find(folder, task=task)
        return Eraser(opened[plan], Erasing(limit=LIMIT, **asked), found, Silent())

    yield make
    for meters in opened.values():
        meters.store.close()


def of(erased, arm):
    return [lost for lost in erased.arms if lost.arm == arm]


def test_the_loss_is_what_the_truth_and_a_plain_forward_pass_say(planted, eraser):
    model = planted(SHARING)
    source = model.source("large")
    for erased_task in ("warm", "large"):
        erased = eraser(SHARING, erased_task).erase(source, (LOCATED, LAYERS))
        cut = model.truth.needed[erased_task]
        expected = model.truth.right("large", cut)[:LIMIT].mean()
        assert erased.located.score == expected
        assert erased.located.metric.mean == pytest.approx(1 - expected)
        spans = source.judged_spans(model.engine.encoder, LIMIT)
        lost = model.logprobs(spans) - model.logprobs(spans, cut)
        assert erased.located.logprob.mean == pytest.approx(lost.mean(), abs=1e-4)
    shared = model.truth.right("large", model.truth.shared).mean()
    assert 0 < shared < 1  # what was compared is neither all nor nothing


def test_draws_are_of_the_whole_model_or_of_the_same_layers(planted, eraser):
    grid, arms = planted(TWO).grid, eraser(draws=5).arms()
    assert all(chosen.sum() == arms[0][2].sum() for _, _, chosen in arms)
    counts = {name: {tuple(grid.counts(c)) for arm, _, c in arms if arm == name} for name in ARMS}
    assert counts[LAYERS] == counts[LOCATED] != counts[RANDOM]


def test_what_was_not_measured_is_not_beaten(planted, eraser):
    """No draw of an arm is no evidence."""
    erased = eraser().erase(planted(TWO).source("large"), (LOCATED, LAYERS))
    assert erased.beats_every_layer_matched_draw is False
    assert erased.beats_every_uniform_draw is None


def test_the_table_of_arms_says_what_was_lost(planted, eraser):
    own = eraser().erase(planted(TWO).source("warm"))
    table = tabulate_arms({"warm": own})
    (row,) = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    assert row["intact"].startswith("1.000 ± ") and row["erased"] == "0.000"
    assert row["random"] == row["random in layers"] == "1.000 (1.000 to 1.000)"
    assert row["beats every draw"] == "yes"
    assert row["log-probability lost"].startswith(f"{own.located.logprob.mean:.3f} (")
    # in nats: draws that cost next to nothing have next to no standard deviation to count in
    excess = own.logprob_specificity.excess
    told = f"{excess.mean:.3f} ({excess.low:.3f} to {excess.high:.3f})"
    assert own.logprob_specificity.pooled_gain > 100 and row["more than in the same layers"] == told
