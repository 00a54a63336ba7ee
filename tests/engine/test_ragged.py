"""Rows that are read end to end by a kernel say what rows read one at a time say."""

import pytest
import test_families as families
import torch
from kernel import slowly
from test_decoding import PROMPTS, asks_for, masks, texts, truth  # noqa: F401

from caploc.engine.batch import BatchEngine
from caploc.engine.kernels import (
    Lengths,
    Pairs,
    RaggedRows,
    attend_pairs,
    reads_ragged,
)


@pytest.mark.parametrize("slots", [None, 3, 8])
@pytest.mark.usefixtures("short_prefixes")
def test_texts_are_those_of_single_rows(loaded, masks, truth, slots, by_kernel):  # noqa: F811
    assert texts(BatchEngine(loaded, slots), asks_for(PROMPTS, masks)) == truth
    assert {True, False} == set(by_kernel) and len(by_kernel) > 100


@pytest.mark.usefixtures("short_prefixes")
def test_scores_are_those_of_single_rows(by_kernel):
    families.engine.cache_clear()  # before, one that chose without the kernel; then, the one here
    families.test_log_probabilities_of_choices_are_those_of_plain_forward_passes("qwen2")
    families.engine.cache_clear()
    assert by_kernel


def test_neighbours_that_share_a_segment_are_a_run():
    class Kept:
        def __init__(self, length):
            self.length = length

    one, two = Kept(7), Kept(3)
    rows = RaggedRows.of([(4, one), (2, one), (5, two), (1, one)], torch.device("cpu"))
    assert rows.own.asking.ends.tolist() == rows.own.read.ends.tolist() == [0, 4, 6, 11, 12]
    assert rows.shared.asking.ends.tolist() == [0, 6, 11, 12]
    assert rows.shared.read.ends.tolist() == [0, 7, 10, 17]
    assert rows.segments == [one, two, one]
    assert rows.own.asking.ends.dtype == torch.int32
    assert RaggedRows.of([(2, None)], torch.device("cpu")).shared is None
    with pytest.raises(AssertionError, match="others none"):
        RaggedRows.of([(2, None), (2, one)], torch.device("cpu"))


def test_what_the_kernel_cannot_read_is_read_otherwise():
    half = torch.zeros(4, 2, 64, dtype=torch.bfloat16)
    assert not reads_ragged(half, half)  # on a CPU


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("asking", "read"), [([3, 1, 17], [9, 30, 17]), ([1] * 3, [700, 1, 40])])
def test_the_kernel_itself_reads_as_one_row_at_a_time(causal, asking, read):
    torch.manual_seed(0)
    queries = torch.randn(8, sum(asking), 64)
    keys, values = torch.randn(2, 2, sum(read), 64)
    sides = []
    for lengths in (asking, read):
        ends = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        sides.append(Lengths(ends, max(lengths)))
    expected = slowly(queries, keys, values, Pairs(*sides), 0.125, causal=causal)
    there = Pairs(*(Lengths(side.ends.cuda(), side.longest) for side in sides))
    on_device = (x.cuda().bfloat16() for x in (queries, keys, values))
    for ours, theirs in zip(
        attend_pairs(*on_device, there, 0.125, causal=causal), expected, strict=True
    ):
        torch.testing.assert_close(ours.float().cpu(), theirs, rtol=0.03, atol=0.03)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_kernel_itself_begins_where_it_is_told_and_reads_what_is_used():
    torch.manual_seed(0)
    begins, used, asked = [100, 0, 50, 150, 50], [5, 40, 1, 50, 17], 4
    queries = torch.randn(1, len(used) * asked, 64)
    keys, values = torch.randn(2, 1, 200, 64)
    ends = torch.arange(len(used) + 1, dtype=torch.int32) * asked
    starts = torch.tensor([*begins, 0], dtype=torch.int32)
    count = torch.tensor(used, dtype=torch.int32)
    pairs = Pairs(Lengths(ends, asked), Lengths(starts, 50, count))
    expected = slowly(queries, keys, values, pairs, 0.125, causal=False)
    there = Pairs(Lengths(ends.cuda(), asked), Lengths(starts.cuda(), 50, count.cuda()))
    on_device = (x.cuda().bfloat16() for x in (queries, keys, values))
    found = attend_pairs(*on_device, there, 0.125, causal=False)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.float().cpu(), theirs, rtol=0.03, atol=0.03)
