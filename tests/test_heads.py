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


@pytest.mark.parametrize("name", ["L0H1:0.5", "L0", "H3", "L0H"])
def test_what_names_no_head_is_refused(name):
    with pytest.raises(BadOption, match="is not a head"):
        Head.parse(name)
