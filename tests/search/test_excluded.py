"""Heads that are excluded: no search knocks them out, counts on them or names them."""

from dataclasses import replace

import numpy as np
import pytest
from driven import breaking, drive, inside, problem

from caploc.errors import BadOption
from caploc.search import METHODS
from caploc.search.plan import OtherTask
from worlds.simulate import World

HEADS, UNIVERSAL = 60, (7, 20)
NEEDED = (33, 41, 50, 12)
SMALL = {"masks": 60, "rate": 0.05, "mask_counts": (20, 40), "rates": (0.05, 0.1), "top": 4}


def world():
    shifts = np.zeros(HEADS)
    shifts[list(NEEDED)] = 3.0
    shifts[list(UNIVERSAL)] = 9.0
    return World(shifts, 3.0, 1)


def found_by(method, **given):
    given = {"signal": "task.likelihood", "excluded": UNIVERSAL} | SMALL | given
    asked = problem(HEADS, examples=range(100), **given)
    if given.get("goal") == "specific":
        asked = replace(asked, sides=[OtherTask("task1", range(60), "task1.likelihood")])
    return drive(METHODS[method].search(asked), inside(world(), breaking(HEADS, UNIVERSAL)))


@pytest.mark.parametrize(
    "method, given",
    [(name, {}) for name in METHODS]
    + [("scan", {"goal": goal, "budget": 3000}) for goal in ("set", "specific")],
)
def test_no_plan_holds_an_excluded_head_and_the_others_are_found(method, given):
    run = found_by(method, **given)
    assert not any(plan.masks[:, UNIVERSAL].any() for plan in run.plans)
    assert sorted(run.found.ranking) == list(range(HEADS))
    assert set(run.found.ranking[-2:]) == set(UNIVERSAL)
    assert not set(run.found.chosen) & set(UNIVERSAL)
    assert len(set(run.found.chosen) & set(NEEDED)) >= 3
    assert np.isnan(run.found.estimate.effect[list(UNIVERSAL)]).all()


@pytest.mark.parametrize("method", ["css", "csb"])
def test_no_mask_is_lost_and_balanced_ones_stay_balanced(method):
    eligible = [column for column in range(HEADS) if column not in UNIVERSAL]
    masks = found_by(method).plans[1].masks
    assert len(masks) == SMALL["masks"]
    if method == "css":
        assert (masks.sum(axis=1) == int(SMALL["rate"] * len(eligible))).all()
        assert np.ptp(masks[:, eligible].sum(axis=0)) <= 1


def test_a_search_over_settings_uses_the_masks_that_it_tells():
    run = found_by("css-search")
    told = run.found.diagnostics
    assert len(run.found.seen.masks) == told["masks"]
    for rate in SMALL["rates"]:
        (plan,) = run.of(f"masks of {100 * rate:.3g} % of the heads")
        assert len(plan.masks) == SMALL["mask_counts"][-1]


def test_a_rate_of_less_than_one_head_that_is_left_is_refused():
    asked = replace(problem(4, rate=0.5, masks=6), excluded=(0, 1, 2))
    with pytest.raises(BadOption, match=r"--rate 0.5 of 1 heads is less than one head a mask"):
        drive(METHODS["css"].search(asked), inside(World(np.zeros(4), 3.0, 1)))
