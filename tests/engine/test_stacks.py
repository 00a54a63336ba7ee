"""Stacked segments: rows read what they would read one after another; nothing stands twice."""

import gc
import random
import weakref

import pytest
import torch
from test_decoding import PROMPTS, asks_for, loaded, masks, texts, truth  # noqa: F401

from caploc.engine.attention import DecodeAttention, KeySlots, Segment, SharedKeys, shared_layers
from caploc.engine.batch import BatchEngine
from caploc.engine.kernels import StackedKeys, attend_stacked
from caploc.engine.stacks import PLACES, SegmentStacks

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


def read_by(stacks, segments):
    """What each layer reads for rows of these segments."""
    readers = stacks.readers(segments)
    return readers.layers(readers.sent)


def attended(room, shared, before):
    """What each layer reads for rows that are fed a token each."""
    attention = DecodeAttention(room, torch.tensor(before), shared, max(before) + 1)
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


@pytest.mark.parametrize("ways", [["stacked"], ["stacked", "by_kernel"]])
@pytest.mark.parametrize("seed", range(8))
def test_rows_read_stacked_segments_as_they_read_each(seed, ways, request):
    torch.manual_seed(seed)
    drawn = random.Random(seed)
    intact = segment(5)
    kinds = [intact, segment(5, intact), segment(5, intact), segment(5), segment(9), None]
    segments = drawn.choices(kinds[drawn.randrange(3) : 4 + drawn.randrange(3)], k=12)
    before = [drawn.randrange(4) for _ in segments]
    one_by_one = copied(segments)
    expected = attended(KeySlots(12, 8, LAYERS), shared_layers(one_by_one, LAYERS), before)
    for way in ways:
        request.getfixturevalue(way)
    stacks = SegmentStacks(LAYERS)
    stacks.keep([*segments, intact])
    got = attended(KeySlots(12, 8, LAYERS), read_by(stacks, segments), before)
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.usefixtures("stacked")
def test_all_masks_are_read_in_one_product_and_shared_keys_once():
    intact = segment(5)
    rows = [intact, *(segment(5, intact) for _ in range(3))] * 2
    stacks = SegmentStacks(LAYERS)
    stacks.keep(rows)
    readers = read_by(stacks, rows)
    assert [len(layer) for layer in readers] == [1] * LAYERS
    assert [len(layer[0].keys) for layer in readers] == [1, 4, 4]
    assert all(isinstance(layer[0], StackedKeys) for layer in readers)


@pytest.mark.usefixtures("stacked")
def test_masks_with_very_different_numbers_of_rows_are_read_one_by_one():
    few = [segment(5) for _ in range(2 * PLACES)]
    rows = [few[0]] * 30 + few[1:]
    stacks = SegmentStacks(LAYERS)
    stacks.keep(rows)
    assert all(isinstance(each, SharedKeys) for layer in read_by(stacks, rows) for each in layer)


@pytest.mark.usefixtures("stacked")
def test_what_no_row_reads_is_let_go_and_nothing_stands_twice():
    segments = [segment(5) for _ in range(3)]
    alone = [weakref.ref(each.keys[0].untyped_storage()) for each in segments]
    stacks = SegmentStacks(LAYERS)
    stacks.keep(segments)
    gc.collect()
    assert len({each.keys[0].untyped_storage().data_ptr() for each in segments}) == 1
    assert not any(each() for each in alone)
    assert segments[0].keys[0].untyped_storage().nbytes() == 3 * GROUPS * 5 * WIDTH * 4
    del segments[1:]
    stacks.keep(segments)
    assert segments[0].keys[0].untyped_storage().nbytes() == GROUPS * 5 * WIDTH * 4
    stacks.keep([])
    assert not any(layer.stacks for layer in stacks.layers)


@pytest.mark.parametrize("slots", [None, 3, 8])
@pytest.mark.usefixtures("stacked", "short_prefixes")
def test_stacked_rows_say_what_one_row_says_alone(loaded, masks, truth, slots):  # noqa: F811
    assert texts(BatchEngine(loaded, slots), asks_for(PROMPTS, masks)) == truth


@pytest.mark.usefixtures("stacked")
def test_a_newcomer_takes_a_free_place_and_no_other_segment_moves():
    first, second, third = (segment(5) for _ in range(3))
    values = {id(each): each.copied() for each in (first, second, third)}
    stacks = SegmentStacks(LAYERS)
    stacks.keep([first, second])
    before = [layer.stacks[5].keys.data_ptr() for layer in stacks.layers]
    stacks.keep([second, third])  # the first is still held here, and keeps its keys
    assert [layer.stacks[5].keys.data_ptr() for layer in stacks.layers] == before
    for each in (first, second, third):
        for layer in range(LAYERS):
            torch.testing.assert_close(each.keys[layer], values[id(each)].keys[layer])
            torch.testing.assert_close(each.values[layer], values[id(each)].values[layer])
    assert first.keys[0].untyped_storage().nbytes() == GROUPS * 5 * WIDTH * 4


@pytest.mark.usefixtures("stacked")
def test_large_half_precision_products_stay_finite():
    """Where a device cannot hand products on in 32 bits, queries are scaled before."""
    large = torch.full((1, 1, 1, 64), 40.0, dtype=torch.float16)
    keys = torch.cat([large, -large], 2)
    values = torch.tensor([[[[1.0] + [0.0] * 63, [0.0] * 64]]], dtype=torch.float16)
    bias = torch.zeros(1, 1, 2)
    read = attend_stacked(large, keys, values, bias, [], 0.125)
    assert read[0, 0, 0, :2].tolist() == [1.0, 0.0]
