"""What the heads paper prints, to stand beside what is measured here; None where it is silent."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

PRINTED: dict[str, Any] = yaml.safe_load(
    Path(__file__).with_name("published.yaml").read_text(encoding="utf-8")
)
LEADER = "Llama-3.1-8B"  # the model of which it prints scores task by task, and every search
CURVES = {frozenset(names.split()): row.split() for names, row in PRINTED["curves"].items()}
FIGURE_3 = [frozenset(names.split()) for names in PRINTED["figure_3"]]


def score(model: str, source: str, count: int, benchmarks: Iterable[str]) -> float | None:
    """Return the mean score of benchmarks with `count` heads gone that were found on `source`."""
    wanted, source = frozenset(benchmarks), source if count else ""
    if model != LEADER or not wanted:
        return None
    columns, rows = PRINTED["figure_1"], PRINTED["five_heads"]
    if count in (0, 5) and source in rows and wanted <= set(columns):
        printed = dict(zip(columns, rows[source], strict=True))
        return sum(printed[label] for label in columns if label in wanted) / len(wanted)
    curve = CURVES.get(wanted, []) if source == "GSM8K" else []
    return int(curve[count]) / 10_000 if count < len(curve) else None


def drop(model: str, source: str, count: int, benchmarks: Sequence[str]) -> float | None:
    """Return what the printed scores say that the knockout takes."""
    intact = score(model, "", 0, benchmarks)
    left = score(model, source, count, benchmarks)
    return None if intact is None or left is None else intact - left


def knowledge(model: str, heads: str, count: int, benchmarks: Iterable[str]) -> float | None:
    """Return the mean score of benchmarks in figures 3 and 4, with `count` heads gone.

    `heads` names a subject, whose five heads are gone, or one head; "" is the intact model.
    """
    printed: list[float] | None = PRINTED["knowledge"].get(model, {}).get(heads)
    wanted, subjects = frozenset(benchmarks), PRINTED["figure_3"][:3]
    if printed is None or wanted not in FIGURE_3 or (heads in subjects and count != 5):
        return None
    return printed[FIGURE_3.index(wanted)]


def heads(model: str, search: str, benchmark: str) -> list[str]:
    """Return the heads of its Table 9; none where it names none."""
    names: str = PRINTED["heads"].get(model, {}).get(search, {}).get(benchmark, "")
    return names.split()


def universal(model: str) -> list[str]:
    """Return the universal heads that it names."""
    names: str = PRINTED["universal"].get(model, "")
    return names.split()
