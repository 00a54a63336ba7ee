"""Trees of tokens against the spans they are made of."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from caploc.engine.passages import passages
from caploc.engine.wording import Span

tokens = st.integers(0, 2)  # few, so that spans often begin alike


@st.composite
def pairs(draw):
    """The tokens to read, and the continuation that ends one token later."""
    text = draw(st.lists(tokens, min_size=2, max_size=8))
    return text[:-1], text[draw(st.integers(1, len(text) - 1)) :]


texts = st.lists(pairs(), min_size=1, max_size=6)


def as_spans(found):
    return [Span(tuple(inputs), tuple(continuation)) for inputs, continuation in found]


def path(passage, place):
    """The places from the root to one token."""
    places = []
    while place >= 0:
        places.append(place)
        place = passage.parents[place]
    return places[::-1]


@given(texts)
def test_each_span_is_read_from_the_root_to_its_last_token(found):
    spans = as_spans(found)
    seen = []
    for passage in passages(spans):
        for target in passage.targets:
            span = spans[target.span]
            places = path(passage, target.places[-1])
            assert [passage.tokens[place] for place in places] == list(span.inputs)
            assert tuple(places[-len(span.continuation) :]) == target.places
            assert target.tokens == span.continuation
            seen.append(target.span)
    assert sorted(seen) == list(range(len(spans)))


@given(texts)
def test_a_beginning_stands_once_however_many_spans_share_it(found):
    spans = as_spans(found)
    beginnings = {span.inputs[:n] for span in spans for n in range(1, len(span.inputs) + 1)}
    assert sum(len(passage.tokens) for passage in passages(spans)) == len(beginnings)


@given(texts)
def test_depths_and_trees_follow_from_the_parents(found):
    for passage in passages(as_spans(found)):
        ancestors = [set(path(passage, place)) for place in range(len(passage.tokens))]
        assert passage.depths == [len(places) - 1 for places in ancestors]
        assert all(parent < place for place, parent in enumerate(passage.parents))
        tree, one_line = passage.tree(), torch.ones(2 * [len(ancestors)], dtype=torch.bool).tril()
        seen = one_line if tree is None else tree
        assert [set(row.nonzero().flatten().tolist()) for row in seen] == ancestors


@given(texts)
def test_a_tree_is_only_made_for_a_passage_with_branches(found):
    spans = as_spans(found)
    for passage in passages(spans):
        inputs = [spans[target.span].inputs for target in passage.targets]
        longest = max(inputs, key=len)
        one_line = all(longest[: len(own)] == own for own in inputs)
        assert (passage.tree() is None) == one_line


@given(texts)
def test_a_stem_is_what_all_spans_read_before_any_prediction(found):
    spans = as_spans(found)
    for passage in passages(spans):
        members = [spans[target.span] for target in passage.targets]
        unscored = [span.inputs[: len(span.inputs) - len(span.continuation)] for span in members]
        first = unscored[0]
        shared = min(
            next((n for n in range(len(first)) if other[n : n + 1] != first[n : n + 1]), len(first))
            for other in unscored
        )
        assert passage.tokens[: passage.stem] == list(first[:shared])


@given(texts, st.data())
def test_what_comes_after_a_part_of_the_stem_reads_on(found, data):
    spans = as_spans(found)
    for passage in passages(spans):
        count = data.draw(st.integers(0, passage.stem))
        rest = passage.after(count)
        for target in rest.targets:
            span = spans[target.span]
            places = path(rest, target.places[-1])
            assert [rest.tokens[place] for place in places] == list(span.inputs[count:])
            assert tuple(places[-len(span.continuation) :]) == target.places


def test_choices_share_their_context():
    spans = [Span((1, 2, 3, n, 4), (n, 4, 9)) for n in (7, 8)]
    (passage,) = passages(spans)
    assert passage.tokens == [1, 2, 3, 7, 4, 8, 4]
    assert passage.parents == [-1, 0, 1, 2, 3, 2, 5]
    assert passage.stem == 2  # the third token's prediction is scored
    assert passage.depths == [0, 1, 2, 3, 4, 3, 4]


def test_spans_that_begin_differently_are_different_passages():
    assert [p.tokens for p in passages([Span((1, 2), (5,)), Span((2, 2), (5,))])] == [
        [1, 2],
        [2, 2],
    ]
