from dataclasses import replace

import numpy as np
import pytest
from driven import drive, problem
from test_likelihood import WORLD, of_budget, searched

from caploc.search.state import measure_unsteadiness

TRIAL = "trial of likelihoods"


@pytest.mark.parametrize(("noise", "opening"), [(0.3, "masks"), (0.02, "likelihood")])
def test_where_rows_are_few_a_trial_tells_whether_likelihoods_are_steady(noise, opening):
    run = searched(replace(WORLD, noise=noise), budget=320)
    (trial,) = run.of(TRIAL)
    assert len(trial.mask) == 16 * 2  # heads on two examples: a tenth of the rows
    assert run.found.diagnostics["opening"] == opening
    assert run.found.diagnostics["rows"] == of_budget(run) <= 320


def test_the_trial_measures_how_far_any_head_moves_the_odds():
    quiet = replace(problem(40), likelihood=0)
    shares = {False: 0.9, True: 0.8}  # of the right answer, intact and with a head gone

    def answer(plan):
        return np.log([shares[bool(plan.masks[mask].any())] for mask in plan.mask])

    moved = []
    trial = measure_unsteadiness(quiet, [3, 5], range(16))
    drive(keep(trial, moved), answer)
    assert moved == [pytest.approx(np.log(9) - np.log(4))]


def keep(asking, kept):
    kept.append((yield from asking))


def test_with_rows_enough_or_by_word_nothing_is_tried():
    enough = searched(replace(WORLD, noise=0.3), budget=341)
    assert not enough.of(TRIAL) and enough.found.diagnostics["opening"] == "likelihood"
    assert enough.found.diagnostics["unsteadiness"] is None
    for opening in ("likelihood", "masks"):
        told = searched(replace(WORLD, noise=0.3), budget=320, opening=opening)
        assert not told.of(TRIAL) and told.found.diagnostics["opening"] == opening
