"""Universal heads on planted effects, and errors where no head is universal."""

import json

import numpy as np
import pytest
from scipy import stats

from caploc.components import Head
from caploc.universal import HeadCost, Intact, judge_universality

TASKS = ("gsm8k", "arithmetic", "mbpp", "rhyming", "mmlu")
TWINS = {"gsm8k": "math", "arithmetic": "math"}
WHOLE = {task: Intact(0.8, 0.01) for task in TASKS} | {"mmlu": Intact(0.7, 0.01, chance=0.25)}
HEADS = [Head(0, 3), Head(5, 1), Head(9, 7)]


def effects(drops, stderr=0.01, tasks=TASKS):
    """The same error everywhere; drops by head and task, 0 where none is named."""
    return {
        task: {head: HeadCost(-drops.get((head, task), 0.0), stderr) for head in HEADS}
        for task in tasks
    }


def test_heads_that_most_families_need_are_universal_and_others_not():
    everywhere, own, twins = HEADS
    drops = {(everywhere, task): 0.4 for task in TASKS}
    drops |= {(own, "mbpp"): 0.5, (twins, "gsm8k"): 0.5, (twins, "arithmetic"): 0.6}
    told = judge_universality(effects(drops), WHOLE, TWINS)
    assert told.universal == ["L0H3"]
    first = told.candidates[0]
    assert (first.families, first.wanted) == (4, 2)
    assert first.needed_by == ["math", "mbpp", "rhyming", "mmlu"]
    assert all(trial.needed for trial in first.trials)
    assert told.candidates[2].needed_by == ["math"]


def test_twins_that_are_two_families_would_make_their_head_universal():
    twins = HEADS[2]
    drops = {(twins, "gsm8k"): 0.5, (twins, "arithmetic"): 0.6}
    four = ("gsm8k", "arithmetic", "mbpp", "rhyming")
    assert judge_universality(effects(drops, tasks=four), WHOLE).universal == ["L9H7"]
    assert judge_universality(effects(drops, tasks=four), WHOLE, TWINS).universal == []


@pytest.mark.parametrize(("tasks", "wanted"), [(2, 2), (3, 2), (4, 2), (5, 3)])
def test_half_of_the_families_and_two_at_least_must_need_it(tasks, wanted):
    head, names = HEADS[0], TASKS[:tasks]
    for hit in range(tasks + 1):
        drops = {(head, task): 0.5 for task in names[:hit]}
        told = judge_universality(effects(drops, tasks=names), WHOLE)
        (found,) = [each for each in told.candidates if each.head == "L0H3"]
        assert (found.families, found.wanted) == (tasks, wanted)
        assert found.universal == (hit >= wanted)


def test_a_single_family_makes_no_head_universal():
    told = judge_universality(
        effects({(HEADS[0], "gsm8k"): 0.5}, tasks=("gsm8k", "arithmetic")), WHOLE, TWINS
    )
    assert told.universal == []


def test_a_loss_that_may_or_may_not_be_a_tenth_is_not_called_needed():
    drops = {(HEADS[0], task): 0.1 for task in TASKS}
    told = judge_universality(effects(drops, stderr=0.03), WHOLE)
    assert told.universal == []
    trial = told.candidates[0].trials[0]
    assert trial.share == pytest.approx(0.125) and not trial.needed


def test_the_share_is_of_the_score_above_chance():
    head = HEADS[0]
    intact = {"a": Intact(0.30, 0.005, chance=0.25), "b": Intact(0.30, 0.005)}
    drops = {(head, "a"): 0.02, (head, "b"): 0.02}
    told = judge_universality(effects(drops, stderr=0.003, tasks=("a", "b")), intact)
    by_task = {trial.task: trial for trial in told.candidates[0].trials}
    assert by_task["a"].share == pytest.approx(0.4) and by_task["a"].needed
    assert by_task["b"].share == pytest.approx(1 / 15) and not by_task["b"].needed


def test_tasks_that_the_model_cannot_do_say_nothing():
    intact = WHOLE | {"mmlu": Intact(0.26, 0.01, chance=0.25)}
    drops = {(HEADS[0], task): 0.4 for task in TASKS[:2]}
    told = judge_universality(effects(drops), intact)
    assert told.left_out == ["mmlu"]
    assert {trial.task for each in told.candidates for trial in each.trials} == set(TASKS[:4])
    assert told.universal == ["L0H3"]  # two of four; with mmlu it would be two of five


def test_what_was_not_measured_is_left_out():
    given = effects({(HEADS[0], task): 0.4 for task in TASKS[:2]})
    given["mbpp"] = {}
    given["rhyming"][HEADS[0]] = HeadCost(float("nan"), float("nan"))
    told = judge_universality(given, WHOLE)
    first = told.candidates[0]
    assert [trial.task for trial in first.trials] == ["gsm8k", "arithmetic", "mmlu"]
    assert (first.families, first.universal) == (3, True)
    assert [each.families for each in told.candidates[1:]] == [4, 4]
    nothing = judge_universality({"gsm8k": {}}, WHOLE)
    assert nothing.candidates == [] and nothing.universal == []


def test_rates_are_those_of_scipy_over_all_heads_and_tasks():
    random = np.random.default_rng(1)
    given = {
        task: {head: HeadCost(-float(drop), 0.02) for head, drop in zip(HEADS, row, strict=True)}
        for task, row in zip(TASKS, random.uniform(0, 0.2, (5, 3)), strict=True)
    }
    told = judge_universality(given, WHOLE)
    trials = [trial for each in told.candidates for trial in each.trials]
    for trial in trials:
        whole = WHOLE[trial.task]
        z = (-trial.effect - 0.1 * whole.above) / (0.02 + 0.1 * 0.01)
        assert trial.p == pytest.approx(stats.norm.sf(z))
        assert trial.needed == (trial.q <= 0.05)
    rates = stats.false_discovery_control([trial.p for trial in trials])
    assert [trial.q for trial in trials] == pytest.approx(rates)


def simulated(random, share, heads, tasks, count=250):
    """Effects on 0/1 outcomes, of which each head takes the share; and the intact scores."""
    given, intact = {}, {}
    for task in tasks:
        before = (random.random(count) < 0.75).astype(float)
        lost = random.random((len(heads), count)) < np.reshape(share[task], (-1, 1))
        change = -before * lost
        errors = change.std(axis=1, ddof=1) / count**0.5
        intact[task] = Intact(float(before.mean()), float(stats.sem(before)))
        given[task] = {
            head: HeadCost(float(effect), float(error))
            for head, effect, error in zip(heads, change.mean(axis=1), errors, strict=True)
        }
    return given, intact


def test_heads_at_the_border_are_called_needed_no_more_often_than_the_level():
    """Every loss is exactly a tenth: each rejection is false, so the rate is that of any."""
    random = np.random.default_rng(4)
    heads = [Head(0, index) for index in range(12)]
    share = {task: np.full(12, 0.1) for task in TASKS}
    any_needed = universal_runs = 0
    for _ in range(200):
        told = judge_universality(*simulated(random, share, heads, TASKS), TWINS)
        trials = [trial for each in told.candidates for trial in each.trials]
        any_needed += any(trial.needed for trial in trials)
        universal_runs += bool(told.universal)
    assert stats.binomtest(any_needed, 200, 0.05, alternative="greater").pvalue > 0.01
    assert universal_runs == 0


def test_false_needs_stay_below_the_level_beside_true_ones_and_true_ones_are_found():
    random = np.random.default_rng(5)
    heads = [Head(0, index) for index in range(12)]
    share = {task: np.array([0.5, 0.4, *[0.1] * 5, *[0.0] * 5]) for task in TASKS}
    false, found = [], 0
    for _ in range(100):
        told = judge_universality(*simulated(random, share, heads, TASKS), TWINS)
        needed = [each.head for each in told.candidates for trial in each.trials if trial.needed]
        false.append(np.mean([head not in ("L0H0", "L0H1") for head in needed]))
        found += told.universal == ["L0H0", "L0H1"]
    assert np.mean(false) < 0.05
    assert found >= 98


def test_an_error_of_zero_is_taken_at_its_word():
    intact = {"a": Intact(1.0, 0.0), "b": Intact(1.0, 0.0)}
    given = {task: {HEADS[0]: HeadCost(-0.5, 0.0), HEADS[1]: HeadCost(0.0, 0.0)} for task in intact}
    told = judge_universality(given, intact)
    assert told.universal == ["L0H3"]
    assert [trial.p for trial in told.candidates[0].trials] == [0.0, 0.0]


def test_all_can_be_written_to_a_file():
    told = judge_universality(effects({(HEADS[0], task): 0.4 for task in TASKS}), WHOLE, TWINS)
    written = json.loads(json.dumps(told.as_dict(), allow_nan=False))
    assert written == told.as_dict() and written["universal"] == ["L0H3"]
    assert written["candidates"][0]["head"] == "L0H3"
