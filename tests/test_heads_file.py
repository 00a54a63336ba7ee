"""A file of heads: what is written is read, and what is not one is refused in a sentence."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caploc.components import Head, HeadFile, Heads, read_heads, write_heads
from caploc.errors import BadData, BadOption, StoreFailed

GRID = Heads((4, 0, 2), (2, 1, 1))


COUNTS = st.lists(st.integers(0, 5), min_size=1, max_size=6)


@settings(max_examples=25)
@given(COUNTS, st.sets(st.integers(0, 29)), st.text(), st.none() | st.text())
def test_what_is_written_is_read(tmp_path_factory, counts, columns, model, fingerprint):
    grid = Heads(tuple(counts), tuple(1 for _ in counts))
    heads = tuple(grid.component(column) for column in columns if column < grid.size)
    file = HeadFile(heads, grid, model, fingerprint)
    path = tmp_path_factory.mktemp("heads") / "heads.json"
    write_heads(path, file)
    assert read_heads(path) == file


@pytest.fixture
def path(tmp_path):
    place = tmp_path / "heads.json"
    write_heads(place, HeadFile((Head(0, 1), Head(2, 1)), GRID, "org/model", "abc"))
    return place


def test_heads_are_refused_by_a_model_of_another_shape(path):
    file = read_heads(path)
    file.check(Heads((4, 0, 2)))  # key-value groups do not matter to a cut
    words = "found in org/model, which has 3 layers of 6 heads in all, and this model has 2 layers "
    with pytest.raises(BadOption, match=f"{words}of 4 heads each"):
        file.check(Heads((4, 4)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema": 2}, "schema 2"),
        ({"kind": "masks"}, "kind 'masks'"),
        ({"mode": "mean"}, "mode 'mean', not 'zero'"),
        ({"heads": ["L0H4"]}, "layer 0 has heads H0 to H3"),
        ({"heads": ["0:1"]}, "'0:1' is not a head"),
        ({"heads": 3}, "its heads are no list"),
        ({"grid": {"heads": [4]}}, "it has no 'group_sizes'"),
        ({"model": "org/model"}, "indices must be integers"),
    ],
    ids=str,
)
def test_a_file_that_is_not_one_is_refused_and_says_why(changes, words, path):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(BadData, match=words):
        read_heads(path)


@pytest.mark.parametrize("text", ["", "[1]", '"heads"', "{}", "\x00", '{"heads": ["L0H0"]}'])
def test_any_other_text_is_refused(text, path):
    path.write_text(text)
    with pytest.raises(BadData, match="caploc export DIR --as heads"):
        read_heads(path)


def test_a_missing_file_and_an_unwritable_one_are_one_sentence(tmp_path):
    with pytest.raises(BadData, match="No such file"):
        read_heads(tmp_path / "none.json")
    with pytest.raises(StoreFailed, match="could not be written"):
        write_heads(tmp_path / "no folder" / "heads.json", HeadFile((), GRID, "m"))
