"""The neurons that were damaged are found to be worth tuning, others are not; figures add up."""

import json
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from damage import degraded

from caploc.errors import BadData, BadOption, ModelRefused
from caploc.neurons.engine import gold_means
from caploc.neurons.enhancing import (
    ARMS,
    GOLD,
    METRIC,
    enhance,
    make_arms,
)
from caploc.neurons.training import TuningRecipe
from caploc.neurons.weights import shares_by_projection
from caploc.stats import paired_interval
from worlds.tasks import data

pytestmark = pytest.mark.slow  # whole studies

QUICK = TuningRecipe(steps=8, batch_size=8, warmup=2, rates=(3e-3,))


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
def damaged(model, chosen):
    """These neurons write the opposite of what they wrote."""
    held = shares_by_projection(model, chosen, "output")
    before = [share.read() for share in held]
    for share, values in zip(held, before, strict=True):
        share.write({key: -value for key, value in values.items()})
    try:
        yield
    finally:
        for share, values in zip(held, before, strict=True):
            share.write(values)


@pytest.mark.parametrize(("layer", "count"), [(5, 150), (5, 190)])
def test_damaged_neurons_are_worth_tuning_more_than_others(demo, spans_of, unchanged, layer, count):
    unchanged(demo.model)
    hurt = np.zeros(demo.grid.size, dtype=bool)
    hurt[demo.grid.layer_slices[layer]] = np.arange(384) < count
    with damaged(demo.model, hurt):
        found = enhance(
            demo,
            spans_of(data.addition, "train", 60),
            measuring(gold={"addition": spans_of(data.addition, "test", 30)}),
            make_arms(hurt, demo.grid, names=["located", "random"]),
            TuningRecipe(steps=12, batch_size=8, warmup=2, rates=(1e-2,), trains="output"),
        )
    (control,) = found.controls
    assert control.located > max(control.changes) > 0.5
    assert control.p == pytest.approx(1 / 6)
    assert control.excess.low > 0.05 and control.gain > 2


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
        assert not any(each._forward_hooks for each in loaded.model.modules())
        assert not any(each.requires_grad for each in loaded.model.parameters())
        return found


@pytest.fixture(scope="module")
def figures(demo, spans_of):
    """An enhancement, and the outcomes it was given: before, then arm by arm but for "none"."""
    draws = {"addition": data.addition, "recall": data.recall}
    watched = Watched({name: spans_of(draw, "test", 20) for name, draw in draws.items()})
    names = ["none", "located", "random", "lora", "full"]
    with degraded(demo.model, 1.0, 0):
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
        mean, sd = np.mean(control.changes), np.std(control.changes, ddof=1)
        assert control.gain == pytest.approx((control.located - mean) / sd)
        reached = sum(each >= control.located for each in control.changes)
        assert control.p == pytest.approx((1 + reached) / 6)


def test_an_enhancement_is_plain_json(figures):
    text = json.dumps(figures[0].as_dict(), allow_nan=False)
    assert json.loads(text)["recipe"]["steps"] == 8
    assert json.loads(text)["arms"][1]["fit"]["best"]["rate"] == 3e-3


def test_every_arm_runs_and_leaves_the_demo_as_it_was(demo, spans_of, unchanged):
    unchanged(demo.model)
    planned = make_arms(neurons(demo.grid, 5), demo.grid)
    found = enhance(
        demo,
        spans_of(data.sorting, "train", 20),
        measuring(gold={"sorting": spans_of(data.sorting, "test", 5)}),
        planned,
        replace(QUICK, steps=1),
    )
    assert list(dict.fromkeys(tuned.arm for tuned in found.arms)) == list(ARMS)
    assert {control.arm for control in found.controls} == {"random"}


def test_mistakes_are_refused_before_anything_is_tuned(demo, spans_of):
    spans = spans_of(data.addition, "train", 10)
    evaluation = measuring(gold={"addition": spans})
    own = make_arms(neurons(demo.grid, 3), demo.grid, names=["located"])
    with pytest.raises(BadOption, match="no arm to tune"):
        enhance(demo, spans, evaluation, [], QUICK)
    with pytest.raises(BadData, match="give at least 2"):
        enhance(demo, spans[:1], evaluation, own, QUICK)
    with pytest.raises(BadOption, match="steps must be 1"):
        enhance(demo, spans, evaluation, own, replace(QUICK, steps=0))
    other = [replace(own[0], chosen=np.ones(7, dtype=bool))]
    with pytest.raises((BadOption, ModelRefused), match="7 neurons, and this one has 2,304"):
        enhance(demo, spans, evaluation, other, QUICK)


def test_the_gold_log_probability_moves_where_the_metric_cannot(demo, spans_of, unchanged):
    unchanged(demo.model)
    tests = spans_of(data.addition, "test", 20)

    def right(loaded):
        likely = gold_means(loaded.model, tests) > np.log(0.5)
        return {"addition": likely.astype(np.float64)}

    (tuned,) = enhance(
        demo,
        spans_of(data.addition, "train", 30),
        measuring(right, {"addition": tests}),
        make_arms(neurons(demo.grid, 30), demo.grid, names=["located"]),
        QUICK,
    ).arms
    by_measure = {change.measure: change for change in tuned.changes}
    assert by_measure[METRIC].before == 1.0
    assert by_measure[GOLD].before < 0 and by_measure[GOLD].change.mean != 0
    assert torch.is_grad_enabled()
