"""Universal heads, and each benchmark's own: on a model of which both are known."""

import pytest

from caploc.progress import Silent
from caploc.reproduce.laboratory import open_laboratory
from caploc.reproduce.preset import Preset
from caploc.reproduce.selection import named_heads, universal_heads
from caploc.search.published import tie_note
from worlds.planted import Planted, write_planted

pytestmark = pytest.mark.slow  # 512 heads
STRENGTHS = (0.25, 0.2, 0.18, 0.15, 0.12)


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted") / "model"
    plan = Planted(16, 32, needed=5, universal=3, strengths=STRENGTHS, examples=200, seed=4)
    return write_planted(folder, plan), folder


@pytest.fixture(scope="module")
def laboratory(planted, tmp_path_factory):
    """Two benchmarks that need the universal heads; one of them needs five heads more."""
    _, folder = planted
    settings = {"examples": 30, "mask_counts": [100, 200], "rates": [0.01, 0.03]}
    benchmark = {"localize": True}
    preset = Preset.model_validate(
        {
            "name": "planted",
            "about": "planted heads",
            "top": 5,
            "main": "CSS",
            "search_again": True,
            "model": [{"label": "planted", "name": str(folder), "device": "cpu"}],
            "search": [
                {"label": "CSS", "method": "css-search"} | settings,
                {"label": "CSB", "method": "csb-search"} | settings,
                {"label": "Greedy", "method": "greedy", "examples": 12},
            ],
            "benchmark": [
                {"label": "Colours", "task": str(folder / "planted.yaml"), "group": "colours"}
                | benchmark,
                {"label": "Opposites", "task": str(folder / "other.yaml"), "group": "general"}
                | benchmark,
            ],
        }
    )  # fmt: skip
    place = tmp_path_factory.mktemp("laboratory")
    with open_laboratory(preset, place, Silent(), "") as opened:
        yield opened


def test_the_universal_heads_are_found(planted, laboratory):
    truth, _ = planted
    (model,) = laboratory.preset.models
    assert set(universal_heads(laboratory, model)) == set(truth.universal)


@pytest.mark.parametrize("label", ["CSS", "CSB", "Greedy"])
def test_a_search_made_again_chooses_without_them(planted, laboratory, label):
    """With them in, every setting's heads break the task alike, and so does the next of a set."""
    truth, _ = planted
    (model,) = laboratory.preset.models
    colours, _ = laboratory.preset.benchmarks
    heads = named_heads(laboratory, model, colours, label)
    assert len(set(heads) & set(truth.needed)) >= 4


def test_taken_out_afterwards_they_hide_the_needed_heads(planted, laboratory):
    """As in the paper; every setting's heads took all there is."""
    truth, _ = planted
    (model,) = laboratory.preset.models
    colours, _ = laboratory.preset.benchmarks
    told = laboratory.search(model, colours, "CSS").told
    kept = told["settings"][told["chosen"]]["heads"]
    assert len(set(kept) & {model.grid.column(head) for head in truth.needed}) <= 2
    assert "decided between them" in tie_note(told)
