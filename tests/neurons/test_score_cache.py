"""Scores on disk: found again, measured again where torn, and never those of another question."""

import errno
from dataclasses import asdict, replace

import numpy as np
import pytest
from planted_models import TWO

from caploc.errors import StoreFailed
from caploc.neurons.finding import STRETCH, Finder, score_cache
from caploc.neurons.options import Attribution, Rule
from caploc.neurons.threshold import Moments
from caploc.progress import Silent

ASKED = {"model": "m", "spans": [[[1, 2], [3]]]}
SCORES = np.random.default_rng(0).normal(size=(7, 30))


def moments():
    return Moments.empty(30).added(SCORES)


class Measuring:
    """Counts how often it is asked."""

    def __init__(self):
        self.times = 0

    def __call__(self):
        self.times += 1
        return moments()


def same(one, other):
    for name, value in one.as_arrays().items():
        np.testing.assert_array_equal(value, other.as_arrays()[name])
    return True


def test_what_was_measured_is_not_measured_again(tmp_path):
    measure = Measuring()
    first = score_cache(tmp_path).recall(ASKED, measure)
    again = score_cache(tmp_path).recall(dict(reversed(ASKED.items())), measure)
    assert measure.times == 1
    assert same(first, moments()) and same(again, first)
    score_cache(tmp_path).recall(ASKED | {"model": "n"}, measure)
    assert measure.times == 2
    assert len(list((tmp_path / "scores").iterdir())) == 2


def test_a_torn_file_is_measured_again_and_mended(tmp_path):
    """Wherever it was cut short, and whatever stands in it."""
    cache, measure = score_cache(tmp_path), Measuring()
    cache.recall(ASKED, measure)
    (path,) = (tmp_path / "scores").iterdir()
    whole = path.read_bytes()
    ends = [*range(0, len(whole), 211), 1, 3, 21, 22, len(whole) - 1]
    broken = [whole[:end] for end in ends]
    broken += [b"\0" * len(whole), whole[:400] + b"\xff" * 40 + whole[440:]]
    for times, content in enumerate(broken, start=2):
        path.write_bytes(content)
        assert same(cache.recall(ASKED, measure), moments())
        assert measure.times == times
        assert path.read_bytes() == whole


def test_a_full_disk_is_one_sentence_and_leaves_no_torn_file(tmp_path, monkeypatch):
    def full(file, **arrays):
        file.write(b"PK half")
        raise OSError(errno.ENOSPC, "No space left on device")

    cache = score_cache(tmp_path)
    cache.recall(ASKED, moments)
    before = {path.name for path in (tmp_path / "scores").iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", full)
        with pytest.raises(StoreFailed, match=r"No space left.*what was scored before is kept"):
            cache.recall(ASKED | {"model": "n"}, moments)
    assert {p.name for p in (tmp_path / "scores").iterdir() if p.suffix == ".npz"} == before
    measure = Measuring()
    cache.recall(ASKED, measure)
    assert measure.times == 0


def test_scores_are_shared_only_where_everything_that_changes_them_is_the_same(planted, tmp_path):
    model = planted(TWO)
    spans = model.spans(examples=4)

    def files(asked=None, rule=None, spans=spans, neurons=model.neurons):
        before = set((tmp_path / "scores").glob("*.npz"))
        finder = Finder(
            neurons, asked or Attribution(), rule or Rule(), score_cache(tmp_path), Silent()
        )
        finder.find("warm", spans, 2)
        return len(set((tmp_path / "scores").glob("*.npz")) - before)

    assert files() == 2
    assert files() == 0
    assert files(rule=Rule(share=0.01)) == files(rule=Rule(5.0)) == 0
    for asked in (
        Attribution("activation"),
        Attribution("integrated"),
        Attribution("integrated", steps=3),
        Attribution("integrated", rule="left"),
        Attribution(target="probability"),
        Attribution(positions="last"),
    ):
        assert files(asked) == 2, asdict(asked)
    assert files(rule=Rule(normalised=False)) == 2
    assert files(spans=[*spans[:2], *model.spans("large", 2)]) == 1
    other_answer = replace(spans[0], continuation=(5,))
    assert files(spans=[other_answer, *spans[1:]]) == 1
    for changes in ({"fingerprint": "other"}, {"dtype": "bfloat16"}):
        assert files(neurons=replace(model.neurons, **changes)) == 2


def test_a_stretch_is_a_file(planted, tmp_path):
    model = planted(TWO)
    spans = (model.spans(examples=100) * 11)[: 2 * STRETCH + 50]
    finder = Finder(model.neurons, Attribution(), Rule(), score_cache(tmp_path), Silent())
    found = finder.find("warm", spans, 2)
    # 525 of each subset: to 10, 30, 100, 300, then a whole stretch would pass the end
    items = sorted(int(np.load(path)["items"]) for path in (tmp_path / "scores").iterdir())
    assert sum(items) == found.examples == 1050
    assert max(items) <= STRETCH
