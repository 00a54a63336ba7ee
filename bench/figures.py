"""Figures that benchmarks keep in JSON files, so that they resume, and tables of them."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def read(file: Path) -> dict[str, Any]:
    """Read what was kept; nothing if there is no file."""
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}


def write(file: Path, kept: dict[str, Any]) -> None:
    """Keep figures."""
    file.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> list[str]:
    """The lines of a Markdown table; all columns but the first, which are texts, hold numbers."""
    numbers = len(headings) - texts
    lines = [f"| {' | '.join(headings)} |", "|---" * texts + "|--:" * numbers + "|"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]
