"""Tiny models as folders, and the demo's run that exports are made from."""

import json

import pytest
import torch

from doubles import least_result
from worlds import DEMO
from worlds.alone import save
from worlds.tiny import tiny


@pytest.fixture(autouse=True)
def hub_out_of_reach(monkeypatch):
    """No test may ask the Hugging Face Hub."""

    def refuse(*args, **kwargs):
        raise ConnectionError("no network in tests")

    monkeypatch.setattr("caploc.models.sources.HfApi.model_info", refuse)
    monkeypatch.delenv("HF_TOKEN", raising=False)


@pytest.fixture
def written(tmp_path):
    """Write a tiny model of a family, with a tokenizer of whole words, into a folder."""

    def write(name, *, dtype=torch.float32):
        return save(tmp_path / "base", tiny(name, dtype))

    return write


@pytest.fixture
def finished(tmp_path):
    """A run's folder as `caploc locate` leaves it, of the demo, made up but for the fingerprint."""
    from caploc.declaration import ModelOptions, Study
    from caploc.models.sources import find_source

    def write(**changes):
        from dataclasses import asdict

        folder = tmp_path / "run"
        folder.mkdir()
        study = asdict(Study(ModelOptions(DEMO), "demo/addition"))
        model = {"name": DEMO, "fingerprint": find_source(DEMO).fingerprint()}
        result = RESULT | {"model": model} | changes
        (folder / "run.json").write_text(json.dumps({"study": study, "command": "made up"}))
        (folder / "result.json").write_text(json.dumps(result))
        return folder

    return write


def score(value, metric="exact_match", name="demo/addition"):
    both = {
        "intact": {"score": 1.0, "stderr": 0.0, "examples": 200},
        "knocked_out": {"score": value, "stderr": 0.03, "examples": 200},
    }
    change = {"outcome": value - 1, "low": value - 1.1, "high": value - 0.9, "verdict": "changed"}
    return {"name": name, "metric": metric, "higher_is_better": True, "change": change} | both


def head(name, effect):
    layer, index = map(int, name[1:].split("H"))
    place = {"head": name, "layer": layer, "index": index}
    place |= {"effect": effect, "low": effect - 0.1, "high": effect + 0.1}
    return place | {"q": 0.001, "universal": False}


RESULT = least_result(
    task={"name": "demo/addition", "metric": "exact_match", "higher_is_better": True},
    method={"name": "scan", "top": 5},
    grid={"layers": 6, "heads": [16] * 6, "group_sizes": [2] * 6},
    heads=[head("L0H10", -0.5), head("L0H15", -0.3), head("L2H3", -0.01)],
    top=["L0H10", "L0H15"],
    validation={
        "task": score(0.25),
        "controls": {"draws": 20, "examples": 90, "chosen": 0.2, "scores": [0.9], "mean": 0.9},
        "held_out": {"fresh": True, "examples": 90, "intact": 1.0, "knocked_out": 0.2},
        "other_tasks": [score(0.95, "acc", "demo/sentences")],
    },
    cost={"rows": 3033},
    command="caploc locate demo --task demo/addition",
)
