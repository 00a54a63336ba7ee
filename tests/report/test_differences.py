"""Where two answers differ."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caploc.report.page import MOST_WORDS, split_differences

ANY = st.text(max_size=60)
# Few letters and words, so that much is alike.
ALIKE = st.lists(st.sampled_from(["the ", "cat ", "sat.", "1", "2", "\n", ""]), max_size=12)


@given(st.one_of(st.tuples(ANY, ANY), st.tuples(ALIKE.map("".join), ALIKE.map("".join))))
def test_the_parts_are_the_texts_and_even_ones_are_alike(pair):
    before, after = split_differences(*pair)
    assert ("".join(before), "".join(after)) == pair
    even = [side[::2] for side in (before, after)]
    size = max(map(len, even))
    padded = [side + [""] * (size - len(side)) for side in even]
    assert padded[0] == padded[1]


@pytest.mark.parametrize(
    ("pair", "parts"),
    [(("124", "125"), (["12", "4"], ["12", "5"])),
     (("85", "85"), (["85"], ["85"])),
     (("the cat sat", "the dog sat"), (["the ", "cat", " sat"], ["the ", "dog", " sat"])),
     (("a b c d", "a x c y"), (["a ", "b ", "c ", "d"], ["a ", "x ", "c ", "y"])),
     (("", "new"), (["", ""], ["", "new"]))],
)  # fmt: skip
def test_words_are_told_apart_whole_and_numbers_by_their_digits(pair, parts):
    assert split_differences(*pair) == parts


def test_very_long_texts_are_compared_at_their_ends():
    old, new = ("word " * MOST_WORDS, "drow " * MOST_WORDS)
    before, after = split_differences("same " + old + "end", "same " + new + "end")
    assert before[0] == "same " and before[-1].endswith("end")
    assert len(before) == 3 and before[0::2] == after[0::2]
