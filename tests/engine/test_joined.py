"""Joined segments: rows read what they would read one after another; nothing stands twice."""

import gc
import random
import weakref

import pytest
import torch

from caploc.engine.attention import DecodeAttention, KeySlots, Segment, SharedSegments

GROUPS, HEADS, WIDTH, LAYERS = 2, 6, 8, 3


def segment(length, below=None):
    """A segment of its own, but for the layers that it has of another."""

    def made():
        return [torch.randn(GROUPS, length, WIDTH) for _ in range(LAYERS)]

    found = Segment(length, made(), made())
    return found if below is None else found.above(1, below)


def copied(segments):
    """The same numbers, apart from what is done to the segments."""
    known = {id(each): each.copied() for each in segments if each is not None}
    return [None if each is None else known[id(each)] for each in segments]


def shared():
    return SharedSegments(LAYERS, torch.device("cpu"), torch.float32)


def attended(room, readers, before):
    """What each layer reads for rows that are fed a token each."""
    attention = DecodeAttention(room, torch.tensor(before), readers, max(before) + 1)
    torch.manual_seed(1)
    return [
        attention.attend(
            layer,
            torch.randn(HEADS, len(before), WIDTH),
            torch.randn(GROUPS, len(before), WIDTH),
            torch.randn(GROUPS, len(before), WIDTH),
            WIDTH**-0.5,
        )
        for layer in range(LAYERS)
    ]


@pytest.mark.parametrize("seed", range(8))
def test_rows_read_joined_segments_as_they_read_each(seed, request):
    torch.manual_seed(seed)
    drawn = random.Random(seed)
    intact = segment(5)
    kinds = [intact, segment(5, intact), segment(5, intact), segment(5), segment(9), None]
    segments = drawn.choices(kinds[drawn.randrange(3) : 4 + drawn.randrange(3)], k=12)
    before = [drawn.randrange(4) for _ in segments]
    one_by_one = shared().readers(copied(segments))
    expected = attended(KeySlots(12, 8, LAYERS), one_by_one, before)
    request.getfixturevalue("by_kernel")
    joined = shared()
    joined.keep([*segments, intact])
    got = attended(KeySlots(12, 8, LAYERS), joined.readers(segments), before)
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.usefixtures("by_kernel")
def test_shared_keys_are_read_once_by_neighbours_in_order():
    intact = segment(5)
    rows = [intact, *(segment(5, intact) for _ in range(3))] * 2
    joined = shared()
    joined.keep(rows)
    readers = joined.readers(rows)
    assert [each.joined.keys.shape[1] for each in readers] == [5, 20, 20]
    assert readers[0].together.order.tolist() == list(range(8))
    assert readers[1].together.order.tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    assert readers[1].together is readers[2].together


@pytest.mark.usefixtures("by_kernel")
def test_what_no_row_reads_is_let_go_and_nothing_stands_twice():
    segments = [segment(5) for _ in range(3)]
    alone = [weakref.ref(each.keys[0].untyped_storage()) for each in segments]
    joined = shared()
    joined.keep(segments)
    gc.collect()
    assert len({each.keys[0].untyped_storage().data_ptr() for each in segments}) == 1
    assert not any(each() for each in alone)
    assert segments[0].keys[0].untyped_storage().nbytes() == 3 * GROUPS * 5 * WIDTH * 4
    before = segments[0].keys[0]
    joined.keep(segments)
    assert segments[0].keys[0] is before
    del segments[1:]
    joined.keep(segments)
    assert segments[0].keys[0].untyped_storage().nbytes() == GROUPS * 5 * WIDTH * 4
    joined.keep([])
    assert joined.joined == [None] * LAYERS
