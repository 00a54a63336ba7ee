import json

import pytest

import benchmarks_census
from benchmarks_census import COMPARED, HELD_OUT, Census, compare
from caploc.designs import draw_examples
from caploc.store import Store
from doubles import count_rows
from worlds.planted import Planted, write_planted

PLAN = Planted(layers=2, heads=4, needed=2, strengths=(0.5, 0.3), examples=150)


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A planted model and its task, and a comparison that two heads of eight can be found by."""
    truth = write_planted(tmp_path, PLAN)
    for name, value in {"FILES": tmp_path, "MASKS": 40, "RATE": 0.25, "TOP": 2, "SEEDS": 2}.items():
        monkeypatch.setattr(benchmarks_census, name, value)
    return tmp_path, truth


def compared(folder):
    """Compare on the planted task; what was told, and how many rows the store has then."""
    with Store(folder / "rows.sqlite") as store:
        compare(Census(folder, store, str(folder)), str(folder / "planted.yaml"))
    return json.loads((folder / "benchmarks_compared.json").read_text()), count_rows(folder)


def test_each_method_and_seed_is_scored_on_examples_that_none_searched_on(small):
    folder, truth = small
    told, rows = compared(folder)
    assert set(told) == {"intact", *(f"{method} {seed}" for method in COMPARED for seed in (0, 1))}
    needed, held = {*map(str, truth.needed)}, draw_examples(150, 150, seed=0)[HELD_OUT]
    for name, found in told.items():
        assert found["outcomes"] == truth.right(found["heads"])[held].astype(int).tolist()
        if name.startswith(("css", "scan")):
            assert {*found["heads"]} == needed
    assert compared(folder) == (told, rows)
