"""The published search over settings, against every setting run apart."""

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from driven import drive, inside, problem, with_holes
from hypothesis import given
from hypothesis import strategies as st

from caploc import designs
from caploc.errors import BadOption
from caploc.options import Settings
from caploc.search import METHODS, column_mask
from caploc.search.published import MOST_CHECKED, RATES, Choices, check_choices, rates_to_try
from worlds.simulate import KINDS, World

DRAWS = {"css-search": designs.stratified, "csb-search": designs.bernoulli}
COUNTS, SHARES = (30, 60, 90), (0.05, 0.1, 0.2)
WORLD = World.planted(48, 4, drop=0.15, seed=3)
GIVEN = {
    "examples": range(40),
    "fresh": range(40, 100),
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


def distinct(result):
    return {frozenset(each["heads"]) for each in result.found.diagnostics["settings"]}


def drop(world, columns, examples):
    """Mean loss with these heads gone, row by row."""
    numbers = np.array(examples)
    empty = np.zeros((len(numbers), world.heads), dtype=bool)
    cut = empty | column_mask(world.heads, columns)
    lost = world.outcomes(empty, numbers) - world.outcomes(cut, numbers)
    return lost.mean(), lost.std(ddof=1) / len(numbers) ** 0.5


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", DRAWS)
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


@pytest.mark.parametrize("name", DRAWS)
def test_no_row_is_asked_twice_and_all_are_counted(name):
    searched = run(name, rates=(0.03, 0.05, 0.1), top=1)  # masks of one or two heads do repeat
    asked = [
        (mask.tobytes(), int(example))
        for plan in searched.plans
        for mask, example in zip(plan.masks[plan.mask], plan.example, strict=True)
    ]
    assert len(set(asked)) == len(asked)
    told = searched.found.diagnostics
    assert told["rows"] == searched.rows <= told["budget"]
    intact = searched.of("intact")
    assert [plan.example.tolist() for plan in intact] == [list(range(40)), list(range(40, 100))]


@pytest.mark.parametrize("name", DRAWS)
def test_a_rate_costs_the_masks_of_its_largest_setting_and_a_set_of_heads_one_mask(name):
    searched = run(name, rates=(0.2, 0.3))  # masks of nine heads do not repeat
    screened = sum(len(plan.mask) for plan in searched.plans if plan.what.startswith("masks of"))
    assert screened == 2 * 90 * 40
    assert searched.rows == screened + len(distinct(searched)) * (40 + 60)


@pytest.mark.parametrize("draw", DRAWS.values())
@given(
    heads=st.integers(20, 60),
    rate=st.sampled_from([0.05, 0.1, 0.3]),
    fewer=st.integers(1, 40),
    more=st.integers(0, 40),
    seed=st.integers(0, 99),
)
def test_the_masks_of_a_smaller_setting_are_the_first_of_a_larger(
    draw, heads, rate, fewer, more, seed
):
    larger = draw(heads, fewer + more, rate=rate, seed=seed)
    assert (larger[:fewer] == draw(heads, fewer, rate=rate, seed=seed)).all()
    if draw is designs.stratified:
        for count in range(fewer + more + 1):
            assert np.ptp(larger[:count].sum(axis=0)) <= 1


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


def test_drops_have_their_standard_errors_and_are_repeated_on_fresh_examples():
    told = run("css-search").found.diagnostics
    for each in told["settings"]:
        assert (each["drop"], each["stderr"]) == pytest.approx(
            drop(WORLD, each["heads"], range(40))
        )
        assert (each["held_out_drop"], each["held_out_stderr"]) == pytest.approx(
            drop(WORLD, each["heads"], range(40, 100))
        )
    best = told["settings"][told["chosen"]]
    assert told["optimism"]["value"] == pytest.approx(best["drop"] - best["held_out_drop"])
    assert (told["chosen_on"], told["checked_on"]) == (40, 60)


def test_what_is_told_can_be_written_to_a_file():
    def unscored(plan):
        return np.full(len(plan.mask), np.nan)

    for special in ({}, {"fresh": []}, {"answer": unscored}):
        told = run("csb-search", **special).found.diagnostics
        assert json.loads(json.dumps(told, allow_nan=False)) == told


def test_fresh_examples_have_no_part_in_the_choice():
    def elsewhere(plan):
        """On fresh examples every knockout helps."""
        cut = plan.masks[plan.mask].any(axis=1)
        return np.where(plan.example >= 40, cut.astype(float), inside(WORLD)(plan))

    usual, turned = run("css-search"), run("css-search", answer=elsewhere)
    assert turned.found.chosen == usual.found.chosen
    assert turned.found.diagnostics["settings"][0]["held_out_drop"] == -1
    assert turned.found.diagnostics["optimism"]["low"] > 0
    assert any("flatters itself" in note for note in turned.found.notes)


def test_where_no_head_matters_the_whole_drop_is_optimism():
    """Outcomes that differ by luck alone: what is chosen costs nothing on average elsewhere."""
    kind = replace(KINDS["null"], intact=0.6, unsteady=0.6, damage=0.0)
    optimism, elsewhere = [], []
    for seed in range(12):
        world = World.of_kind(kind, seed=seed, layers=8, width=8)
        told = run("csb-search", world).found.diagnostics
        optimism.append(told["optimism"]["value"])
        elsewhere.append(told["settings"][told["chosen"]]["held_out_drop"])
    error = np.std(optimism, ddof=1) / 12**0.5
    assert np.mean(optimism) > 3 * error > 0
    assert abs(np.mean(elsewhere)) < np.mean(optimism) / 2


def test_too_few_fresh_examples_leave_the_optimism_open():
    for fresh in ([], [77]):
        found = run("css-search", fresh=fresh).found
        assert found.diagnostics["optimism"] is None
    found = run("css-search", fresh=[]).found
    assert found.diagnostics["settings"][0]["held_out_drop"] is None
    assert any(note.startswith("No fresh examples") for note in found.notes)


def test_no_more_fresh_examples_are_used_than_are_worth_their_price():
    searched = run("css-search", fresh=range(40, 900), mask_counts=(30,), rates=(0.1,))
    assert searched.found.diagnostics["checked_on"] == MOST_CHECKED
    assert searched.plans[-1].example.max() == 40 + MOST_CHECKED - 1


@pytest.mark.parametrize("name", DRAWS)
def test_the_same_problem_asks_and_finds_the_same(name):
    one, other = run(name), run(name)
    for first, second in zip(one.plans, other.plans, strict=True):
        assert (first.masks == second.masks).all() and (first.example == second.example).all()
    assert one.found.diagnostics == other.found.diagnostics and one.found.notes == other.found.notes
    assert run(name, seed=6).found.diagnostics["settings"] != one.found.diagnostics["settings"]


@pytest.mark.parametrize("name", DRAWS)
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


class TestBudget:
    def test_one_that_pays_for_all_changes_nothing(self):
        usual = run("css-search")
        rich = run("css-search", budget=3 * usual.rows)
        assert settings_of(rich) == settings_of(usual)
        assert rich.found.chosen == usual.found.chosen and rich.rows == usual.rows
        assert not any("budget" in note for note in rich.found.notes)

    @pytest.mark.parametrize("name", DRAWS)
    @pytest.mark.parametrize("budget", [3_000, 4_500, 6_000, 9_000, 12_000, 20_000])
    def test_no_more_is_spent_and_a_tenth_is_left_for_fresh_examples(self, name, budget):
        searched = run(name, budget=budget)
        assert searched.rows == searched.found.diagnostics["rows"] <= budget
        fresh = [plan for plan in searched.plans if plan.example.min() >= 40]
        assert fresh and searched.found.diagnostics["optimism"] is not None
        usual = run(name)
        fewer = {(masks, rate) for masks, rate in settings_of(searched)}
        assert fewer <= set(settings_of(usual))
        told = {(each["masks"], each["rate"]): each for each in usual.found.diagnostics["settings"]}
        for each in searched.found.diagnostics["settings"]:
            assert each["heads"] == told[each["masks"], each["rate"]]["heads"]

    def test_the_most_masks_go_first_then_rates_and_the_middle_ones_stay(self):
        choices = Choices.published(
            problem(500, mask_counts=(10, 20), rates=None), designs.bernoulli
        )
        thinner = [(each.counts, list(each.drawn)) for each in choices.thinner()]
        assert thinner == [
            ([10, 20], [0.01, 0.02, 0.03, 0.05, 0.07, 0.1]),
            ([10], [0.01, 0.02, 0.03, 0.05, 0.07, 0.1]),
            ([10], [0.01, 0.02, 0.05, 0.07, 0.1]),
            ([10], [0.01, 0.03, 0.05, 0.1]),
            ([10], [0.02, 0.05, 0.1]),
            ([10], [0.02, 0.07]),
        ]

    def test_a_thinned_search_says_so(self):
        searched = run("css-search", budget=9_000)
        assert {masks for masks, _ in settings_of(searched)} == {30, 60}
        (note,) = [note for note in searched.found.notes if "budget" in note]
        assert note == "The budget bought 6 of 9 settings."

    @pytest.mark.parametrize("name", DRAWS)
    def test_the_least_it_names_is_enough_and_one_less_is_not(self, name):
        with pytest.raises(BadOption, match="--budget 50 is too small") as refused:
            run(name, budget=50)
        least = int(str(refused.value).split("needs ")[1].split()[0])
        searched = run(name, budget=least)
        assert len(searched.found.diagnostics["settings"]) == 2 and searched.rows <= least
        with pytest.raises(BadOption, match=f"needs {least} rows"):
            check_choices(problem(48, **GIVEN, budget=least - 1), DRAWS[name])
        METHODS[name].check(problem(48, **GIVEN, budget=least))

    @pytest.mark.parametrize("examples", range(31, 41))
    def test_the_least_is_named_to_the_row(self, examples):
        given = GIVEN | {"examples": range(examples)}
        with pytest.raises(BadOption) as refused:
            check_choices(problem(48, **given, budget=1), designs.bernoulli)
        least = int(str(refused.value).split("needs ")[1].split()[0])
        check_choices(problem(48, **given, budget=least), designs.bernoulli)
        with pytest.raises(BadOption):
            check_choices(problem(48, **given, budget=least - 1), designs.bernoulli)

    def test_rows_of_all_masks_are_known_beforehand(self):
        """Small Bernoulli masks repeat, and some knock out nothing: neither costs a row."""
        sparse = {"rates": (0.03, 0.04), "mask_counts": (30, 90)}
        asked = problem(48, **GIVEN | sparse)
        choices = Choices.published(asked, designs.bernoulli)
        assert any(not masks.any(axis=1).all() for masks in choices.drawn.values())
        searched = run("csb-search", **sparse)
        screened = [plan for plan in searched.plans if plan.what.startswith("masks of")]
        sets = 4 * 40
        assert choices.rows(40) == sum(len(plan.mask) for plan in screened) + sets


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
    for name in DRAWS:
        with pytest.raises(BadOption) as refused:
            METHODS[name].check(problem(48, rates=(0.02, 0.1)))
        assert str(refused.value) == (
            "--rates 0.02 of 48 heads is less than one head a mask; use 0.0209 or more."
        )
