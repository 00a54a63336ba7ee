"""Losses of heads, neurons and both: identities, and planted outcomes."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from caploc.neurons.interaction import interactions, joint, judge, ratio

FINITE = st.floats(-50, 50, width=32)


def outcomes(extra, items=150, heads=2.0, neurons=1.0, seed=0):
    """Log-probabilities whose losses add up but for `extra`."""
    random = np.random.default_rng(seed)
    intact = -random.gamma(1, 0.1, items)
    lost = {
        "heads": random.gamma(2, heads / 2, items),
        "neurons": random.gamma(2, neurons / 2, items),
    }
    lost["both"] = lost["heads"] + lost["neurons"] + random.normal(extra, 0.5, items)
    return intact, {name: intact - each for name, each in lost.items()}


@settings(max_examples=30)
@given(arrays(np.float64, (4, 5), elements=FINITE))
def test_means_are_of_the_losses_and_add_up(table):
    intact, heads, neurons, both = table
    cut = {"heads": heads, "neurons": neurons, "both": both}
    found = joint(intact, cut)
    assert found.heads.mean == pytest.approx((intact - heads).mean())
    assert found.summed.mean == pytest.approx(found.heads.mean + found.neurons.mean, abs=1e-9)
    assert found.interaction.mean == pytest.approx(found.both.mean - found.summed.mean, abs=1e-9)
    np.testing.assert_allclose(
        interactions(intact, cut),
        (intact - both) - (intact - heads) - (intact - neurons),
        atol=1e-9,
    )


def test_examples_that_lack_an_outcome_count_in_no_condition():
    intact, cut = outcomes(0.0, items=6)
    cut["both"][2] = np.nan
    intact[4] = np.nan
    known = [0, 1, 3, 5]
    fewer = joint(intact[known], {name: each[known] for name, each in cut.items()})
    found = joint(intact, cut)
    assert found.undefined == 2
    assert found.interaction.mean == pytest.approx(fewer.interaction.mean)
    assert found.heads.items == 4
    assert json.loads(json.dumps(found.as_dict(), allow_nan=False))["undefined"] == 2


@pytest.mark.parametrize("extra", [-0.6, 0.0, 0.6])
def test_the_interval_holds_the_planted_interaction(extra):
    held = 0
    for seed in range(12):
        found = joint(*outcomes(extra, items=100, seed=seed)).interaction
        held += found.low <= extra <= found.high
    assert held >= 9


def test_the_ratio_s_interval_is_that_of_the_delta_method():
    random = np.random.default_rng(1)
    below = random.gamma(9, 0.3, 500)
    above = 1.3 * below + random.normal(0, 0.5, 500)
    found = ratio(above, below)
    assert found.value == pytest.approx(above.mean() / below.mean())
    error = np.std(above - found.value * below, ddof=1) / np.sqrt(500) / below.mean()
    assert found.low == pytest.approx(found.value - 1.96 * error, abs=0.15 * error)
    assert found.high == pytest.approx(found.value + 1.96 * error, abs=0.15 * error)


def test_a_ratio_to_nothing_is_not_known():
    assert ratio(np.ones(4), np.zeros(4)).value is None
    assert ratio(np.ones(4), -np.ones(4)).value is None
    assert ratio(np.ones(0), np.ones(0)).value is None
    barely = ratio(np.ones(4), np.array([1.0, -0.5, -0.2, 0.1]))
    assert barely.value == pytest.approx(10)
    assert (barely.low, barely.high) == (None, None)
    assert ratio(np.ones(1), np.ones(1)).as_dict() == {"value": 1.0, "low": None, "high": None}


def accuracy(intact=1.0, heads=0.3, neurons=0.2, both=0.5, items=400):
    """Right and wrong answers in these shares."""

    def right(lost):
        return np.where(np.arange(items) < round((intact - lost) * items), 1.0, 0.0)

    cut = {"heads": right(heads), "neurons": right(neurons), "both": right(both)}
    return joint(right(0), cut)


@pytest.mark.parametrize(
    ("extra", "kind", "words"),
    [
        (0.6, "more", "more than the sum of both losses, as if each"),
        (0.0, "sum", "which 150 examples cannot tell from the sum"),
        (-0.6, "less", "less than the sum of both losses: they do the same work"),
        (-2.5, "less", "once the heads are gone, the neurons do harm"),
    ],
)
def test_the_verdict_says_how_losses_add_up(extra, kind, words):
    found = joint(*outcomes(extra))
    drawn = {"random neurons": [joint(*outcomes(0.0, seed=seed)) for seed in range(1, 6)]}
    verdict = judge(accuracy(), found, drawn, 0.0)
    assert verdict.kind == kind
    assert words in verdict.sentence
    assert f"loses {found.both.mean:.2f} nats" in verdict.sentence
    if kind != "sum":
        assert verdict.reached == {"random neurons": 0}
        assert "None of 5 draws of random neurons do as much." in verdict.sentence


def test_draws_that_do_as_much_are_counted_on_the_located_side():
    found = joint(*outcomes(-0.6))
    drawn = {"random heads": [joint(*outcomes(extra, seed=9)) for extra in (-2, -0.3, 0.6, 2, 3)]}
    verdict = judge(accuracy(), found, drawn, 0.0)
    assert verdict.reached == {"random heads": 1}
    assert "1 of 5 draws of random heads does as much." in verdict.sentence


def test_a_metric_whose_losses_exceed_what_there_is_to_lose_is_left_out():
    logprob = joint(*outcomes(0.0))
    assert not judge(accuracy(), logprob, {}, 0.0).saturated
    assert judge(accuracy(), logprob, {}, 0.6).saturated  # four in ten above guessing
    told = judge(accuracy(heads=0.8, neurons=0.5, both=1.0), logprob, {}, 0.0)
    assert told.saturated
    assert "The metric is left out" in told.sentence
