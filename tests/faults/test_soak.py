"""What `make soak` says of numbers whose slope is known."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "soak.py"


@pytest.fixture(scope="module")
def soak():
    spec = importlib.util.spec_from_file_location("soak", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["soak"] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    yield module
    del sys.modules["soak"]


def samples(soak, slope, noise=1.0, count=60):
    """An hour whose memory grows by so many MB, more at its beginning."""
    draw = np.random.default_rng(0)
    return [
        soak.Sample(
            hours=number / count,
            seconds=60.0,
            rss=800 + slope * number / count - 100 * (number == 0) + noise * draw.normal(),
            files=20,
            threads=7,
            grown=1_000,
            rows=500,
            wrong=0,
            exact=500,
        )
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("slope", "meaning", "sound"),
    [
        (0.0, "not distinguishable from 0", True),
        (6.0, "growing, below 10 MB/h", True),
        (40.0, "growing, not below 10 MB/h", False),
        (-40.0, "falling", True),
    ],
)
def test_a_slope_is_told(soak, slope, meaning, sound):
    told, good = soak.verdict(samples(soak, slope))
    assert meaning in told
    assert good is sound
    assert told.splitlines()[-1] == ("OK" if sound else "FAIL")
    found = soak.memory(samples(soak, slope)[12:])[1]
    assert abs(float(found.split()[0]) - slope) < 2.0


@pytest.mark.parametrize("name", ["files", "threads", "grown", "wrong"])
def test_whatever_grows_is_found(soak, name):
    grown = samples(soak, 0.0)
    grown[40] = replace(grown[40], **{name: getattr(grown[40], name) + 1})
    told, good = soak.verdict(grown)
    assert not good
    assert told.count("FAIL |") == 1


def test_a_slope_that_is_not_known_is_no_good_news(soak):
    told, good = soak.verdict(samples(soak, 0.0, noise=100.0, count=12))
    assert not good and "too uncertain" in told


def test_an_hour_of_three_cycles_is_none(soak):
    told, good = soak.verdict(samples(soak, 0.0, count=3))
    assert not good and "too few" in told


def test_rows_are_compared_one_by_one(soak):
    rows = {("a", 1, b"m", str(n)): (1.0, f'[{{"logprob": -{n}.5}}]') for n in range(5)}
    near, off = dict(rows), dict(rows)
    near["a", 1, b"m", "3"] = (1.0, '[{"logprob": -3.50000001}]')
    off["a", 1, b"m", "3"] = (0.0, rows["a", 1, b"m", "3"][1])
    del off["a", 1, b"m", "4"]
    assert soak.differences(rows, dict(rows)) == (0, 5)
    assert soak.differences(rows, near) == (0, 4)
    assert soak.differences(rows, off) == (2, 3)
