import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caploc.components import (
    KINDS,
    Head,
    Heads,
    KeyValueGroup,
    KeyValueGroups,
    Layer,
    Layers,
    find_grid,
    parse_component,
    parse_components,
)
from caploc.errors import BadOption, UnknownName

UNEVEN = Heads((2, 0, 3), (1, 1, 3))
counts = st.lists(st.integers(0, 5), min_size=1, max_size=6).map(tuple)


@given(counts)
def test_every_head_has_its_own_column_and_reads_back(heads_per_layer):
    grid = Heads(heads_per_layer)
    columns = [grid.column(Head.parse(str(head))) for head in grid.components]
    assert columns == list(range(grid.size))


@given(counts, st.data())
def test_a_mask_names_the_heads_it_was_made_of(heads_per_layer, data):
    grid = Heads(heads_per_layer)
    columns = data.draw(st.sets(st.integers(0, grid.size - 1))) if grid.size else set()
    heads = [grid.components[column] for column in sorted(columns)]
    assert grid.named(grid.mask(reversed(heads))) == heads


def test_layers_without_heads_take_no_columns():
    assert UNEVEN.layer_slices == [slice(0, 2), slice(2, 2), slice(2, 5)]
    assert UNEVEN.size == 5 and UNEVEN.layers == 3
    assert UNEVEN.column(Head(2, 0)) == 2


def test_heads_that_read_one_key_value_head_share_a_group():
    assert [UNEVEN.group(head) for head in UNEVEN.components] == [None, None, 0, 0, 0]
    assert Heads((4,), (2,)).group(Head(0, 3)) == 1


@pytest.mark.parametrize(
    ("head", "said"),
    [("L3H0", "layers L0 to L2"), ("L1H0", "no attention heads"), ("L0H2", "heads H0 to H1")],
)
def test_a_head_that_is_not_there_is_refused_with_what_is(head, said):
    with pytest.raises(UnknownName, match=said):
        UNEVEN.column(Head.parse(head))


@pytest.mark.parametrize("text", ["", "5", "H3L1", "L1", "L1G2", "L-1H2", "L1H2x", "1.2.3"])
def test_what_is_no_head_is_refused(text):
    with pytest.raises(BadOption, match="L16H21"):
        Head.parse(text)


def test_lists_of_heads_keep_their_order_and_drop_doubles():
    assert parse_components("L1H2, L0H1,L1H2,1.2") == [Head(1, 2), Head(0, 1)]
    assert parse_components(["L1H2,L3", "l0g1"]) == [Head(1, 2), Layer(3), KeyValueGroup(0, 1)]
    assert parse_components("") == []


def test_a_mask_counts_as_knocked_out_where_true():
    assert np.flatnonzero(UNEVEN.mask(["L2H1", "L0H0"])).tolist() == [0, 3]


@pytest.mark.parametrize("name", ["L0H1:0.5", "H3", "L0H", "L0N1", "0"])
def test_what_names_no_component_is_refused(name):
    with pytest.raises(BadOption, match="is not a head, key-value group or layer"):
        parse_component(name)


GROUPED = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3)), min_size=1, max_size=6).map(
    lambda layers: Heads(
        tuple(groups * size for groups, size in layers), tuple(size for _, size in layers)
    )
)


@given(GROUPED, st.sampled_from(sorted(KINDS)), st.data())
def test_a_mask_of_components_is_that_of_their_heads(heads, kind, data):
    try:
        grid = find_grid(kind, heads)
    except BadOption:
        assert kind == "groups" and max(heads.group_sizes) == 1
        return
    assert [grid.column(parse_component(str(each))) for each in grid.components] == [
        *range(grid.size)
    ]
    mask = np.array(
        data.draw(st.lists(st.booleans(), min_size=grid.size, max_size=grid.size)), bool
    )
    cut = grid.cut_mask(mask)
    named = grid.named(mask)
    assert (cut == heads.mask(named)).all()
    assert heads.named(cut) == heads.named_in(map(str, named))
    whole = [head for each in named for head in heads.components if holds(each, head, heads)]
    assert heads.named(cut) == sorted(whole)


def holds(component, head, heads):
    """Tell by the definition of each kind whether a head is part of a component."""
    match component:
        case Head():
            return component == head
        case KeyValueGroup():
            mates = heads.group_sizes[head.layer]
            return (component.layer, component.index) == (head.layer, head.index // mates)
        case Layer():
            return component.layer == head.layer


def test_every_head_lies_in_one_group_and_one_layer():
    grids = KeyValueGroups.of(UNEVEN), Layers.of(UNEVEN)
    assert [[str(each) for each in grid.components] for grid in grids] == [
        ["L0G0", "L0G1", "L2G0"],
        ["L0", "L2"],
    ]
    assert [grid.owners.tolist() for grid in grids] == [[0, 1, 2, 2, 2], [0, 0, 1, 1, 1]]


def test_a_layer_that_is_not_there_is_refused_with_what_is():
    with pytest.raises(UnknownName, match="There is no layer L7: the model has layers L0 to L2"):
        UNEVEN.mask(["L7"])
    with pytest.raises(UnknownName, match="There is no layer L1: layer 1 has no attention"):
        UNEVEN.mask(["L1"])
    with pytest.raises(UnknownName, match="layer 2 has key-value groups G0 to G0"):
        UNEVEN.mask(["L2G1"])


def test_a_model_whose_heads_share_nothing_has_no_groups():
    for sizes in ((), (1, 1)):
        with pytest.raises(BadOption, match="has no key-value groups"):
            find_grid("groups", Heads((4, 4), sizes))


def test_a_kind_that_there_is_not_is_refused_with_those_that_are():
    with pytest.raises(UnknownName, match="groups, heads, layers"):
        find_grid("columns", UNEVEN)


def test_what_is_no_name_of_a_head_is_refused():
    with pytest.raises(BadOption, match=r"\(0, 1\) names no head; write it as a text"):
        Heads((4, 4)).mask([(0, 1)])
