import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured import one_score_a_mask, scattered

from caploc.recovery import Measurements
from caploc.recovery.estimate import SHRINK, Rows, is_binary, kinds
from worlds.simulate import World


def plain_residuals(outcome, example, cell):
    """The docstring of `Rows.residuals`, row by row."""
    rows = range(len(outcome))
    centred = [outcome[r] - outcome[cell == cell[r]].mean() for r in rows]
    left = []
    for r in rows:
        others = [centred[o] for o in rows if example[o] == example[r] and o != r]
        left.append(centred[r] - sum(others) / (len(others) + SHRINK))
    left = np.array(left)
    if set(outcome) - {0.0, 1.0}:
        left = np.clip(left, *np.quantile(left, [0.02, 0.98]))
    return [left[r] - left[cell == cell[r]].mean() for r in rows]


@pytest.mark.parametrize("ask", [World.outcomes, World.logprobs])
@given(seed=st.integers(0, 99))
def test_residuals_are_what_kind_and_difficulty_leave(ask, seed):
    world = World.planted(12, 2, intact=0.6, seed=seed)
    seen, intact = scattered(world, 60, examples=range(9), seed=seed, ask=ask)
    rows = Rows.of(seen, intact)
    expected = plain_residuals(rows.outcome, rows.example, rows.kind)
    assert rows.residuals() == pytest.approx(np.array(expected))


def test_an_examples_difficulty_is_taken_off():
    """Outcomes that are difficulty and nothing else leave next to nothing."""
    example = np.repeat(np.arange(5), 400)
    masks = np.random.default_rng(0).random((2000, 3)) < 0.3
    seen = Measurements(masks, np.arange(2000), example, example / 4)
    left = Rows.of(seen, {e: e / 4 for e in range(5)}).residuals()
    # 399 other rows against a pull of 4.
    assert np.abs(left).max() < 0.01 < np.ptp(seen.outcome)


def test_one_collapsed_row_does_not_decide():
    masks = np.ones((500, 1), dtype=bool)
    scores = np.linspace(0, 1, 500)
    scores[7] = -1e6
    left = Rows.of(one_score_a_mask(masks, scores), {0: 0.5}).residuals()
    assert np.abs(left).max() < 1.1


def test_rows_of_unknown_examples_and_without_a_score_are_left_out():
    masks = np.eye(3, dtype=bool)
    seen = Measurements(
        masks, np.array([0, 1, 2, 2]), np.array([5, 6, 5, 7]), np.array([1.0, np.nan, 0.0, 1.0])
    )
    rows = Rows.of(seen, {5: 1.0, 6: 1.0})
    assert rows.example.tolist() == [5, 5] and rows.mask.tolist() == [0, 2]
    assert rows.cuts.toarray().tolist() == [[1, 0, 0], [0, 0, 1]]


def test_only_right_and_wrong_answers_have_kinds():
    assert kinds({4: 1.0, 5: 0.0}) == {4: 1, 5: 0}
    assert kinds({4: 1.0, 5: -0.7}) == {4: 1, 5: 1}
    assert is_binary({4: 1.0, 5: 0.0}) and not is_binary({4: 0.5})


def test_no_rows_are_rows_too():
    for intact in ({}, {0: 1.0}):
        rows = Rows.of(Measurements.none(4), intact)
        assert len(rows.outcome) == 0 and rows.cuts.shape == (0, 4)
