import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caploc.errors import BadOption, UnknownName
from caploc.heads import Head, HeadGrid

UNEVEN = HeadGrid((2, 0, 3), (1, 1, 3))
counts = st.lists(st.integers(0, 5), min_size=1, max_size=6).map(tuple)


@given(counts)
def test_every_head_has_its_own_column_and_reads_back(heads_per_layer):
    grid = HeadGrid(heads_per_layer)
    columns = [grid.column(Head.parse(str(head))) for head in grid.heads]
    assert columns == list(range(grid.size))


@given(counts, st.data())
def test_a_mask_names_the_heads_it_was_made_of(heads_per_layer, data):
    grid = HeadGrid(heads_per_layer)
    columns = data.draw(st.sets(st.integers(0, grid.size - 1))) if grid.size else set()
    heads = [grid.heads[column] for column in sorted(columns)]
    assert grid.named(grid.mask(reversed(heads))) == heads


def test_layers_without_heads_take_no_columns():
    assert UNEVEN.layer_slices == [slice(0, 2), slice(2, 2), slice(2, 5)]
    assert UNEVEN.size == 5 and UNEVEN.layers == 3
    assert UNEVEN.column(Head(2, 0)) == 2


def test_heads_that_read_one_key_value_head_share_a_group():
    assert [UNEVEN.group(head) for head in UNEVEN.heads] == [None, None, 0, 0, 0]
    assert HeadGrid((4,), (2,)).group(Head(0, 3)) == 1


@pytest.mark.parametrize(
    ("head", "said"),
    [("L3H0", "layers L0 to L2"), ("L1H0", "no attention heads"), ("L0H2", "heads H0 to H1")],
)
def test_a_head_that_is_not_there_is_refused_with_what_is(head, said):
    with pytest.raises(UnknownName, match=said):
        UNEVEN.column(Head.parse(head))


@pytest.mark.parametrize("text", ["", "5", "H3L1", "L1", "L-1H2", "L1H2x", "l1 h2"])
def test_what_is_no_head_is_refused(text):
    with pytest.raises(BadOption, match="L16H21"):
        Head.parse(text)


def test_lists_of_heads_keep_their_order_and_drop_doubles():
    assert Head.parse_all("L1H2, L0H1,L1H2,") == [Head(1, 2), Head(0, 1)]
    assert Head.parse_all("") == []


def test_a_mask_counts_as_knocked_out_where_true():
    assert np.flatnonzero(UNEVEN.mask(["L2H1", "L0H0"])).tolist() == [0, 3]


def test_a_head_may_be_named_with_an_amount():
    grid = HeadGrid((2, 2))
    heads = Head.parse_all("L0H1:0.5,L1H0:1,l0h0:.25")
    assert list(map(str, heads)) == ["L0H1:0.5", "L1H0", "L0H0:0.25"]
    mask = grid.mask(heads)
    assert mask.tolist() == [0.25, 0.5, 1.0, 0.0]
    assert grid.named(mask) == sorted(heads, key=grid.column)
    assert grid.mask(["L0H1:1"]).dtype == bool  # knocked out wholly, as ever
    assert grid.named_in(["L0H1:0.5"], amounts=True) == [heads[0]]


@pytest.mark.parametrize("amount", ["0", "1.5", "-1", "nan", "", "half", "0.00001"])
def test_an_amount_lies_above_0_and_at_most_at_1(amount):
    with pytest.raises(BadOption, match="is no amount of a knockout"):
        Head.parse(f"L0H1:{amount}")


def test_an_amount_is_refused_where_it_means_nothing_and_where_there_are_two():
    grid = HeadGrid((2, 2))
    with pytest.raises(BadOption, match="L0H1:0.5: a head is named here without an amount"):
        grid.named_in(["L0H1:0.5"])
    with pytest.raises(BadOption, match="L0H1 is named by two amounts"):
        grid.mask(["L0H1", "L0H1:0.5"])
