"""A result with every field filled, and a reader of pages."""

import copy

import pytest

from caploc.components import AMONG

HEADS = {"L0H1": -0.41, "L1H3": -0.19, "L0H0": -0.003, "L0H2": 0.0, "L1H0": 0.02, "L0H3": None}


def _score(score, stderr=0.01):
    return {"score": score, "stderr": stderr, "examples": 100}


def _head(name, effect):
    return {
        "head": name,
        "layer": int(name[1]),
        "index": int(name[3:]),
        "effect": effect,
        "low": None if effect is None else effect - 0.05,
        "high": None if effect is None else effect + 0.05,
        "q": None,
        "selected": effect is not None and effect < -0.1,
        "universal": None,
    }


LOST = {
    "count": 1, "examples": 2, "kinds": {"other answer": 1},
    "samples": [{"example": 17, "prompt": "47+38=", "gold": "85", "intact": "85",
                 "knocked_out": "8\n", "intact_outcome": 1.0, "knocked_out_outcome": 0.0,
                 "kind": "other answer"}],
}  # fmt: skip
RESULT = {
    "schema": 1,
    "model": {"name": "demo", "fingerprint": "ab12", "dtype": "float32"},
    "task": {
        "name": "demo/addition",
        "metric": "exact_match",
        "outcome": "metric",
        "examples": 100,
        "higher_is_better": True,
    },
    "method": {"name": "css", "masks": 100, "rate": 0.02, "top": 2},
    "seed": 7,
    "grid": {"layers": 2, "heads": [4, 4], "group_sizes": [2, 2]},
    "intact": _score(0.99),
    "estimand": {"heads": AMONG, "top": AMONG},
    "heads": [_head(name, effect) for name, effect in HEADS.items()],
    "top": ["L0H1", "L1H3"],
    "fit": {"estimator": "lasso", "r2_held_out": 0.31, "masks": 100, "rows": 10000},
    "validation": {
        "task": {"name": "demo/addition", "intact": _score(0.99), "knocked_out": _score(0.12),
                 "lost": LOST},
        "controls": {"draws": 3, "examples": 100, "scores": [0.9, 0.98, 0.97], "mean": 0.95,
                     "sd": 0.036},
        "other_tasks": [
            {"name": "demo/sentences", "metric": "acc", "intact": _score(0.98),
             "knocked_out": _score(0.97)}
        ],
    },
    "cost": {"rows": 10712, "forward_tokens": 123456, "seconds": 33.1},
    "command": "caploc locate demo --task demo/addition --method css",
    "versions": {"caploc": "0.1.0", "torch": "2.9"},
}  # fmt: skip

SEARCH = {
    "goal": "heads", "budget": 2000, "rows": 1996, "stability": 0.62,
    "tried": ["L0H1", "L1H3", "L0H0", "L1H0"], "tried_on": 53,
    "critical": ["L1H3", "L1H0"], "universal": ["L1H0"],
    "notes": ["Up to 3 heads may be named, and 2 are needed beyond doubt."],
}  # fmt: skip
HELD_OUT = {
    "fresh": True, "examples": 90, "intact": 1.0, "knocked_out": 0.22,
    "change": {"outcome": -0.78, "stderr": 0.04, "low": -0.86, "high": -0.7, "margin": 0.03,
               "verdict": "changed", "examples": 90},
}  # fmt: skip
CONTROLS = {
    "examples": 90, "chosen": 0.22, "scores": [0.9, 0.98, 0.97], "mean": 0.95, "sd": 0.036,
}  # fmt: skip
OTHER_CHANGE = {"outcome": -0.01, "stderr": 0.01, "low": -0.04, "high": 0.02, "margin": 0.03,
                "verdict": "open", "examples": 100}  # fmt: skip


@pytest.fixture
def result():
    """A result of its own for each test, free to change."""
    return copy.deepcopy(RESULT)


@pytest.fixture
def sure(result):
    """A result of the default search, with all that it says of itself and of held-out examples."""
    result["method"] = {"name": "scan", "masks": None, "rate": None, "top": 3, "goal": "heads",
                        "examples": 341}  # fmt: skip
    chances = {"L0H1": 0.997, "L1H3": 0.9, "L0H0": 0.3}
    for head in result["heads"]:
        name = head["head"]
        head.update(top_chance=chances.get(name, 0.0), critical=name in SEARCH["critical"])
        head.update(universal=name == "L1H0" if head["critical"] else None)
    result["search"] = copy.deepcopy(SEARCH)
    result["validation"]["held_out"] = copy.deepcopy(HELD_OUT)
    result["validation"]["controls"] = copy.deepcopy(CONTROLS)
    result["validation"]["other_tasks"][0]["change"] = dict(OTHER_CHANGE)
    return result
