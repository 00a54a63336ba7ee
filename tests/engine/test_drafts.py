"""Drafts and their odds against what they are the answer to."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caploc.engine.decoding import (
    FIRST,
    GROWTH,
    MOST,
    PROBES,
    REMEMBERED,
    AnswerCache,
    AnswerTree,
    DraftOdds,
)

answers = st.lists(st.integers(0, 2), max_size=5).map(tuple)


def remembered(texts):
    memory = AnswerTree()
    for text in texts:
        memory.add(text)
    return memory


@given(st.lists(answers, max_size=20), st.integers(0, 6))
def test_a_draft_goes_on_as_most_answers_did(texts, longest):
    drafted = tuple(remembered(texts).draft(longest))
    assert len(drafted) <= longest
    for end in range(len(drafted)):
        begun = [text for text in texts if text[:end] == drafted[:end] and len(text) > end]
        next_tokens = Counter(text[end] for text in begun)
        assert next_tokens[drafted[end]] == max(next_tokens.values())
    if len(drafted) < longest:  # nothing more is known
        assert not any(len(t) > len(drafted) and t[: len(drafted)] == drafted for t in texts)


def test_the_majority_is_of_those_that_began_alike():
    memory = remembered([(1, 2), (1, 2), (1, 3), (4, 3), (4, 3), (4, 3), (4, 5)])
    assert memory.draft(9) == [4, 3]
    assert remembered([(1, 2), (1, 2), (1, 3), (1, 3), (1, 3), (4, 2)]).draft(9) == [1, 3]


def test_only_so_many_different_answers_are_kept_and_later_ones_still_count():
    memory = remembered([(0, n) for n in range(MOST)])
    memory.add((0, MOST))
    assert MOST not in memory.root.next[0].next
    memory.add((0, 5))
    assert memory.draft(2) == [0, 5]
    assert memory.root.next[0].times == MOST + 2


def test_equal_answers_are_one_however_often_they_come():
    memory = remembered([(0, 1)] * 2 * MOST)
    assert (memory.kept, memory.size) == (1, 3)
    memory.add((7, 8))
    assert memory.root.next[7].next[8].times == 1
    memory.add((0,))  # begins as one does: nothing new
    assert memory.kept == 2


def test_answers_to_the_prompt_asked_for_least_recently_are_forgotten_first():
    memory = AnswerCache(most=3 * 9)
    for prompt in range(3):
        memory.of(prompt).add(range(8))
    memory.of(0)
    memory.of(3).add(range(8))
    memory.of(3)
    assert list(memory.trees) == [2, 0, 3] and memory.held == memory.most
    assert memory.of(0).draft(9) == list(range(8))
    assert memory.of(1).draft(9) == []


@given(st.lists(st.tuples(st.integers(0, 6), answers), max_size=60), st.integers(1, 40))
def test_what_is_remembered_has_a_bound(asked, most):
    memory = AnswerCache(most)
    for prompt, text in asked:
        found = memory.of(prompt)
        assert memory.held == sum(each.size for each in memory.trees.values())
        assert memory.held <= most or list(memory.trees) == [prompt]
        found.add(text)


def test_drafts_that_are_always_right_grow():
    odds, lengths = DraftOdds(), []
    for _ in range(3):
        lengths.append(odds.length())
        odds.saw(lengths[-1], lengths[-1])
    assert lengths == [FIRST, grown := GROWTH * FIRST + FIRST, GROWTH * grown + FIRST]


def test_drafts_that_are_never_right_end_but_for_a_probe_now_and_then():
    odds = DraftOdds()
    for _ in range(20):
        odds.saw(5, 0)
    lengths = [odds.length() for _ in range(10 * PROBES)]
    assert Counter(lengths) == {0: 10 * (PROBES - 1), 1: 10}


def test_drafts_pay_again_after_they_did_not():
    odds = DraftOdds()
    for _ in range(20):
        odds.saw(5, 0)
    for _ in range(40):
        odds.saw(1, 1)
    assert odds.length() >= 1


@pytest.mark.parametrize("price", [0.1, 0.3, 0.7, 0.95])
@pytest.mark.parametrize("chance", [0.5, 0.9])
def test_a_draft_is_as_long_as_its_last_token_is_worth_its_price(price, chance):
    """If each token is right with the same chance, token i is reached and right chance**i times."""
    odds, rows = DraftOdds(), 10_000
    odds.checking = price
    deep = 60
    odds.reached = [rows * chance**place for place in range(deep)]
    odds.right = [reached * chance for reached in odds.reached]
    expected = max(place for place in range(deep) if chance**place >= price)
    assert abs(odds.length() - expected) <= (chance**expected < price * 1.01)


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), min_size=1, max_size=50))
def test_the_share_of_right_drafts_is_that_of_kaplan_and_meier(seen):
    odds = DraftOdds()
    for drafted, right in seen:
        odds.saw(drafted, min(right, drafted))
    for place, (reached, right) in enumerate(zip(odds.reached, odds.right, strict=True)):
        assert reached == sum(d > place and r >= place for d, r in seen)
        assert right == sum(d > place and r > place for d, r in seen)


def test_long_ago_counts_less():
    odds = DraftOdds()
    for _ in range(REMEMBERED):
        odds.saw(1, 1)
    for _ in range(2 * REMEMBERED):
        odds.saw(1, 0)
    assert odds.right[0] / odds.reached[0] < 0.2


def test_a_price_is_known_from_the_first_step_and_follows_the_rows_of_steps():
    odds = DraftOdds()
    odds.fed(8, alone=24.0)
    assert odds.checking == 1 / (1 + 24 / 8)  # a token drafted over one said
    for _ in range(100):
        odds.fed(48, alone=24.0)
    assert odds.checking == pytest.approx(2 / 3, abs=1e-3)
