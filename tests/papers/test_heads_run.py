"""Every exhibit of the heads paper from a small run on a demo model; again, nothing is asked."""

from pathlib import Path

import pytest

from doubles import count_rows
from papers.heads.__main__ import RECIPES, main

SMALL = Path(__file__).with_name("small.toml")
pytestmark = pytest.mark.slow


def test_all_exhibits_of_a_small_setup(tmp_path, capsys):
    main(["all", "--setup", str(SMALL), "--runs", str(tmp_path), "--quiet"])
    written = tmp_path / "exhibits"
    for name in RECIPES:
        assert (written / f"{name}.csv").is_file()
    assert {path.stem for path in written.glob("*.png")} >= {"fig1", "fig2", "fig4"}
    assert (written / "table2.md").read_text().count("\n| math") == 1
    asked = count_rows(tmp_path)
    main(["table2", "fig1", "--setup", str(SMALL), "--runs", str(tmp_path), "--quiet"])
    assert count_rows(tmp_path) == asked
