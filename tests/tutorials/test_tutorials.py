"""Every tutorial runs from top to bottom and shows what it says it shows."""

import ast
from pathlib import Path

import pytest

from caploc.naming import is_fetched

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
FINDINGS = {
    "own_task": ["of 270 heads", "There is no task file 'runs/own-task/cuont.yaml'"],
    "own_model": ["first: L", "fifth: L", "without the two heads of 'first'"],
    "own_pairs": ["of 270 heads", "walked: intact 'walked'", "held out"],
}


def run(name: str) -> None:
    """Run a tutorial's cells in turn; print what a cell ends in, as a notebook does."""
    names: dict = {"__name__": "__main__"}
    for cell in (TUTORIALS / f"{name}.py").read_text().split("# %%\n"):
        tree = ast.parse(cell)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec"), names)
        if last and (value := eval(compile(ast.Expression(last.value), name, "eval"), names)):
            print(value)  # noqa: T201


fetched = pytest.mark.skipif(
    not is_fetched("smollm2"), reason="`caploc models fetch smollm2` has not been run"
)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["own_model", pytest.param("own_task", marks=fetched)])
def test_a_tutorial_runs_and_shows_its_findings(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run(name)
    shown = " ".join(capsys.readouterr().out.split())
    assert [word for word in FINDINGS[name] if word not in shown] == []


@pytest.mark.slow
@fetched
def test_a_loaded_model_loses_the_past_tense_with_its_heads(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run("own_pairs")
    shown = " ".join(capsys.readouterr().out.split())
    assert [word for word in FINDINGS["own_pairs"] if word not in shown] == []
    assert shown.count(": intact '") == 6


def test_every_tutorial_is_run():
    assert {path.stem for path in TUTORIALS.glob("*.py")} == set(FINDINGS)
