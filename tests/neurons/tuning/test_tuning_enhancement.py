"""The neurons that were damaged are found to be worth tuning, others are not; figures add up."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch

from caploc.neurons.engine import gold_means
from caploc.neurons.enhancing import GOLD, METRIC, enhance
from caploc.neurons.model import list_projections
from caploc.neurons.options import TuningRecipe
from caploc.neurons.stats import paired_interval
from caploc.neurons.training import make_arms
from worlds.tasks import data

pytestmark = pytest.mark.slow  # whole studies

QUICK = TuningRecipe(steps=8, batch_size=8, rates=(3e-3,))


def measuring(outcomes=None, gold=()):
    """Tasks' own outcomes, and the probability of gold answers."""

    def measure(loaded):
        own = outcomes(loaded) if outcomes else {}
        found = {(task, METRIC): each for task, each in own.items()}
        for task, spans in dict(gold).items():
            found[task, GOLD] = gold_means(loaded.model, spans)
        return found

    return measure


def neurons(grid, count, seed=0):
    chosen = np.zeros(grid.size, dtype=bool)
    chosen[np.random.default_rng(seed).choice(grid.size, count, replace=False)] = True
    return chosen


@contextmanager
def damaged(demo, chosen):
    """These neurons write the opposite of what they wrote."""

    def turn():
        for _, columns, module in list_projections(demo.projections):
            module.weight.detach()[:, torch.from_numpy(chosen[columns])] *= -1

    turn()
    try:
        yield
    finally:
        turn()


def test_damaged_neurons_are_worth_tuning_more_than_others(demo, spans_of, unchanged):
    unchanged(demo.model)
    hurt = np.zeros(demo.grid.size, dtype=bool)
    hurt[demo.grid.layer_slices[5]] = np.arange(384) < 150
    with damaged(demo, hurt):
        found = enhance(
            demo,
            spans_of(data.addition, "train", 60),
            measuring(gold={"addition": spans_of(data.addition, "test", 30)}),
            make_arms(hurt, demo.grid, names=["located", "random"]),
            TuningRecipe(steps=12, batch_size=8, rates=(1e-2,)),
        )
    (control,) = found.controls
    assert control.located > max(control.changes) > 0.5
    assert control.p == pytest.approx(1 / 6)
    assert control.excess.low > 0


class Watched:
    """Outcomes as they came, one example's missing at first and another's in all later calls."""

    def __init__(self, tests):
        self.tests, self.seen = tests, []

    def __call__(self, loaded):
        found = {}
        for task, spans in self.tests.items():
            found[task] = gold_means(loaded.model, spans)
            found[task][0 if not self.seen else 1] = np.nan
        self.seen.append({task: each.copy() for task, each in found.items()})
        return found


@pytest.fixture(scope="module")
def figures(demo, spans_of):
    """An enhancement, and the outcomes it was given: before, then arm by arm but for "none"."""
    draws = {"addition": data.addition, "recall": data.recall}
    watched = Watched({name: spans_of(draw, "test", 20) for name, draw in draws.items()})
    names = ["none", "located", "random", "lora", "full"]
    with damaged(demo, neurons(demo.grid, 100, seed=1)):
        found = enhance(
            demo,
            spans_of(data.addition, "train", 40),
            measuring(watched, watched.tests),
            make_arms(neurons(demo.grid, 14), demo.grid, names=names),
            QUICK,
        )
    return found, watched.seen


def test_arms_tell_what_they_tuned(demo, figures):
    found, _ = figures
    none, own, *random, adapters, full = found.arms
    assert [tuned.arm for tuned in random] == ["random"] * 5
    assert [tuned.draw for tuned in random] == [0, 1, 2, 3, 4]
    assert none.fit is None and none.neurons is None
    assert own.fit.parameters == 14 * 3 * 128 and own.neurons == 14
    assert abs(adapters.fit.parameters - own.fit.parameters) <= 256 and adapters.neurons is None
    assert full.fit.parameters == sum(each.numel() for each in demo.model.parameters())
    assert found.trained_on == 32 and found.held_out == 8


def test_changes_are_those_of_the_outcomes(figures):
    found, (before, after, *_) = figures
    none, own = found.arms[:2]
    assert all(change.change.mean == 0 for change in none.changes)
    assert {(change.task, change.measure) for change in own.changes} == {
        (task, measure) for task in ("addition", "recall") for measure in (METRIC, GOLD)
    }
    for change in own.changes:
        if change.measure == METRIC:
            expected = paired_interval(after[change.task], before[change.task])
            assert change.change == expected and change.change.items == 18
            assert change.after - change.before == pytest.approx(expected.mean)
        else:
            assert change.change.items == 20


def test_controls_are_those_of_the_draws(figures):
    found, (before, own, *others) = figures
    assert len(found.controls) == 4
    for control in found.controls:
        if control.measure == METRIC:
            drawn = [np.nanmean(each[control.task] - before[control.task]) for each in others[:5]]
            assert control.changes == pytest.approx(drawn)
            located = np.nanmean(own[control.task] - before[control.task])
            assert control.located == pytest.approx(located)
        reached = sum(each >= control.located for each in control.changes)
        assert control.p == pytest.approx((1 + reached) / 6)
