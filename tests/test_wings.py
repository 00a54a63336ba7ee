"""The instrument loads no wing, and works where a wing is not there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from worlds.planted import Planted, write_planted

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "scripts"))

import house  # noqa: E402

WINGS = [wing.removesuffix(".py") for wing in house.WINGS]
# Of the command line, what is deleted with a wing.
WITH_IT = {"neurons": ["cli/neurons.py"]}
RUN = """
import sys
from pathlib import Path

import caploc
from caploc.declaration import Study
from caploc.options import Settings
from caploc.study import run_study
from caploc.declaration import ModelOptions

folder, out, package = map(Path, sys.argv[1:])
assert Path(caploc.__file__).is_relative_to(package)
study = Study(
    ModelOptions(str(folder), device="cpu"), str(folder / "planted.yaml"),
    method="one-shot", examples=6, limit=20, controls=2, settings=Settings(top=2),
    other_tasks=(str(folder / "other.yaml"),),
)
print(*run_study(study, out).result.top)
"""


def test_a_study_loads_no_wing():
    loaded = house.load(house.ENTRY)
    assert "caploc.study" in loaded
    for wing in WINGS:
        assert not [name for name in loaded if f"{name}.".startswith(f"caploc.{wing}.")]


@pytest.mark.slow
def test_a_study_runs_without_each_wing(tmp_path):
    """Its folder is deleted from a copy of the package, and the same heads are found."""
    world = tmp_path / "world"
    write_planted(world, Planted(needed=2, strengths=(0.5, 0.4), seed=3))

    def locate(package, name):
        command = [sys.executable, "-c", RUN, str(world), str(tmp_path / f"run-{name}")]
        command.append(str(package))
        path = os.environ | {"PYTHONPATH": str(package), "HF_HUB_OFFLINE": "1"}
        ran = subprocess.run(command, env=path, capture_output=True, text=True)
        assert ran.returncode == 0, (name, ran.stderr)
        return ran.stdout.split()

    whole = locate(ROOT / "src", "whole")
    assert whole
    for wing in WINGS:
        package = tmp_path / wing
        shutil.copytree(ROOT / "src", package, ignore=shutil.ignore_patterns("__pycache__"))
        for gone in [wing, *WITH_IT.get(wing, [])]:
            place = package / "caploc" / gone
            if place.is_dir():
                shutil.rmtree(place)
            else:
                place.with_suffix(".py").unlink()
        assert locate(package, wing) == whole, wing
