"""A file of heads of the demo model."""

import pytest

from caploc.components import Head, HeadFile, Heads, write_heads

HEADS = (Head(0, 10), Head(0, 15), Head(0, 13), Head(1, 0), Head(5, 1))


@pytest.fixture(scope="session")
def heads_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("heads") / "heads.json"
    write_heads(path, HeadFile(HEADS, Heads((16,) * 6, (2,) * 6), "demo"))
    return path


@pytest.fixture(scope="session")
def other_shape(tmp_path_factory):
    path = tmp_path_factory.mktemp("other") / "heads.json"
    write_heads(path, HeadFile((Head(0, 0),), Heads((4, 4)), "org/other"))
    return path
