"""Finding heads from Python: the call, and what it hands back."""

import json

import pytest

import caploc
from caploc import notebook
from caploc.declaration import ModelOptions
from caploc.errors import BadOption, UnknownName, UserError
from caploc.result import Result
from worlds import DEMO

SMALL = {"method": "css", "masks": 12, "rate": 0.05, "examples": 8, "limit": 8, "controls": 0}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A small run on the demo model."""
    return caploc.locate(
        DEMO, "demo/addition", **SMALL, also=[], out=tmp_path_factory.mktemp("run"), quiet=True
    )


def test_what_is_found_lies_in_the_folder_and_is_read_back(found):
    again = caploc.Findings.read(found.folder)
    assert again == found and again.top == found.result.top and found.report.exists()
    assert json.loads((found.folder / "run.json").read_text())["command"] == (
        f"caploc.locate({DEMO!r}, 'demo/addition', method='css', masks=12, rate=0.05, examples=8, "
        f"limit=8, controls=0, also=[], out={str(found.folder)!r})"
    )


def test_an_option_that_is_not_there_or_not_read_is_refused(tmp_path):
    for given, said in (
        ({"tap": 3}, "no option 'tap'. Did you mean 'top'"),
        ({"rate": 0.1}, "--rate is for --method css, csb; got --method scan"),
        ({"top": 0}, "--top must be greater than or equal to 1; got 0"),
        ({"device": "gpu"}, "no device 'gpu'"),
    ):
        with pytest.raises(UserError, match=said):
            caploc.locate(DEMO, "demo/addition", out=tmp_path, quiet=True, **given)


def test_too_small_a_budget_is_refused_before_the_model_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(ModelOptions, "answering", lambda self: pytest.fail("it was loaded"))
    with pytest.raises(BadOption, match="^--budget 3 is too small"):
        caploc.locate(DEMO, "demo/addition", budget=3, out=tmp_path, quiet=True)


def test_the_frame_has_every_head_in_its_order(found):
    frame = found.to_frame()
    assert len(frame) == 96 and frame.index[0] == found.result.heads[0].head
    known = frame["effect"].dropna()
    assert known.is_monotonic_increasing
    assert list(frame.index[frame["selected"]]) == [h for h in frame.index if h in found.top]
    assert frame.loc["L2H3", "layer"] == 2 and frame.loc["L2H3", "index"] == 3


def renamed(found, name):
    """The same findings of a task of that name."""
    result = found.result.as_dict()
    result["task"]["name"] = name
    return notebook.Findings(Result.model_validate(result), found.folder, found.report)


def test_a_notebook_sees_the_answer_and_the_heads(found):
    shown = found._repr_html_()
    assert "<table" in shown and str(found.report) in shown
    text = renamed(found, "<script>alert(1)</script>")._repr_html_()
    assert "<script>" not in text


@pytest.mark.parametrize(
    ("model", "task", "given", "error", "sentence"),
    [
        (DEMO, "demo/adition", {}, UnknownName, "Did you mean 'demo/addition'"),
        ("nowhere/at-all", "demo/addition", {}, UserError, "nowhere/at-all"),
        (DEMO, "demo/addition", {"budgets": 5}, UnknownName, "Did you mean 'budget'"),
        (DEMO, "demo/addition", {"top": 0}, BadOption, "^--top must be greater"),
        (DEMO, "demo/addition", {"method": "scann"}, UnknownName, "'scan'"),
    ],
)
def test_mistakes_are_sentences(tmp_path, model, task, given, error, sentence):
    with pytest.raises(error, match=sentence):
        caploc.locate(model, task, **given, out=tmp_path / "run", quiet=True)


def test_a_folder_without_a_run_says_so(tmp_path):
    with pytest.raises(UserError, match="holds no result.json"):
        caploc.Findings.read(tmp_path)


def test_a_public_function_is_the_same_each_time():
    assert caploc.locate is caploc.locate and caploc.locate.__name__ == "locate"
