"""The published search over settings, against every setting run apart."""

import json
from itertools import product

import numpy as np
import pytest
from driven import drive, inside, problem, with_holes

from caploc import designs
from caploc.errors import BadOption
from caploc.options import Settings
from caploc.search import METHODS, column_mask
from caploc.search.published import RATES, rates_to_try
from worlds.simulate import World

NAMES = ("css-search", "csb-search")
COUNTS, SHARES = (30, 60, 90), (0.05, 0.1, 0.2)
WORLD = World.planted(48, 4, drop=0.15, seed=3)
GIVEN = {
    "examples": range(40),
    "top": 3,
    "seed": 5,
    "mask_counts": COUNTS,
    "rates": SHARES,
}


def run(name, world=WORLD, answer=None, **given):
    search = METHODS[name].search(problem(world.heads, **GIVEN | given))
    return drive(search, answer or inside(world))


def settings_of(result):
    return [(each["masks"], each["rate"]) for each in result.found.diagnostics["settings"]]


def drop(world, columns, examples):
    """Mean loss with these heads gone, row by row."""
    numbers = np.array(examples)
    empty = np.zeros((len(numbers), world.heads), dtype=bool)
    cut = empty | column_mask(world.heads, columns)
    lost = world.outcomes(empty, numbers) - world.outcomes(cut, numbers)
    return lost.mean(), lost.std(ddof=1) / len(numbers) ** 0.5


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", NAMES)
def test_every_setting_finds_what_it_finds_alone_and_the_most_costly_heads_are_kept(name, seed):
    """The second implementation runs css or csb anew for each setting."""
    world = World.planted(48, 4, drop=0.15, seed=seed)
    searched = run(name, world)
    apart = {}
    for masks, rate in product(COUNTS, SHARES):
        alone = METHODS[name.removesuffix("-search")].search(
            problem(48, examples=range(40), top=3, seed=5, masks=masks, rate=rate)
        )
        apart[masks, rate] = drive(alone, inside(world)).found
    told = searched.found.diagnostics
    assert settings_of(searched) == list(apart)
    screened = sum(len(plan.mask) for plan in searched.plans if plan.what.startswith("masks of"))
    assert screened == len(SHARES) * COUNTS[-1] * 40
    assert searched.rows == screened + len(apart) * 40
    drops = {}
    for each in told["settings"]:
        found = apart[each["masks"], each["rate"]]
        assert each["heads"] == found.chosen
        drops[each["masks"], each["rate"]] = drop(world, found.chosen, range(40))[0]
        assert each["drop"] == pytest.approx(drops[each["masks"], each["rate"]])
    best = min(drops, key=lambda setting: (-round(drops[setting], 9), *setting))
    assert (told["masks"], told["rate"]) == best == list(apart)[told["chosen"]]
    assert searched.found.chosen == apart[best].chosen
    assert searched.found.ranking == apart[best].ranking
    assert np.array_equal(searched.found.estimate.effect, apart[best].estimate.effect, True)
    assert np.array_equal(searched.found.seen.outcome, apart[best].seen.outcome)


def test_equal_designs_are_one_setting():
    searched = run("css-search", rates=(0.05, 0.06, 0.1))  # 0.05 and 0.06 of 48 heads are 2
    assert {rate for _, rate in settings_of(searched)} == {0.05, 0.1}
    assert {rate for _, rate in settings_of(run("csb-search", rates=(0.05, 0.06)))} == {0.05, 0.06}


def test_without_being_told_it_tries_the_papers_settings_with_a_head_a_mask_at_least():
    assert Settings().mask_counts == (100, 200, 300, 400)
    assert rates_to_try(problem(1024)) == list(RATES) == [0.01, 0.02, 0.03, 0.05, 0.07, 0.1]
    assert rates_to_try(problem(48)) == [0.0209, 0.03, 0.05, 0.07, 0.1]
    assert rates_to_try(problem(6)) == [0.1667]
    for heads in range(2, 400):
        assert designs.check_mask_size(heads, rates_to_try(problem(heads))[0]) >= 1


def test_drops_have_their_standard_errors():
    for each in run("css-search").found.diagnostics["settings"]:
        assert (each["drop"], each["stderr"]) == pytest.approx(
            drop(WORLD, each["heads"], range(40))
        )


def test_what_is_told_can_be_written_to_a_file():
    def unscored(plan):
        return np.full(len(plan.mask), np.nan)

    for special in ({}, {"answer": unscored}):
        told = run("csb-search", **special).found.diagnostics
        assert json.loads(json.dumps(told, allow_nan=False)) == told


@pytest.mark.parametrize("name", NAMES)
def test_outcomes_that_could_not_be_scored_are_left_out_of_every_drop(name):
    holes = with_holes(inside(WORLD), 0.1)
    searched = run(name, answer=holes)
    told = searched.found.diagnostics
    asked = {}
    for plan, measured in zip(searched.plans, searched.measured, strict=True):
        for mask, example, outcome in zip(
            plan.masks[plan.mask], plan.example, measured.outcome, strict=True
        ):
            asked[mask.tobytes(), int(example)] = outcome
    for each in told["settings"]:
        cut, empty = column_mask(48, each["heads"]).tobytes(), column_mask(48, []).tobytes()
        lost = [asked[empty, example] - asked[cut, example] for example in range(40)]
        assert each["drop"] == pytest.approx(np.nanmean(lost))


class TestNotes:
    def test_heads_that_cost_nothing_are_not_named(self):
        def risen(plan):
            """Together the heads of a set do good; masks of five or more do harm."""
            return (
                np.where(plan.masks[plan.mask].sum(axis=1) >= 4, 0.2, 0.8)
                + 0.1 * (plan.masks[plan.mask][:, 0])
            )

        found = run("csb-search", answer=risen, rates=(0.1, 0.2)).found
        assert found.chosen == [] and sorted(found.ranking) == list(range(48))
        assert found.notes[0].startswith("No setting found heads that lower the score")

    def test_of_sets_that_cost_the_same_the_first_is_chosen(self):
        """One head breaks everything: whatever stands beside it, the drop is the same."""
        shifts = np.zeros(48)
        shifts[7], shifts[9:20] = 30.0, 0.3
        found = run("csb-search", World(shifts, 3.0, 1), rates=(0.05, 0.1)).found
        assert len({tuple(sorted(each["heads"])) for each in found.diagnostics["settings"]}) > 1
        assert {each["drop"] for each in found.diagnostics["settings"]} == {
            found.diagnostics["settings"][0]["drop"]
        }
        assert found.diagnostics["chosen"] == 0


def test_lists_as_files_hold_them_do_as_well():
    lists = run("css-search", mask_counts=list(COUNTS), rates=list(SHARES))
    assert lists.found.diagnostics == run("css-search").found.diagnostics


def test_a_rate_of_less_than_a_head_is_refused():
    for name in NAMES:
        with pytest.raises(BadOption) as refused:
            METHODS[name].check(problem(48, rates=(0.02, 0.1)))
        assert str(refused.value) == (
            "--rates 0.02 of 48 heads is less than one head a mask; use 0.0209 or more."
        )
