"""Run folders as a view may meet them: finished with answers of one's own, and hostile ones."""

import json
from dataclasses import asdict

import numpy as np

from caploc.declaration import ModelOptions, Study
from caploc.store import Question, Row, pack
from caploc.tasks.task import Generated, responses_json
from doubles import least_result
from worlds import DEMO

HOSTILE = "</script><img src=x onerror=\"document.title='run'\"><a href='javascript:1'>x</a>\u202e"
GRID = {"layers": 2, "heads": [2, 2]}
QUESTION = Question("f", "float32", "demo/addition", "1", "metric")


def answer_of(number, intact="4", knocked_out="5", **changes):
    """One example, broken unless told otherwise."""
    return {
        "example": number, "prompt": f"{number}+1=", "gold": "4", "intact": intact,
        "knocked_out": knocked_out, "intact_outcome": 1.0, "knocked_out_outcome": 0.0,
    } | changes  # fmt: skip


def write_run(folder, answers=(), model="demo", task="demo/addition", **changes):
    """Write the files of a finished run; `changes` replace parts of its result."""
    folder.mkdir(parents=True, exist_ok=True)
    study = Study(ModelOptions(DEMO), "demo/addition")
    (folder / "run.json").write_text(json.dumps({"study": asdict(study), "command": ""}))

    scores = {name: {"score": score} for name, score in (("intact", 0.9), ("knocked_out", 0.2))}
    asked = {"name": task, "metric": "exact_match"}
    written = {
        "model": {"name": model, "fingerprint": "f"},
        "task": asked,
        "seed": 3,
        "grid": GRID,
        "heads": [
            {"head": "L0H1", "layer": 0, "index": 1, "effect": -0.5, "low": -0.6, "high": -0.4},
            {"head": "L1H0", "layer": 1, "index": 0, "effect": 0.0},
        ],
        "top": ["L0H1"],
        "validation": {"task": asked | scores},
        "cost": {"rows": 1234},
    }
    (folder / "result.json").write_text(json.dumps(least_result(**written | changes)))
    (folder / "answers.json").write_text(json.dumps(list(answers)))
    return folder


def stored_row(columns, example, text, outcome):
    """A row of the example without the heads of these columns of a grid of four."""
    mask = np.zeros(4, dtype=bool)
    mask[list(columns)] = True
    said = responses_json((Generated(text),))
    return Row(pack(mask), f"key{example}", example, outcome, outcome, said, 1.0, 1, 0.1)
