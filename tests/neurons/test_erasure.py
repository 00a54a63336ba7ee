"""Located neurons erased: the task is lost, others are not, and random neurons cost nothing."""

import numpy as np
import pytest
from planted_models import SHARING, TWO

from caploc.measurement import Meters
from caploc.neurons.engine import Erasure, NeuronEngine
from caploc.neurons.erasure import Eraser, tabulate_arms
from caploc.neurons.options import LAYERS, LOCATED, RANDOM, Erasing
from caploc.progress import Silent
from caploc.store import Store
from worlds.planted_neurons import PlantedNeurons

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


def test_one_set_erased_takes_its_task_to_nothing_and_leaves_the_other(planted, eraser):
    model = planted(TWO)
    own = eraser().erase(model.source("warm"))
    assert own.intact.score == 1 and own.examples == LIMIT
    assert own.located.score == 0
    assert (own.located.metric.mean, own.located.metric.low) == (1, 1)
    other = eraser().erase(model.source("large"), (LOCATED, LAYERS))
    assert other.intact.score == other.located.score == 1
    assert other.located.metric.mean == 0
    assert abs(other.located.logprob.mean) < 0.01 < 4 < own.located.logprob.mean


def test_random_neurons_cost_nothing_and_are_beaten(planted, eraser):
    own = eraser(draws=6).erase(planted(TWO).source("warm"))
    assert [len(of(own, arm)) for arm in (LOCATED, RANDOM, LAYERS)] == [1, 6, 6]
    for lost in own.arms[1:]:
        assert lost.score == 1 and lost.metric.mean == 0
        assert abs(lost.logprob.mean) < 0.01
    assert own.beats_every_layer_matched_draw is own.beats_every_uniform_draw is True
    held = own.logprob_specificity
    assert own.metric_specificity.excess.mean == 1
    assert held.pooled_gain > 100 and held.p == pytest.approx(1 / 7)


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


def test_random_arms_have_the_located_set_s_numbers_and_none_of_its_neurons(planted, eraser):
    model = planted(TWO)
    found = eraser()
    located = found.found.located
    for arm, draw, chosen in found.arms():
        assert chosen.sum() == located.sum()
        if arm != LOCATED:
            assert not (chosen & located).any(), (arm, draw)
        if arm in (LOCATED, LAYERS):
            assert model.grid.counts(chosen) == model.grid.counts(located)
    drawn = {chosen.tobytes() for arm, _, chosen in found.arms() if arm in (RANDOM, LAYERS)}
    assert len(drawn) == 38
    again = [chosen for _, _, chosen in eraser().arms()]
    np.testing.assert_array_equal(again, [chosen for _, _, chosen in found.arms()])
    other = [chosen for _, _, chosen in eraser(seed=1).arms()]
    assert (again[1] != other[1]).any()


def test_what_was_not_measured_is_not_beaten(planted, eraser):
    """No draw of an arm is no evidence."""
    erased = eraser().erase(planted(TWO).source("large"), (LOCATED, LAYERS))
    assert erased.beats_every_layer_matched_draw is False
    assert erased.beats_every_uniform_draw is None


def test_rows_that_are_stored_are_not_measured_again(planted, eraser):
    model = planted(PlantedNeurons(needed=3, seed=9))
    one, source = eraser(model.plan, draws=5), model.source("warm")
    assert one.meters.cost.rows == 0
    one.erase(source)
    # by both outcomes, the intact model and 11 arms
    assert one.meters.cost.rows == LIMIT * 2 * (1 + 11)
    one.erase(source)
    assert one.meters.cost.rows == LIMIT * 2 * (1 + 11)


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
