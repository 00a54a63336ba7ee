"""What `pip install caploc` brings: small, whole, at work in an environment without anything."""

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from worlds import DEMO, TASKS

ROOT = Path(__file__).parents[2]
LARGEST = 12_000_000  # bytes
UV = Path(sys.executable).parent / "uv"
NEEDED = [
    "tasks/paper/rhyming.yaml",
    "pretrained.toml",
    "report/report.html.j2", "report/page.css", "report/page.js",
    "studies/demo.toml",
    "tasks/words/past.yaml", "tasks/words/past.csv",
]  # fmt: skip


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_dependency_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"]]
    for extra, wanted in project["optional-dependencies"].items():
        asked += wanted if extra != "mlflow" else []  # it wants other versions of what is pinned
    pinned = {
        normal(line.partition("==")[0])
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    names = {normal(re.match(r"[\w.-]+", each)[0]) for each in asked}
    assert names <= pinned


def run(*command: object, env=os.environ, **options) -> str:
    """What a command prints, which must succeed; uv looks where this machine's pip looks."""
    if "PIP_FIND_LINKS" in os.environ:
        env = {"UV_FIND_LINKS": os.environ["PIP_FIND_LINKS"]} | env
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        check=False,
        env=env,
        **options,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """The source archive, and the wheel built from it in an environment of its own."""
    place = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", place, ROOT)
    (archive,), (wheel,) = place.glob("*.tar.gz"), place.glob("*.whl")
    return archive, wheel


@pytest.fixture(scope="module")
def installed(packages, tmp_path_factory):
    """The programs of an environment with the wheel and what it depends on, and nothing else."""
    place = tmp_path_factory.mktemp("empty") / "venv"
    run(UV, "venv", "--quiet", "--python", sys.executable, place)
    constraints = ROOT / "constraints.txt"
    run(UV, "pip", "install", "--quiet", "--python", place, "-c", constraints, packages[1])
    return place / "bin"


@pytest.mark.wheel
def test_packages_are_small_and_hold_all_that_runs_need(packages):
    archive, wheel = packages
    assert archive.stat().st_size < LARGEST and wheel.stat().st_size < LARGEST
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"caploc/{name}" for name in NEEDED} <= names
    sources = {str(path.relative_to(ROOT / "src")) for path in ROOT.glob("src/caploc/**/*.py")}
    assert sources <= names
    assert all(name.startswith("caploc") for name in names)
    with tarfile.open(archive) as opened:
        inside = {name.partition("/")[2] for name in opened.getnames()}
    assert {"README.md", "CITATION.cff", "constraints.txt", "tests/conftest.py"} <= inside
    assert not [name for name in inside if name.startswith((".venv", "runs", "build"))]


@pytest.mark.wheel
def test_the_wheel_finds_heads_in_an_empty_environment(installed, tmp_path):
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    asked = (
        "--task",
        "demo/addition",
        "--also",
        "demo/rhyming",
        "--budget",
        "600",
        "--limit",
        "60",
    )
    told = run(
        installed / "caploc", "locate", DEMO, *asked, "--quiet", "--out", "run",
        cwd=tmp_path, env=own | {"CAPLOC_TASKS": TASKS},
    )  # fmt: skip
    found = json.loads((tmp_path / "run" / "result.json").read_text())
    assert found["top"] and all(head in told for head in found["top"])
    assert "<html" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.wheel
def test_uvx_runs_it_without_an_installation(packages, tmp_path):
    """`uvx caploc` once the package is on the index; here from the wheel."""
    uvx = Path(sys.executable).parent / "uvx"
    told = run(
        uvx, "--python", sys.executable, "--constraints", ROOT / "constraints.txt",
        "--from", packages[1], "caploc", "demo", "--help", cwd=tmp_path,
    )  # fmt: skip
    assert "caploc demo --out runs/first" in told


@pytest.mark.wheel
def test_the_citation_file_is_valid(tmp_path):
    uvx = Path(sys.executable).parent / "uvx"
    told = run(
        uvx, "--python", sys.executable, "--with", "setuptools<81",
        "cffconvert", "--validate", "-i", ROOT / "CITATION.cff", cwd=tmp_path,
    )  # fmt: skip
    assert "valid" in told.lower()
