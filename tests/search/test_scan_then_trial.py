"""Scan, then trial, on worlds whose truth is planted."""

from itertools import pairwise

import numpy as np
import pytest
from driven import breaking, drive, inside, problem
from scipy.special import expit

from caploc.recovery import Measurements
from caploc.search import METHODS
from caploc.search.scan import (
    LEVEL,
    Scan,
    Sizes,
    Trial,
    deal,
    log_odds,
    nobody,
    scan_then_trial,
    split,
    stability,
    to_try,
)
from worlds.simulate import World


def searched(world, *others, **given):
    """The default search on the world's examples, with its signal and the other tasks."""
    asked = problem(world.heads, signal="task.likelihood", **given)
    run = drive(scan_then_trial(asked), inside(world, *others))
    return asked, run


def found(world, **given):
    return searched(world, **given)[1].found


class TestWhatIsFound:
    @pytest.mark.parametrize("seed", range(5))
    def test_planted_heads_are_named_and_no_others(self, seed):
        world = World.planted(100, 5, drop=0.3, seed=seed)
        assert set(found(world, seed=seed).chosen) == set(world.planted_heads)

    def test_named_heads_come_in_the_order_of_their_falls(self):
        shifts = np.zeros(60)
        shifts[[7, 30, 41]] = [1.5, 5.0, 3.0]
        assert found(World(shifts, 3.0, 1)).chosen[:3] == [30, 41, 7]

    def test_heads_that_break_another_task_are_left_out_and_the_next_move_up(self):
        shifts = np.zeros(60)
        shifts[[7, 30, 41, 50]] = [9.0, 5.0, 4.0, 3.0]
        given = {"top": 2, "elsewhere": {"task1": range(24)}}
        _, run = searched(World(shifts, 3.0, 1), breaking(60, [7]), **given)
        assert run.found.universal == [7] and run.found.breaks_task == {7: "task1"}
        assert run.found.chosen == [30, 41]
        assert 7 in run.found.critical

    def test_no_head_is_named_that_was_not_asked_what_else_it_breaks(self):
        shifts = np.zeros(60)
        shifts[[3, 7, 30, 41]] = [9.0, 8.0, 7.0, 3.0]
        given = {"top": 1, "elsewhere": {"task1": range(24)}}
        _, run = searched(World(shifts, 3.0, 1), breaking(60, [3, 7, 30]), **given)
        assert len(run.found.universal) == 2 and run.found.chosen == []

    @pytest.mark.parametrize(("right", "universal"), [(3, []), (4, [7])])
    def test_the_few_right_answers_of_another_task_may_be_lost_by_chance(self, right, universal):
        shifts = np.zeros(60)
        shifts[[7, 30]] = [9.0, 5.0]
        elsewhere = {"task1": range(right)}
        _, run = searched(World(shifts, 3.0, 1), breaking(60, [7]), top=2, elsewhere=elsewhere)
        assert run.found.universal == universal
        assert run.found.chosen[0] == [7, 30][len(universal)]

    def test_a_head_that_breaks_every_answer_is_tried_however_many_do(self):
        """Twenty heads break everything; three times the top are fewer."""
        world = breaking(60, range(20))
        run = searched(world, top=3)[1]
        assert {*range(20)} & {*run.found.stages.tried} and len(run.found.stages.tried) == 20
        assert set(run.found.critical) == {*range(20)}

    def test_without_right_answers_to_scan_nothing_is_named_and_the_reason_is_given(self):
        run = searched(World(np.zeros(20), -40.0, 0))[1]
        assert run.found.chosen == [] and "too few" in run.found.notes[0]

    def test_outcomes_without_likelihoods_do_as_signal(self):
        world = World.planted(40, 3, drop=0.4, seed=2)
        asked = problem(40, budget=4000, top=3)
        run = drive(scan_then_trial(asked), inside(world))
        assert set(run.found.chosen) == set(world.planted_heads)
        assert not run.found.stages.broken.any()  # what was kept is not known


class TestWhatIsAsked:
    def test_scan_and_trial_share_no_example(self):
        run = searched(World.planted(60, 5, seed=3))[1]
        (scan,), (trial,) = run.of("scan"), run.of("trial")
        assert not {*scan.example.tolist()} & {*trial.example.tolist()}

    def test_neighbours_get_different_examples_and_each_is_used_alike(self):
        dealt = deal(range(37), 100, 4)
        assert all(len({*row}) == 4 for row in dealt.tolist())
        assert not any({*a} & {*b} for a, b in pairwise(dealt.tolist()))
        assert np.ptp(np.bincount(dealt.ravel())) <= 1

    @pytest.mark.parametrize("budget", [400, 900, 2000, 6000, None])
    @pytest.mark.parametrize("kind", ["planted", "breaking"])
    def test_no_more_rows_are_asked_than_told(self, budget, kind):
        world = World.planted(80, 5, seed=1) if kind == "planted" else breaking(80, range(60))
        asked, run = searched(world, budget=budget)
        asked_rows = run.found.stages.rows
        assert asked_rows <= METHODS["scan"].most_rows(asked)
        assert asked_rows == sum(len(run.of(what)[0].mask) for what in ("scan", "trial"))
        assert budget is None or budget / 2 < asked_rows <= budget or budget == 6000

    def test_sizes_follow_from_the_budget(self):
        def sizes(budget):
            return Sizes.of(problem(270, budget=budget))

        usual = sizes(None)
        assert (usual.scanned, usual.heads, usual.trial) == (4, 15, 100)
        assert usual.each(15) == usual.each(45) == 100
        assert (sizes(2580).scanned, sizes(2580).trial) == (4, 100)  # 4 x 270 + 15 x 100
        assert (sizes(1440).scanned, sizes(1440).trial) == (2, 60)
        assert (sizes(10_000).scanned, sizes(10_000).trial) == (8, 522)
        assert sizes(2580).each(30) == 50

    def test_a_small_task_leaves_two_thirds_to_the_trial(self):
        scanned, tried = split(problem(10, examples=range(60)), 100)
        assert (len(scanned), len(tried)) == (20, 40)
        assert sorted(scanned + tried) == [*range(60)]


class TestHowSure:
    def trial(self, change, right=60):
        """Heads whose changes of every example are given."""
        heads, count = change.shape
        intact = dict.fromkeys(range(count), 1.0)
        masks = np.eye(heads, dtype=bool)
        seen = Measurements(
            masks,
            np.repeat(np.arange(heads), count),
            np.tile(np.arange(count), heads),
            1.0 + change.ravel(),
        )
        return Trial([*range(heads)], intact, seen)

    def scan(self, fall, top=3):
        """Heads whose falls of the log-odds in the scan are given, on answers that all stay."""
        scan = Scan(problem(len(fall), top=top), "task.likelihood", range(10))
        scan.fall, scan.lost, scan.kept = fall, fall / 10, np.ones(fall.shape)
        return scan

    def test_huge_effects_are_stable_and_alike_ones_are_not(self):
        sure = self.scan(np.repeat(np.arange(10.0, 0, -1)[:, None], 4, axis=1))
        change = np.zeros((10, 60))
        change[:3, :50] = -1
        jaccard, share = stability(sure, self.trial(change), 10)
        assert jaccard == 1 and share.tolist() == [1.0] * 3 + [0.0] * 7
        alike = np.zeros((10, 60))
        for head in range(10):
            alike[head, head * 5 : head * 5 + 10] = -1
        jaccard, share = stability(sure, self.trial(alike), 10)
        assert jaccard < 0.4 and share.sum() == pytest.approx(3, abs=0.3)

    def test_what_is_named_is_unstable_where_another_scan_would_try_others(self):
        """Ten of sixty heads are tried and three of them break all; the scan tells them or not."""
        change = np.zeros((10, 60))
        change[:3] = -1
        told = np.repeat(np.arange(60.0, 0, -1)[:, None], 4, axis=1)
        assert stability(self.scan(told), self.trial(change), 10)[0] == 1
        noise = np.random.default_rng(0).normal(size=(60, 4))
        order = np.argsort(-noise.mean(axis=1))
        jaccard, share = stability(self.scan(noise[order]), self.trial(change), 10)
        assert jaccard < 0.8 and share[10:].any()  # heads that took the place of a tried one

    def test_odds_rank_where_probabilities_are_all_near_one(self):
        logprob = np.array([-1e-6, -1e-4, -0.5, -5.0])
        assert np.allclose(np.exp(logprob), expit(log_odds(logprob)))
        assert log_odds(np.zeros(1))[0] == pytest.approx(16.1, abs=0.1)

    @pytest.mark.parametrize(("count", "critical"), [(2, []), (4, []), (20, [0])])
    def test_a_head_is_critical_only_where_that_is_sure(self, count, critical):
        change = np.zeros((10, count))
        change[0] = -1
        assert self.trial(change).critical() == critical

    def test_a_small_trial_that_names_nobody_asks_for_more_examples(self):
        few, many = (nobody(self.trial(np.zeros((10, count)))) for count in (19, 20))
        assert few.endswith(
            "So few examples show hardly any effect: give more, or a larger --budget."
        )
        assert many.endswith("--goal set.")

    def test_of_a_small_budget_heads_that_broke_the_scan_leave_twenty_examples_each(self):
        _, run = searched(breaking(80, range(60)), budget=480)
        assert len(run.found.stages.tried) == 16 and run.found.stages.tried_on == 20

    def test_naming_nobody_every_time_is_stable(self):
        scan, change = self.scan(np.ones((4, 4)), top=2), np.zeros((4, 60))
        assert stability(scan, self.trial(change), 4)[0] == 1.0

    def test_the_signal_knows_its_order_and_what_broke(self):
        scan = Scan(problem(4), "task.likelihood", range(10))
        scan.fall = np.array([[0.1, 0.2], [0.9, 0.7], [np.nan, np.nan], [0.5, np.nan]])
        scan.lost = scan.fall / 2
        scan.kept = np.array([[1.0, 1.0], [0.0, 0.0], [np.nan, np.nan], [0.0, np.nan]])
        assert scan.order() == [1, 3, 0]
        assert scan.asked.tolist() == [2, 2, 0, 1] and scan.broken.tolist() == [0, 2, 0, 1]
        assert to_try(scan, 1) == [1, 3]

    def test_where_nothing_matters_hardly_a_head_is_named(self):
        """Worlds in which some head is named: 5 % at most, and three standard errors."""
        worlds = [World(np.zeros(60), 1.5, seed) for seed in range(60)]
        wrong = sum(bool(found(world, seed=n).chosen) for n, world in enumerate(worlds))
        assert wrong <= 60 * LEVEL + 3 * np.sqrt(60 * LEVEL * (1 - LEVEL))

    @pytest.mark.slow
    def test_intervals_hold_in_three_strata(self):
        """Named heads, heads of five points and more, and all with an interval: 93 to 98 %."""
        held = {"named": [], "five points": [], "all": []}
        for seed in range(120):
            world = World.real(seed=seed, layers=10, width=18)
            told = found(world, seed=seed)
            truth = world.single_effects()
            for column in told.stages.tried:
                low, high = told.estimate.low[column], told.estimate.high[column]
                inside = low <= truth[column] <= high
                held["all"].append(inside)
                held["named"] += [inside] if column in told.chosen else []
                held["five points"] += [inside] if truth[column] <= -0.05 else []
        shares = {name: float(np.mean(each)) for name, each in held.items()}
        assert all(0.93 <= share <= 0.98 for share in shares.values()), shares

    def test_every_strong_head_is_in_the_trial(self):
        """Heads of 30 points and more are tried, whatever the seed."""
        for seed in range(20):
            world = World.planted(100, 5, drop=0.35, seed=seed)
            tried = found(world, seed=seed).stages.tried
            assert set(world.planted_heads) <= set(tried)
