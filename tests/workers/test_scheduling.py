from math import ceil

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import crossed

from caploc.engine import Ask
from caploc.tasks.task import Generate
from caploc.workers.distributed import AskBatch
from caploc.workers.scheduling import LEAD, RowQueue, WorkerRates, asks_by_row, row_blocks

LONG = "x" * (LEAD + 50)
TEXTS = st.lists(st.text(max_size=12), min_size=1, max_size=6)


def queue_of(blocks):
    queue = RowQueue()
    queue.add(blocks)
    return queue


@settings(max_examples=40)
@given(TEXTS, st.integers(1, 20), st.integers(1, 3), st.lists(st.integers(1, 30), min_size=1))
def test_every_row_is_taken_once_whatever_sizes_are_asked_for(texts, masks, parts, sizes):
    rows = asks_by_row(crossed(masks, texts, parts))
    queue, taken, turn = queue_of(row_blocks(rows)), [], 0
    while queue.left:
        got = queue.take(sizes[turn % len(sizes)])
        assert 0 < len(got) <= 1.5 * sizes[turn % len(sizes)]
        taken += got
        turn += 1
        assert queue.left == len(rows) - len(taken)
    assert sorted(taken) == sorted(rows)
    assert queue.take(5) == ()


def test_rows_of_one_mask_stay_together_where_prompts_begin_alike():
    prompts = [LONG + end for end in "abcd"]
    found = row_blocks(asks_by_row(crossed(5, prompts)))
    assert sorted(found.values()) == [list(range(4 * m, 4 * m + 4)) for m in range(5)]


def test_rows_of_one_prompt_stay_together_where_prompts_do_not_begin_alike():
    found = [*row_blocks(asks_by_row(crossed(5, ["1+1=", "2+2=", "10+10="]))).values()]
    assert [len(block) for block in found] == [5, 5, 5]
    assert found[0] == [2, 5, 8, 11, 14]  # the longest prompt first


def test_a_block_is_not_cut_to_fill_a_group_that_is_half_full():
    queue = queue_of({0: [1, 2, 3], 1: [4, 5, 6, 7]})
    assert queue.take(4) == (1, 2, 3)
    assert queue.take(4) == (4, 5, 6, 7)


def test_a_block_that_must_stay_whole_does():
    queue = queue_of({0: [*range(30)], 1: [*range(30, 60)], 2: [*range(60, 100)]})
    assert queue.take(10, whole=30) == tuple(range(30))
    assert queue.take(50, whole=30) == tuple(range(30, 60))
    assert queue.take(5, whole=30) == tuple(range(60, 65))


def test_blocks_are_parted_only_at_the_end():
    pace = WorkerRates()
    pace.learn(1, 20, 2.0)
    assert pace.whole(1, 3, [1, 2]) == 450  # three quarters of a minute's rows
    assert pace.whole(1, 2, [1, 2]) == 0


def test_a_long_block_is_cut():
    queue = queue_of({0: [*range(100)]})
    assert queue.take(10) == tuple(range(10))
    assert queue.take(10) == tuple(range(10, 20))


def test_the_choices_of_one_question_are_one_row():
    assert {n: len(asks) for n, asks in asks_by_row(crossed(2, ["a", "b"], 4)).items()} == {
        n: 4 for n in range(4)
    }


@settings(max_examples=40)
@given(TEXTS, st.integers(1, 9), st.integers(1, 4))
def test_a_bundle_unpacks_to_the_asks_it_was_made_of(texts, masks, parts):
    asks = crossed(masks, texts, parts)
    batch = AskBatch.of(asks)
    back = batch.asks()
    assert [(a.key, a.request) for a in back] == [(a.key, a.request) for a in asks]
    assert all(
        np.array_equal(a.knocked_out, b.knocked_out) for a, b in zip(asks, back, strict=True)
    )
    assert len(batch.masks) == masks
    assert len(batch.requests) == len(set(texts)) * parts


def test_a_mask_of_any_width_travels_whole():
    for width in (1, 7, 8, 9, 1000):
        mask = np.random.default_rng(width).random(width) < 0.5
        (ask,) = AskBatch.of([Ask((0, 0), Generate("a", "{}"), mask)]).asks()
        assert ask.knocked_out.dtype == bool
        assert np.array_equal(ask.knocked_out, mask)


def makespan(speeds: list[float], rows: int, overhead: float) -> tuple[float, int]:
    """Seconds until the last of these workers is done, and groups, as `WorkerRates` sizes them."""
    pace, free, left, groups = WorkerRates(), dict.fromkeys(range(len(speeds)), 0.0), rows, 0
    while left:
        worker = min(free, key=free.__getitem__)
        now = free[worker]
        held = {w: ceil((t - now) * speeds[w]) for w, t in free.items() if t > now}
        size = min(left, pace.size(worker, left, list(free), held))
        seconds = overhead + size / speeds[worker]
        pace.learn(worker, size, seconds)
        free[worker] += seconds
        left, groups = left - size, groups + 1
    return max(free.values()), groups


@settings(max_examples=40)
@given(st.lists(st.floats(50, 400), min_size=1, max_size=40))
def test_workers_of_different_speeds_end_together(speeds):
    rows = int(60 * sum(speeds))  # a minute's work at best
    seconds, groups = makespan(speeds, rows, overhead=0.005)
    assert seconds <= 60 * 1.1
    assert groups <= 7 * len(speeds)  # what rows share is computed once a group


def test_a_group_is_most_of_a_fair_part_and_the_last_one_all_of_it():
    pace = WorkerRates()
    pace.learn(1, 400, 4.0)
    pace.learn(2, 1200, 4.0)
    assert pace.size(1, 12_000, [1, 2], {}) == 2250  # three quarters of a quarter
    assert pace.size(2, 12_000, [1, 2], {}) == 6750  # three quarters of three quarters
    assert pace.size(2, 640, [1, 2], {}) == 480  # all of its part: less than eight seconds' work
    assert pace.size(1, 10**5, [1, 2], {}) == 10_000
    pace.past[2] = 5.0, 1.0
    assert pace.size(2, 10**5, [1, 2], {}) == 600  # two minutes
    pace.past[2] = 300.0, 1.0
    assert pace.size(3, 2400, [1, 2, 3], {}) == 100  # nothing is known of it: an eighth
    assert pace.size(3, 60, [1, 2, 3], {}) == 16
    assert pace.size(3, 3, [1, 2, 3], {}) == 1


def test_what_others_still_have_to_do_counts_for_a_fair_part():
    pace = WorkerRates()
    pace.learn(1, 100, 10.0)
    pace.learn(2, 100, 10.0)
    assert pace.size(1, 1000, [1, 2], {}) == 375
    assert pace.size(2, 625, [1, 2], {1: 375}) == 375
    assert pace.size(2, 20, [1, 2], {1: 200}) == 20  # the other one is busy long enough
    assert pace.size(2, 20, [1, 2], {1: 5}) == 20  # less than three seconds, and nobody else idle
    assert pace.size(2, 20, [1, 2], {}) == 10


def test_the_last_groups_and_the_one_in_hand_say_how_fast_a_worker_is():
    pace = WorkerRates()
    assert pace.rate(1) is None
    pace.learn(1, 10, 10.0)  # the first one, with all that is done once
    assert pace.rate(1) == 1
    pace.learn(1, 195, 5.0)
    assert pace.rate(1) == 20
    pace.under_way[1] = 40, 15.0
    assert pace.rate(1) == 240 / 25
    pace.learn(1, 100, 20.0)
    assert pace.rate(1) == 200 / 25
    pace.forget(1)
    assert pace.rate(1) is None
