"""What `neurons locate` does unless told otherwise, and what it warns of."""

import numpy as np
import pytest
from planted_models import TWO

from caploc.neurons.finding import TaskNeurons
from caploc.neurons.locating import LocatedNeurons, describe_task, locate
from caploc.neurons.model import NeuronGrid
from caploc.neurons.options import DRAWS, Attribution, NeuronStudy, Rule
from caploc.neurons.threshold import Moments

EVEN, FEW = np.ones(20), np.array([100.0, 90.0, *[0.1] * 18])


def scored(sizes, **settings):
    """Figures of examples with one pattern of scores in many sizes, of which some neurons."""
    rows = np.outer(sizes, np.linspace(-1, 1, 30))
    moments = Moments.empty(30, **settings).added(rows[:7]).merged(
        Moments.empty(30, **settings).added(rows[7:])
    )  # fmt: skip
    chosen = np.arange(30) > 27
    return TaskNeurons("one", len(sizes), chosen, np.stack([chosen] * 5), moments)


@pytest.mark.parametrize(
    ("sizes", "settings", "effective"),
    [
        (EVEN, {}, 20),
        (FEW, {}, FEW.sum() ** 2 / (FEW**2).sum()),
        (FEW, {"normalised": True}, 20),
        (np.zeros(20), {}, np.nan),
    ],
)
def test_a_score_that_few_examples_carry_is_warned_of(sizes, settings, effective):
    found = scored(sizes, **settings)
    located = LocatedNeurons(NeuronGrid((15, 15)), Rule(), {"one": found}, {})
    told = located.task("one")
    assert told.effective_examples == pytest.approx(effective, nan_ok=True)
    warned = effective < 4
    assert describe_task(told)["examples"] == ("20, weighing as 2" if warned else "20")


@pytest.mark.slow
def test_locating_tells_what_erasing_costs(planted, tmp_path):
    model = planted(TWO)
    study = NeuronStudy(model.options, model.tasks, Attribution("gradient"), examples=40, judged=20)
    result, exhibits = locate(study, tmp_path)
    for task in result.tasks:
        arms = [lost.arm for lost in task.erased.arms]
        assert arms == ["located", *["random in layers"] * DRAWS]
        assert task.erased.beats_every_layer_matched_draw is True
        assert task.within.rates["largest"].low == 1
    erasure = exhibits[1]
    assert len(erasure.rows) == 2 and erasure.chart.to_dict()["layer"]
    assert erasure.title in (tmp_path / "report.html").read_text()
