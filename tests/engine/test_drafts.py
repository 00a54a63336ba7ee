"""How far drafts go, against what they are the answer to."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caploc.engine.decoding import FIRST, GROWTH, PRICE, PROBES, Drafts


def test_drafts_that_are_always_right_grow():
    drafts, lengths = Drafts(), []
    for _ in range(3):
        lengths.append(drafts.length())
        drafts.saw(lengths[-1], lengths[-1])
    assert lengths == [FIRST, grown := GROWTH * FIRST + FIRST, GROWTH * grown + FIRST]


def test_drafts_that_are_never_right_end_but_for_a_probe_now_and_then():
    drafts = Drafts()
    for _ in range(20):
        drafts.saw(5, 0)
    lengths = [drafts.length() for _ in range(10 * PROBES)]
    assert Counter(lengths) == {0: 10 * (PROBES - 1), 1: 10}


@pytest.mark.parametrize("chance", [0.5, 0.9])
def test_a_draft_is_as_long_as_its_last_token_is_worth_its_price(chance):
    """If each token is right with the same chance, token i is reached and right chance**i times."""
    drafts, rows = Drafts(), 10**9
    drafts.reached = [round(rows * chance**place) for place in range(60)]
    drafts.right = [round(reached * chance) for reached in drafts.reached]
    expected = max(place for place in range(60) if chance**place >= PRICE)
    assert abs(drafts.length() - expected) <= (chance**expected < PRICE * 1.01)


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), min_size=1, max_size=50))
def test_the_share_of_right_drafts_is_that_of_kaplan_and_meier(seen):
    drafts = Drafts()
    for drafted, right in seen:
        drafts.saw(drafted, min(right, drafted))
    for place, (reached, right) in enumerate(zip(drafts.reached, drafts.right, strict=True)):
        assert reached == sum(d > place and r >= place for d, r in seen)
        assert right == sum(d > place and r > place for d, r in seen)
