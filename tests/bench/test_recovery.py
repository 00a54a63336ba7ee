from dataclasses import replace

import numpy as np
import pytest

import rivals
import simulator
from caploc.options import Settings
from caploc.search import METHODS, Problem
from driving import Done, drive
from truths import Truth, scores, summary
from worlds.simulate import World

HEADS = 100
NEEDED = 4
WORLD = World.planted(HEADS, NEEDED, drop=0.3, seed=3)
SETTINGS = Settings(top=NEEDED, masks=200, rate=0.05, budget=4000)
PROBLEM = Problem(HEADS, list(range(100)), SETTINGS)


@pytest.fixture(scope="module")
def found():
    return {
        rival: drive(rival(PROBLEM), simulator.Simulated(WORLD))
        for rival in (rivals.halving, rivals.regression, rivals.css_searched)
    }


def test_every_rival_finds_strong_heads(found):
    for rival, done in found.items():
        assert set(done.found.ranking[:NEEDED]) == set(WORLD.planted_heads), rival
        assert sorted(done.found.ranking) == list(range(HEADS)), rival


def test_thompson_sampling_as_coded_ends_with_what_can_be_spared_and_mended_finds_heads():
    """As the paper's code has it: half of all heads a mask, rewarded with what is left."""
    coded = replace(PROBLEM, settings=replace(SETTINGS, rate=0.5, masks=50))
    done = drive(rivals.thompson(coded), simulator.Simulated(WORLD))
    assert done.rows == 50 * 100
    assert min(done.found.ranking.index(head) for head in WORLD.planted_heads) >= HEADS * 3 // 4
    small = replace(PROBLEM, settings=replace(SETTINGS, masks=400))
    mended = drive(rivals.thompson(small, mended=True), simulator.Simulated(WORLD))
    assert len(set(mended.found.ranking[:NEEDED]) & set(WORLD.planted_heads)) >= NEEDED - 1
    assert sorted(mended.found.ranking) == list(range(HEADS))


def test_rows_are_counted_without_the_intact_ones(found):
    cutting = found[rivals.regression].found.seen.masks.any(axis=1)
    assert found[rivals.regression].rows == 100 * cutting.sum()
    assert found[rivals.css_searched].rows == len(rivals.RATES) * 400 * 100 + 12 * 100
    assert 0 < found[rivals.halving].rows <= SETTINGS.budget


def test_struck_heads_are_never_knocked_out_and_keep_no_place():
    struck = [0, 7, WORLD.planted_heads[0]]
    search = rivals.without(METHODS["greedy"].search, struck)
    settings = replace(SETTINGS, top=2)
    assert not any(plan.masks[:, struck].any() for plan in plans(search, settings))
    problem = replace(PROBLEM, settings=settings)
    done = drive(search(problem), simulator.Simulated(WORLD))
    assert set(done.found.ranking[:2]) <= set(WORLD.planted_heads[1:])
    assert np.isnan(done.found.estimate.effect[struck]).all()
    assert sorted(done.found.ranking) == sorted(set(range(HEADS)) - set(struck))


def plans(search, settings, answer=None):
    """Every plan of a search."""
    seen, answer = [], answer or simulator.Simulated(WORLD)
    drive(
        search(replace(PROBLEM, settings=settings)),
        lambda plan: (seen.append(plan), answer(plan))[1],
    )
    return seen


def test_the_truth_itself_scores_in_full(found):
    effects = WORLD.single_effects()
    truth = Truth(effects, frozenset(WORLD.planted_heads), lambda columns: 1.0)
    one_shot = drive(METHODS["one-shot"].search(PROBLEM), simulator.Simulated(WORLD))
    estimate = replace(one_shot.found.estimate, low=effects - 0.01, high=effects + 0.01)
    ranking = np.argsort(effects, kind="stable").tolist()
    perfect = replace(one_shot.found, ranking=ranking, estimate=estimate)
    scored = scores(Done(perfect, 10, 0.0), truth, NEEDED)
    assert scored["recall"] == scored["damage"] == scored["coverage"] == 1


def test_false_discoveries_are_the_idle_share_of_those_with_a_small_q(found):
    idle = np.ones(HEADS, dtype=bool)
    idle[WORLD.planted_heads] = False
    truth = Truth(WORLD.single_effects(), frozenset(), lambda columns: 1.0, idle=idle)
    done = found[rivals.halving]
    q = np.full(HEADS, 0.9)
    q[[*WORLD.planted_heads[:3], int(np.flatnonzero(idle)[0])]] = 0.01
    named = replace(done.found, estimate=replace(done.found.estimate, q=q))
    scored = scores(replace(done, found=named), truth, NEEDED)
    assert scored["discovered"] == 4 and scored["false"] == 0.25


def test_a_summary_leaves_out_what_is_missing():
    runs = [{"recall": 0.2, "promised": float("nan")}, {"recall": 0.4}]
    assert summary(runs) == {"recall": {"mean": 0.3, "runs": 2, "error": 0.1}}
