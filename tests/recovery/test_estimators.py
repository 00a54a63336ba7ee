"""The contract of every estimator: being listed in `ESTIMATORS` is being tested."""

from dataclasses import replace

import numpy as np
import pytest
from measured import crossed, effects_on

from caploc import designs
from caploc.recovery import Measurements
from caploc.registries import ESTIMATORS
from worlds.simulate import World

# An estimator of masks takes crossed ones; another is made for the design named here.
DESIGNS = {"paired": "alone"}
CASES = [(name, DESIGNS.get(name, "crossed")) for name in ESTIMATORS]
WORLDS = 10


def measured(world, design, rows=6000, ask=World.outcomes):
    """About so many rows, on 60 examples."""
    examples = list(range(60))
    if design == "alone":
        examples = list(range(rows // world.heads))
        return crossed(world, designs.singles(world.heads), examples, ask)
    masks = designs.stratified(world.heads, rows // len(examples), rate=0.1, seed=1)
    return crossed(world, masks, examples, ask)


@pytest.mark.parametrize(("name", "design"), CASES)
class TestEveryEstimator:
    def test_finds_planted_heads(self, name, design):
        world = World.planted(40, 3, drop=0.3, seed=2)
        estimate = ESTIMATORS[name](*measured(world, design))
        assert estimate.estimator == name
        assert set(estimate.needed(3)) == set(world.planted_heads)

    def test_effects_are_near_the_truth(self, name, design):
        """Penalties and the heads cut beside it may move an effect by a third of a planted one."""
        world = World.planted(40, 3, drop=0.3, seed=2)
        seen, intact = measured(world, design)
        effect = ESTIMATORS[name](seen, intact).effect
        assert effect == pytest.approx(effects_on(world, list(intact)), abs=0.1)

    def test_effects_scale_with_outcomes(self, name, design):
        world = World.planted(30, 2, drop=0.3, seed=3)
        seen, intact = measured(world, design, 3000, World.logprobs)
        scaled = replace(seen, outcome=7 * seen.outcome)
        first = ESTIMATORS[name](seen, intact)
        second = ESTIMATORS[name](scaled, {e: 7 * o for e, o in intact.items()})
        for one, other in ((first.effect, second.effect), (first.low, second.low)):
            assert np.allclose(7 * one, other, rtol=1e-6, atol=1e-9, equal_nan=True)

    def test_renumbered_heads_keep_their_effects(self, name, design):
        world = World.planted(30, 2, drop=0.3, seed=4)
        seen, intact = measured(world, design, 3000)
        order = np.random.default_rng(0).permutation(30)
        turned = replace(seen, masks=seen.masks[:, order])
        first = ESTIMATORS[name](seen, intact).effect[order]
        second = ESTIMATORS[name](turned, intact).effect
        # Coordinate descent stops within its own tolerance of the optimum, from either order.
        assert np.allclose(first, second, atol=2e-3, equal_nan=True)

    def test_rows_in_another_order_say_the_same(self, name, design):
        world = World.planted(30, 2, drop=0.3, seed=4)
        seen, intact = measured(world, design, 3000)
        order = np.random.default_rng(0).permutation(len(seen.outcome))
        turned = replace(
            seen, mask=seen.mask[order], example=seen.example[order], outcome=seen.outcome[order]
        )
        first = ESTIMATORS[name](seen, intact)
        second = ESTIMATORS[name](turned, dict(reversed(intact.items())))
        assert np.allclose(first.effect, second.effect, atol=1e-3, equal_nan=True)
        assert np.allclose(first.low, second.low, atol=1e-3, equal_nan=True)

    def test_outcomes_that_could_not_be_scored_are_as_if_never_asked(self, name, design):
        world = World.planted(30, 2, drop=0.3, seed=4)
        seen, intact = measured(world, design, 3000)
        lost = np.random.default_rng(1).random(len(seen.outcome)) < 0.2
        missing = replace(seen, outcome=np.where(lost, np.nan, seen.outcome))
        first = ESTIMATORS[name](missing, intact)
        second = ESTIMATORS[name](seen.where(~lost), intact)
        assert np.array_equal(first.effect, second.effect, equal_nan=True)
        assert np.array_equal(first.low, second.low, equal_nan=True)

    def test_a_head_never_cut_has_no_effect_and_ranks_as_idle(self, name, design):
        world = World.planted(20, 2, drop=0.3, seed=6)
        seen, intact = measured(world, design, 2000)
        with_head = seen.masks[:, 7][seen.mask]
        estimate = ESTIMATORS[name](seen.where(~with_head), intact)
        assert np.isnan([estimate.effect[7], estimate.low[7], estimate.q[7]]).all()
        assert np.isfinite(np.delete(estimate.effect, 7)).all()
        assert 7 not in estimate.needed(20)

    def test_nothing_measured_is_nothing_known(self, name, design):
        for intact in ({}, {0: 1.0, 1: 0.0}):
            estimate = ESTIMATORS[name](Measurements.none(5), intact)
            assert np.isnan(estimate.effect).all() and np.isnan(estimate.q).all()
            assert estimate.needed(5) == []

    def test_outcomes_that_never_differ_name_no_head(self, name, design):
        seen, intact = measured(World(np.zeros(12), 20.0, 0), design, 1200)
        assert (seen.outcome == 1).all()
        estimate = ESTIMATORS[name](seen, intact)
        assert (estimate.effect == 0).all() and estimate.needed(5) == []
        assert not (estimate.q < 1).any()

    def test_more_rows_bring_it_nearer_to_the_truth(self, name, design):
        few, many = [], []
        for seed in range(WORLDS):
            world = World.planted(20, 3, drop=0.3, seed=seed)
            for rows, errors in ((600, few), (3000, many)):
                seen, intact = measured(world, design, rows)
                effect = np.nan_to_num(ESTIMATORS[name](seen, intact).effect)
                # A shift of all effects alike, as masks of one size have it, moves no ranking.
                errors.append(np.std(effect - effects_on(world, list(intact))))
        assert np.mean(many) < 0.75 * np.mean(few)
