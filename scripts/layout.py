"""Write the list of the package's modules in docs/architecture.md anew, from their own first lines.

    python scripts/layout.py [--check]

The order is the page's, and holds: a module may import those above it only. A module that is not
in the list is put at its end.
"""

import argparse
import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE, PAGE = ROOT / "src" / "caploc", ROOT / "docs" / "architecture.md"
BEGIN, END = "```\nsrc/caploc/\n", "scripts/"


def listed(text: str) -> list[str]:
    """Read the modules' names in the order of the list."""
    block = text.split(BEGIN)[1].split(END)[0]
    return [line.split()[0].rstrip("/").removesuffix(".py") for line in block.splitlines()]


def modules() -> dict[str, Path]:
    """Find the modules and packages at the top of the package."""
    found = {path.parent.name: path for path in PACKAGE.glob("*/__init__.py")}
    return found | {path.stem: path for path in PACKAGE.glob("*.py") if path.stem[0] != "_"}


def write_layout(text: str) -> str:
    """Return the page with today's list in it."""
    found = modules()
    names = [name for name in listed(text) if name in found]
    names += [name for name in found if name not in names]
    lines = []
    for name in names:
        first = (ast.get_docstring(ast.parse(found[name].read_text())) or "").split("\n")[0]
        label = f"{name}/" if found[name].stem == "__init__" else f"{name}.py"
        lines.append(f"  {label:15} {first.removesuffix('.')}\n")
    before, after = text.split(BEGIN)[0], text.split(BEGIN)[1].split(END, 1)[1]
    return f"{before}{BEGIN}{''.join(lines)}{END}{after}"


def main() -> None:
    """Write, or only compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if it differs")
    text = PAGE.read_text()
    today = write_layout(text)
    if parser.parse_args().check:
        raise SystemExit(text != today)
    PAGE.write_text(today)


if __name__ == "__main__":
    main()
