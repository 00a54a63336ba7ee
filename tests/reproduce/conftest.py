"""The small preset, measured once for all tests of the folder."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from labs import SMALL, Measured

from caploc.reproduce import EXHIBITS, preset, read_preset, reproduce
from caploc.reproduce.preset import Preset
from caploc.workbench import ModelOptions

FEW_FRESH = 4  # the real number would take most of the time


@dataclass
class Ran:
    """A folder with every exhibit of the small preset, and how many rows that took."""

    preset: Preset
    folder: Path
    rows: int
    exhibits: dict[str, Any] = field(default_factory=dict)


@pytest.fixture(scope="session")
def ran(tmp_path_factory) -> Ran:
    """The small preset, measured from nothing."""
    folder, progress = tmp_path_factory.mktemp("small"), Measured()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preset, "FRESH", FEW_FRESH)
        small = read_preset(str(SMALL))
        exhibits = reproduce(small, ["all"], folder, progress, command="caploc reproduce all")
    assert [exhibit.name for exhibit in exhibits] == list(EXHIBITS)
    return Ran(small, folder, progress.rows, {exhibit.name: exhibit for exhibit in exhibits})


@pytest.fixture
def few_fresh(monkeypatch):
    monkeypatch.setattr(preset, "FRESH", FEW_FRESH)


@pytest.fixture
def no_model(monkeypatch):
    """Whoever loads a model fails."""
    monkeypatch.setattr(ModelOptions, "engine", lambda self: pytest.fail("a model was loaded"))
