import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from caploc.recovery.estimate import Estimate, Measurements, survived

NAN = float("nan")


def measurements(masks, mask, example, outcome):
    return Measurements(
        np.array(masks, dtype=bool), np.array(mask), np.array(example), np.array(outcome)
    )


TWO = measurements([[1, 0, 0], [0, 1, 1]], [0, 1, 1], [5, 5, 6], [1.0, NAN, 0.5])


def random_measurements(seed, rows=12):
    random = np.random.default_rng(seed)
    return Measurements(
        random.random((4, 3)) < 0.5,
        random.integers(0, 4, rows),
        random.integers(0, 6, rows),
        random.choice([0.0, 1.0, NAN], rows),
    )


@given(seeds=st.lists(st.integers(0, 99), min_size=1, max_size=4))
def test_joined_measurements_keep_every_rows_mask(seeds):
    parts = [random_measurements(seed) for seed in seeds]
    whole = Measurements.none(3)
    for part in parts:
        whole = whole.joined(part)
    cut = np.concatenate([part.masks[part.mask] for part in parts])
    assert (whole.masks[whole.mask] == cut).all()
    assert whole.example.tolist() == [e for part in parts for e in part.example]
    outcomes = np.concatenate([part.outcome for part in parts])
    assert np.array_equal(whole.outcome, outcomes, equal_nan=True)


def test_means_leave_out_what_could_not_be_scored():
    assert TWO.mask_means().tolist() == [1.0, 0.5]
    unscored = measurements([[1]], [0], [0], [NAN])
    assert np.isnan(unscored.mask_means()).all()


def test_of_an_example_asked_twice_the_last_outcome_counts():
    twice = measurements([[1]], [0, 0, 0], [4, 4, 5], [1.0, 0.0, NAN])
    assert twice.by_example() == {4: 0.0}


def test_some_rows_keep_their_masks():
    whole = TWO.joined(TWO)
    part = whole.where(np.array([False, False, True, True, False, False]))
    assert part.mask.tolist() == [1, 2] and part.example.tolist() == [6, 5]
    assert part.masks is whole.masks


def test_the_most_needed_head_comes_first_and_unknown_ones_count_as_idle():
    unknown = np.full(4, NAN)
    effect = np.array([0.1, NAN, -0.3, -0.1])
    estimate = Estimate("any", effect, unknown, unknown, unknown)
    assert estimate.order() == [2, 3, 1, 0]
    assert estimate.needed(4) == [2, 3] and estimate.needed(1) == [2]


def test_a_row_survives_if_it_is_right_or_has_lost_little():
    seen = measurements([[1]], [0, 0, 0], [0, 1, 2], [1.0, 0.0, NAN])
    assert survived(seen, {0: 1.0, 1: 1.0, 2: 1.0}).tolist() == [True, False, False]
    # Intact outcomes -1 and -3 have a standard deviation of 1: a loss of 1.5 is the border.
    near = measurements([[1]], [0] * 4, [0, 0, 1, 1], [-2.4, -2.6, -4.4, NAN])
    assert survived(near, {0: -1.0, 1: -3.0}).tolist() == [True, False, True, False]
