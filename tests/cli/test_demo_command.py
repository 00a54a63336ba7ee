"""The demo is a study file inside the package: what it asks, and a small one run."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from caploc import studies
from caploc.cli import app
from caploc.cli.demo import QUICK, WHOLE
from caploc.tasks.catalog import DEMO_CAPABILITIES

FOLDER = Path(studies.__file__).parent


def test_the_demo_finds_every_capability_and_compares_methods_on_one():
    asked = list(studies.read_studies(FOLDER / WHOLE).studies.values())
    sets = [study for study in asked if study.settings.goal == "set"]
    assert [study.task for study in sets] == [f"demo/{name}" for name in DEMO_CAPABILITIES]
    compared = [study for study in asked if study not in sets]
    assert {study.task for study in compared} == {"demo/addition"}
    assert [study.method for study in compared] == ["adaptive", "css", "one-shot", "greedy"]
    assert {study.model.name for study in asked} == {"demo"}


@pytest.mark.slow
def test_the_quick_demo_names_heads_and_does_nothing_twice(tmp_path):
    asked = ["demo", "--quick", "--quiet", "--out", str(tmp_path)]
    first = CliRunner().invoke(app, asked)
    assert first.exit_code == 0, first.output
    assert "heads carry demo/addition" in " ".join(first.output.split())
    assert first.output.rstrip().endswith(str(tmp_path / "compare.html"))
    rows = (tmp_path / "rows.sqlite").stat().st_mtime_ns
    again = CliRunner().invoke(app, asked)
    assert again.output.count("done before") == 3, again.output
    assert (tmp_path / "rows.sqlite").stat().st_mtime_ns == rows
    assert len(studies.read_studies(FOLDER / QUICK).studies) == 3
