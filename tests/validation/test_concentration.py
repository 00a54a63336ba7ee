"""Answers given too often."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from caploc.validation.categories import CHANCE, EXCESS, answer_shares, overused


def said(**times):
    """So many of each answer."""
    return [answer for answer, count in times.items() for _ in range(count)]


@pytest.mark.parametrize(
    ("times", "usual", "found"),
    [
        ({"yes": 70, "no": 30}, {"yes": 0.5, "no": 0.5}, []),  # a leaning
        ({"yes": 98, "no": 2}, {"yes": 0.5, "no": 0.5}, ["yes"]),
        ({"yes": 95, "no": 5}, {"yes": 0.93, "no": 0.07}, []),  # it is nearly always yes
        ({"3": 40, "7": 60 - 40, "5": 40}, {str(n): 0.1 for n in range(10)}, []),
        ({"3": 80, "7": 20}, {str(n): 0.1 for n in range(10)}, ["3"]),
        ({"prime": 60, "a": 20, "b": 20}, {}, ["prime"]),
        ({"prime": 3}, {}, []),  # of three nothing follows
        ({"x": 1}, {}, []),
        ({}, {}, []),
    ],
)
def test_an_answer_stands_out_against_what_is_usual(times, usual, found):
    assert [common.answer for common in overused(said(**times), usual)] == found


@given(st.integers(1, 200), st.data(), st.floats(0, 1))
def test_both_bounds_hold_for_all_that_is_found(count, data, usual):
    times = data.draw(st.integers(0, count))
    answers = ["a"] * times + [f"other {n}" for n in range(count - times)]
    found = [common for common in overused(answers, {"a": usual}) if common.answer == "a"]
    normal = max(usual, 1 / (count + 2))
    if found:
        assert found[0].count == times and found[0].usual == normal
        assert times / count - normal >= EXCESS * (1 - normal)
        assert stats.binom.sf(times - 1, count, normal) < CHANCE
    elif times and normal < 1:
        too_few = times / count - normal < EXCESS * (1 - normal) + 1e-9
        assert too_few or stats.binom.sf(times - 1, count, normal) >= CHANCE


@given(st.lists(st.sampled_from("abcd"), max_size=300))
def test_what_is_said_as_often_as_usual_never_stands_out(answers):
    assert overused(answers, answer_shares(answers)) == []


def test_shares_are_drawn_towards_rare():
    assert answer_shares("aab") == {"a": 3 / 5, "b": 2 / 5}
    assert answer_shares([]) == {}
