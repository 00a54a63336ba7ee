"""Trees of tokens against the spans they are made of."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from caploc.engine.encoding import Span
from caploc.engine.reading import merge_spans

tokens = st.integers(0, 2)  # few, so that spans often begin alike


@st.composite
def pairs(draw):
    """The tokens to read, and the continuation that ends one token later."""
    text = draw(st.lists(tokens, min_size=2, max_size=8))
    return text[:-1], text[draw(st.integers(1, len(text) - 1)) :]


texts = st.lists(pairs(), min_size=1, max_size=6)


def as_spans(found):
    return [Span(tuple(inputs), tuple(continuation)) for inputs, continuation in found]


def path(tree, place):
    """The places from the root to one token."""
    places = []
    while place >= 0:
        places.append(place)
        place = tree.parents[place]
    return places[::-1]


@given(texts)
def test_each_span_is_read_from_the_root_to_its_last_token(found):
    spans = as_spans(found)
    seen = []
    for tree in merge_spans(spans):
        for ending in tree.endings:
            span = spans[ending.span]
            places = path(tree, ending.places[-1])
            assert [tree.tokens[place] for place in places] == list(span.inputs)
            assert tuple(places[-len(span.continuation) :]) == ending.places
            assert ending.tokens == span.continuation
            seen.append(ending.span)
    assert sorted(seen) == list(range(len(spans)))


@given(texts)
def test_a_beginning_stands_once_however_many_spans_share_it(found):
    spans = as_spans(found)
    beginnings = {span.inputs[:n] for span in spans for n in range(1, len(span.inputs) + 1)}
    assert sum(len(tree.tokens) for tree in merge_spans(spans)) == len(beginnings)


@given(texts)
def test_depths_and_trees_follow_from_the_parents(found):
    for tree in merge_spans(as_spans(found)):
        ancestors = [set(path(tree, place)) for place in range(len(tree.tokens))]
        assert tree.depths == [len(places) - 1 for places in ancestors]
        assert all(parent < place for place, parent in enumerate(tree.parents))
        assert tree.parents.count(-1) == 1  # spans that begin differently are of different trees
        found_ancestors, one_line = (
            tree.ancestors(),
            torch.ones(2 * [len(ancestors)], dtype=torch.bool).tril(),
        )
        seen = one_line if found_ancestors is None else found_ancestors
        assert [set(row.nonzero().flatten().tolist()) for row in seen] == ancestors


@given(texts)
def test_a_tree_is_only_made_for_a_passage_with_branches(found):
    spans = as_spans(found)
    for tree in merge_spans(spans):
        inputs = [spans[ending.span].inputs for ending in tree.endings]
        longest = max(inputs, key=len)
        one_line = all(longest[: len(own)] == own for own in inputs)
        assert (tree.ancestors() is None) == one_line


@given(texts)
def test_a_stem_is_what_all_spans_read_before_any_prediction(found):
    spans = as_spans(found)
    for tree in merge_spans(spans):
        members = [spans[ending.span] for ending in tree.endings]
        unscored = [span.inputs[: len(span.inputs) - len(span.continuation)] for span in members]
        first = unscored[0]
        shared = min(
            next((n for n in range(len(first)) if other[n : n + 1] != first[n : n + 1]), len(first))
            for other in unscored
        )
        assert tree.tokens[: tree.stem] == list(first[:shared])


@given(texts, st.data())
def test_what_comes_after_a_part_of_the_stem_reads_on(found, data):
    spans = as_spans(found)
    for tree in merge_spans(spans):
        count = data.draw(st.integers(0, tree.stem))
        rest = tree.after(count)
        for ending in rest.endings:
            span = spans[ending.span]
            places = path(rest, ending.places[-1])
            assert [rest.tokens[place] for place in places] == list(span.inputs[count:])
            assert tuple(places[-len(span.continuation) :]) == ending.places
