"""Every tutorial runs from top to bottom, as a notebook, and shows what it says it shows."""

from pathlib import Path

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient

from caploc.naming import is_fetched

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
FINDINGS = {
    "demo": ["of 96 heads, ", "intact:", "demo/capitals"],
    "own_task": ["of 96 heads", "There is no task file 'runs/own-task/eazy.yaml'"],
    "own_model": ["first: L", "fifth: L", "without the two heads of 'first'"],
    "own_pairs": ["of 270 heads", "walked: intact 'walked'", "examples falls from", "vegaEmbed("],
}


def executed(name: str, folder: Path):
    """The tutorial as a notebook with its outputs, run in a folder of its own."""
    notebook = jupytext.read(TUTORIALS / f"{name}.py")
    nbformat.validate(notebook)
    place = {"metadata": {"path": str(folder)}}
    return NotebookClient(notebook, timeout=600, resources=place).execute()


def shown(notebook) -> tuple[str, list[str]]:
    """All that its cells printed or returned as text, and the kinds of everything displayed."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    texts = [output.get("text", "") for output in outputs if output["output_type"] == "stream"]
    data = [output["data"] for output in outputs if "data" in output]
    texts += ["".join(each.get("text/html", each.get("text/plain", ""))) for each in data]
    return "\n".join(texts), [kind for each in data for kind in each]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "pictures"), [("demo", 2), ("own_task", 0), ("own_model", 0)])
def test_a_tutorial_runs_and_shows_its_findings(name, pictures, tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    text, kinds = shown(executed(name, tmp_path))
    for word in FINDINGS[name]:
        assert word in text
    assert "Warning" not in text and "Traceback" not in text
    assert kinds.count("image/png") == pictures


@pytest.mark.slow
@pytest.mark.skipif(not is_fetched("smollm2"), reason="`caploc fetch smollm2` has not been run")
def test_a_loaded_model_loses_the_past_tense_with_its_heads(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    text, _ = shown(executed("own_pairs", tmp_path))
    assert [word for word in FINDINGS["own_pairs"] if word not in text] == []
    assert "Warning" not in text and "Traceback" not in text
    assert text.count(": intact '") == 6 and text.count('"effect":') == 270


def test_every_tutorial_is_run():
    assert {path.stem for path in TUTORIALS.glob("*.py")} == set(FINDINGS)
