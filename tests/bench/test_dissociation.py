from dataclasses import replace
from math import sqrt
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

import dissociation
from caploc.components import Heads
from caploc.declaration import ModelOptions, split_examples
from caploc.options import Settings, TaskOptions
from caploc.study import Study
from caploc.tasks.catalog import load_task
from dissociation import OTHER, OWN, Cell, Outcomes, Subject


def outcomes(lost, *, examples=60, random=(0,) * 10, asked=20, right=None):
    """All right intact, the first `lost` wrong without the set; random sets lose their first."""
    intact = np.ones(examples) if right is None else np.arange(examples) < right

    def without(count):
        return np.where(np.arange(examples) < count, 0.0, intact)

    under = np.array([without(count)[:asked] for count in random])
    return Outcomes(intact.astype(float), without(lost), under)


def test_a_change_of_nothing_is_spared_by_the_score_test():
    # Tango's test of no discordant pair among 60: no share of gains is likelier than none
    assert outcomes(0).p_of_sparing() == pytest.approx(stats.norm.cdf(-6 / sqrt(60 * 0.1 * 0.9)))
    assert outcomes(0, examples=20).p_of_sparing() > 0.05


def test_taking_needs_more_than_every_random_set():
    # ten pairs that differ, all one way: mid-p of McNemar's exact test
    assert outcomes(10, asked=60).p_of_taking() >= 2**-10
    assert outcomes(10, random=[0] * 9 + [9]).p_of_taking() < 1e-3
    assert outcomes(10, random=[0] * 9 + [10]).p_of_taking() == 1
    assert outcomes(10, random=[]).p_of_taking() == 1
    assert outcomes(0).p_of_taking() == 1


def test_a_claim_holds_of_both_wordings():
    taken, kept = outcomes(50), outcomes(0)
    assert Cell.of([taken]).beyond
    assert not Cell.of([taken, kept]).beyond
    assert Cell.of([taken, kept]).p_of_taking == 1
    assert not Cell.of([taken, kept]).within
    assert Cell.of([taken, kept]).lost == pytest.approx(50 / 60 / 2)


def test_losses_are_shares_of_the_intact_score():
    cell = Cell.of([outcomes(15, right=30)])
    assert cell.lost == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("costs", "verdict"),
    [
        ({("a", "b"): 0, ("b", "a"): 0}, "double"),
        ({("a", "b"): 50, ("b", "a"): 0}, "single"),
        ({("a", "b"): 50, ("b", "a"): 50}, "none"),
        ({("a", "b"): 0, ("b", "a"): 0, ("b", "b"): 0}, "not testable"),
        ({("a", "b"): 0, ("b", "a"): 6}, "single"),  # six of sixty is neither spared nor taken
    ],
)
def test_pairs_dissociate_as_planted(costs, verdict):
    costs = {("a", "a"): 50, ("b", "b"): 50} | costs
    said = dissociation.judge({key: Cell.of([outcomes(lost)]) for key, lost in costs.items()})
    assert dissociation.judge_pair(said, "a", "b") == verdict


def test_random_sets_have_as_many_heads_in_each_layer():
    grid = Heads((6, 6, 6))
    heads = ["L0H1", "L2H0", "L2H3"]
    drawn = dissociation.draw_random(grid, heads)
    assert len({mask.tobytes() for mask in drawn}) == len(drawn) == 10
    assert not (drawn & grid.mask(heads)).any()
    counts = [drawn[:, columns].sum(axis=1) for columns in grid.layer_slices]
    np.testing.assert_array_equal(counts, [[1] * 10, [0] * 10, [2] * 10])
    assert len(dissociation.draw_random(Heads((4, 4)), ["L0H0"])) == 3
    assert len(dissociation.draw_random(Heads((2, 2)), ["L0H0", "L0H1"])) == 0
    assert len(dissociation.draw_random(grid, [])) == 0


@pytest.fixture(scope="module")
def subject():
    """Make a task whose run searched on 40 examples and checked on 20, without asking a row."""

    def make(name, others):
        study = Study(model=ModelOptions("smollm2"), task=name, examples=40, limit=20)
        task, twin = (load_task(each, TaskOptions()) for each in (name, f"{name}_twin"))
        draw = study.draw(task.size)
        asked = {name: {task.key(each) for each in (*draw.searched, *draw.kept[:20])}}
        asked |= {each.name: {each.key(n) for n in range(30)} for each in map(load_task, others)}
        run = SimpleNamespace(study=study)
        return Subject(run, task, twin, {each: asked.get(each, set()) for each in names})

    names = [f"words/{name}{twin}" for name in ("past", "capital") for twin in ("", "_twin")]
    return make


@pytest.mark.parametrize("name", ["words/past", "words/capital"])
def test_a_set_is_judged_on_what_its_search_did_not_see(subject, name):
    one = subject(name, [])
    chosen = dissociation.choose_examples(one, one, OWN)
    searched = set(one.run.study.draw(one.task.size).searched)
    assert len(chosen) > 30
    assert not searched & set(chosen)
    twin = dissociation.choose_examples(one, one, OTHER)
    if name == "words/capital":  # the same countries: the same ones are left out
        assert twin == chosen
    assert len(twin) == len(chosen)


def test_of_other_tasks_what_its_run_asked_is_left_out(subject):
    one, other = subject("words/past", ["words/capital"]), subject("words/capital", [])
    chosen = dissociation.choose_examples(one, other, OWN)
    assert len(chosen) == other.task.size - 30
    assert min(chosen) >= 30


def test_a_set_that_spares_is_judged_on_the_half_that_its_search_did_not_ask(subject):
    one, other = subject("words/past", []), subject("words/capital", [])
    study = Study(
        model=ModelOptions("smollm2"),
        task="words/past",
        settings=Settings(goal="specific"),
        spare=("words/capital",),
    )
    searched, judged = split_examples(other.task.size, study.settings.seed)
    keys = {other.task.key(each) for each in (*searched, *judged[:20])}
    asked = {name: set() for name in one.asked} | {other.name: keys}
    one = replace(one, run=SimpleNamespace(study=study), asked=asked)
    chosen = dissociation.choose_examples(one, other, OWN)
    assert set(chosen) == set(judged)
    assert set(chosen[-20:]) == set(judged[:20])  # those that chose the set come last
    assert dissociation.choose_examples(one, other, OTHER) == chosen
