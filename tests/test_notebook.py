"""Finding heads from Python: the call, and what it hands back."""

import json
from pathlib import Path

import pytest

import caploc
from caploc import notebook
from caploc.errors import UnknownName, UserError
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
        ("nowhere/at-all", "demo/addition", {}, UserError, "nowhere/at-all"),
        (DEMO, "demo/addition", {"budgets": 5}, UnknownName, "Did you mean 'budget'"),
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


def test_other_tasks_may_be_one_name_a_path_or_a_file_of_pairs(found, tmp_path, monkeypatch):
    """As on the command line."""
    lines = [json.dumps({"prompt": f"{n}+{n}=", "answer": str(2 * n)}) for n in range(10, 30)]
    file = tmp_path / "sums.jsonl"
    file.write_text("\n".join(lines))
    asked = []
    monkeypatch.setattr(notebook, "run_study", lambda study, *_, **__: asked.append(study) or found)
    for given in ("demo/sentences", file, [str(file), "demo/recall"]):
        caploc.locate(DEMO, "demo/addition", **SMALL, also=given, out=tmp_path / "run", quiet=True)
    names = [[Path(name).name for name in study.other_tasks] for study in asked]
    copy = "copy"  # the general task, which goes with every other
    assert names == [["sentences", copy], ["sums.yaml", copy], ["sums.yaml", "recall", copy]]
