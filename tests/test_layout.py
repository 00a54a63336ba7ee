"""The walls of the house: which way imports point, and what stays free of torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import caploc

PACKAGE = Path(caploc.__file__).parent
ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
BLOCK = PAGE.split("```\nsrc/caploc/\n")[1].split("scripts/")[0]
# Each stage may import those above it in the page's list, never those below.
ORDER = [line.split()[0].rstrip("/").removesuffix(".py") for line in BLOCK.splitlines()]
ORDER.append("__main__")
MODULES = [
    path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.parent != PACKAGE or path.stem != "__init__"
]


def stage(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_stages(path: Path) -> set[str]:
    stages = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("caploc"):
            first, *rest = node.module.split(".")[1:] or [None]
            stages |= {first} if first else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            stages |= {a.name.split(".")[1] for a in node.names if a.name.startswith("caploc.")}
    return stages


def test_the_package_knows_nothing_of_the_papers():
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] == "papers" for name in names), path


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    here = ORDER.index(stage(path))
    later = {name for name in imported_stages(path) if ORDER.index(name) > here}
    assert not later, f"{stage(path)} must not import {', '.join(sorted(later))}"


def test_the_mathematics_does_not_import_torch():
    """In one process, which says after each module whether it was the one that did."""
    contracts = ["engine.api", "modes", "store", "measurement", "validation"]
    mathematics = [*ORDER[: ORDER.index("tasks")], *contracts]
    code = "import importlib, sys\nfor name in sys.argv[1:]:\n"
    code += " importlib.import_module('caploc.' + name)\n print(name, 'torch' in sys.modules)"
    said = subprocess.run(
        [sys.executable, "-c", code, *mathematics], check=True, capture_output=True, text=True
    )
    assert said.stdout.splitlines() == [f"{name} False" for name in mathematics]


def test_public_names_are_exactly_all():
    assert sorted(caploc.__all__) == sorted(set(caploc.__all__))
    for name in caploc.__all__:
        assert getattr(caploc, name) is not None


def test_test_files_have_names_of_their_own():
    """pytest imports them by their last name alone."""
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert len(set(names)) == len(names)
