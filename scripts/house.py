"""Measure the house: lines beside their budgets, names that mean two things, what a run can reach.

python scripts/house.py            the figures
python scripts/house.py --list     and what stands behind them
"""

import ast
import os
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "caploc"
SHORT, LONG = (
    40,
    600,
)  # lines: below one a file earns its place with importers, above the other none
ENTRY = "caploc.study"  # what `caploc locate` runs
# Each can be deleted without touching the instrument.
WINGS = ("neurons", "workers", "sandbox", "playground", "integrations", "tracking.py")
BUDGETS = {
    "instrument": 18_000,
    "wings": 8_000,
    "papers": 4_000,
    "tests": 28_000,
    "bench and scripts": 5_000,
    "words of pages": 40_000,
}


def name_of(path: Path) -> str:
    """Return the dotted name of a module's file."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read_modules() -> dict[str, tuple[Path, ast.Module]]:
    """Parse every module of the package, by its dotted name."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return {name_of(path): (path, ast.parse(path.read_text(encoding="utf-8"))) for path in paths}


def count_lines(*folders: Path) -> int:
    """Count the lines of Python, YAML, TOML and templates below some folders."""
    kinds = {".py", ".yaml", ".toml", ".j2"}
    files = (path for folder in folders for path in [folder, *folder.rglob("*")])
    return sum(
        len(path.read_text(encoding="utf-8").splitlines())
        for path in files
        if path.is_file() and path.suffix in kinds
    )


def count_rooms() -> dict[str, int]:
    """Count what each room of the repository holds, in the order of `BUDGETS`."""
    wings = count_lines(*(PACKAGE / wing for wing in WINGS))
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    counts = [
        count_lines(PACKAGE) - wings,
        wings,
        count_lines(ROOT / "papers"),
        count_lines(ROOT / "tests"),
        count_lines(ROOT / "bench", ROOT / "scripts"),
        sum(len(page.read_text(encoding="utf-8").split()) for page in pages),
    ]
    return dict(zip(BUDGETS, counts, strict=True))


def imports_of(name: str, tree: ast.Module, modules: set[str]) -> set[str]:
    """List the modules of the package that one imports, packages among them."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return (found & modules) - {name}


def reachable(entry: str, imports: dict[str, set[str]]) -> set[str]:
    """Follow imports from a module; whoever is in a package has imported the package."""
    found: set[str] = set()
    left = [entry]
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        parents = {name.rsplit(".", count)[0] for count in range(1, name.count(".") + 1)}
        left += [*imports[name], *(parents & set(imports))]
    return found


def load(entry: str) -> dict[str, int]:
    """Import a module in a new process; return the lines of each module of the package it loads."""
    code = f"import sys, {entry}\nprint(*(name for name in sys.modules if name[:6] == 'caploc'))"
    said = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        check=True,
        capture_output=True,
        text=True,
    )
    paths = {name: path for name, (path, _) in read_modules().items()}
    return {name: count_lines(paths[name]) for name in sorted(said.stdout.split())}


def repeated(kind: tuple[type[ast.AST], ...], trees: dict[str, ast.Module]) -> dict[str, list[str]]:
    """Find public names at module level that several modules define."""
    places = defaultdict(list)
    for name, tree in trees.items():
        for node in tree.body:
            if isinstance(node, kind) and not node.name.startswith("_"):  # type: ignore[attr-defined]
                places[node.name].append(name)  # type: ignore[attr-defined]
    return {name: where for name, where in sorted(places.items()) if len(where) > 1}


def main() -> None:
    """Print every figure, and with --list what it counts."""
    for room, count in count_rooms().items():
        print(f"{room}: {count:,} of {BUDGETS[room]:,}")
    modules = read_modules()
    trees = {name: tree for name, (_, tree) in modules.items()}
    imports = {name: imports_of(name, tree, set(modules)) for name, tree in trees.items()}
    lines = {
        name: len(path.read_text(encoding="utf-8").splitlines())
        for name, (path, _) in modules.items()
    }
    importers = Counter(target for targets in imports.values() for target in targets)
    is_file = {name: path.stem != "__init__" for name, (path, _) in modules.items()}
    short = [n for n in modules if is_file[n] and lines[n] < SHORT and importers[n] == 1]
    classes = repeated((ast.ClassDef,), trees)
    functions = repeated((ast.FunctionDef, ast.AsyncFunctionDef), trees)
    figures: list[tuple[str, int, list[str]]] = [
        ("lines", sum(lines.values()), []),
        ("files", len(modules), []),
        (f"files under {SHORT} lines with one importer", len(short), short),
        (f"files over {LONG} lines", sum(n > LONG for n in lines.values()),
         [name for name, count in lines.items() if count > LONG]),
        ("class names defined twice", len(classes), [f"{n}: {w}" for n, w in classes.items()]),
        ("public function names defined twice", len(functions),
         [f"{n}: {w}" for n, w in functions.items()]),
    ]  # fmt: skip
    reached = sorted(reachable(ENTRY, imports))
    figures.append((f"modules that {ENTRY} reaches, also when it runs", len(reached), reached))
    loaded = load(ENTRY)
    figures.append((f"lines that {ENTRY} reaches", sum(loaded.values()), [*loaded]))
    for title, count, listed in figures:
        print(f"{title}: {count:,}")
        if "--list" in sys.argv:
            print("".join(f"    {each}\n" for each in listed), end="")


if __name__ == "__main__":
    main()
