"""The one description of result.json: what it takes and what it refuses."""

import copy
import json
import math
import re
from pathlib import Path

import pytest

from caploc.components import AMONG
from caploc.contents import check_contents, read_file
from caploc.errors import UserError
from caploc.result import Result, Score
from caploc.verdict import written as written_result
from doubles import least_result

EFFECT = {"effect": -0.5, "low": -0.6, "high": -0.4, "q": 0.01}
RESULT = least_result(
    seed=3,
    grid={"layers": 2, "heads": [2, 2], "group_sizes": [1, 1]},
    intact={"score": 1.0, "stderr": 0.0, "examples": 100},
    estimand={"heads": AMONG, "rate": 0.05, "top": AMONG},
    heads=[{"head": "L0H1", "layer": 0, "index": 1} | EFFECT],
    top=["L0H1"],
    search={"critical": [], "universal": [], "notes": []},
    validation={"task": {"name": "demo/addition"}, "controls": None, "other_tasks": []},
    cost={"rows": 10, "forward_tokens": 123},
)


@pytest.fixture
def content():
    return copy.deepcopy(RESULT)


def taken(content):
    return check_contents(Path("result.json"), Result, content)


def without_card(result):
    """What is written, but for the card, which is made anew."""
    written = written_result(result)
    assert written.pop("card")["heading"]
    return written


def test_what_is_written_is_what_was_read(content):
    assert without_card(taken(content)) == RESULT
    assert json.dumps(taken(content).as_dict()["cost"]) == '{"rows": 10, "forward_tokens": 123}'


def test_a_field_of_a_stranger_is_left_out(content):
    content["evil"] = content["model"]["evil"] = content["heads"][0]["evil"] = "rm -rf"
    assert without_card(taken(content)) == RESULT


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("heads", 0, "effect"), math.nan, "heads.0.effect must be a finite number"),
        (("heads", 0, "effect"), "5", "heads.0.effect must be a valid number"),
        (("heads", 0, "head"), "<b>", "heads.0.head must match"),
        (("top",), ["L7H7"], "There is no head L7H7"),
        (("grid", "layers"), 3, "must hold 3 numbers"),
        (("cost", "rows"), -1, "cost.rows must be greater than or equal to 0"),
        (("schema",), 2, "was written by another version of caploc (schema 2"),
        (("validation", "task"), None, "validation.task must be"),
    ],
)
def test_what_no_run_writes_is_refused(content, path, value, said):
    *parents, last = path
    part = content
    for step in parents:
        part = part[step]
    part[last] = value
    with pytest.raises(UserError, match=re.escape(said)):
        taken(content)


def test_a_file_that_cannot_be_taken_is_named(content, tmp_path):
    del content["top"]
    (tmp_path / "result.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"result\.json is not .* \(top is missing\)"):
        read_file(tmp_path / "result.json", Result)


@pytest.mark.parametrize("number", [math.nan, math.inf, None])
def test_a_score_that_is_no_number_is_missing(number):
    assert Score.of(number, number, 3) == Score(score=None, stderr=None, examples=3)


def test_a_records_fields_are_not_changed(content):
    with pytest.raises(ValueError, match="frozen"):
        taken(content).top = []
