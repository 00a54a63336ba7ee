"""A laboratory of planted facts and a preset to go with it; and the small preset."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from caploc.components import Head
from caploc.progress import Silent
from caploc.reproduce.laboratory import ScoredTask, Searched
from caploc.reproduce.preset import Benchmark, Preset, PresetModel
from worlds import DEMO

SMALL = Path(__file__).parent / "small.toml"


@dataclass
class Measured(Silent):
    """Progress that counts the rows that were measured now, not those that were stored."""

    rows: int = 0

    def advance(self, rows: int, tokens: float) -> None:
        self.rows += rows if tokens else 0


@dataclass
class Planted:
    """A laboratory of planted facts: what each head alone takes of a benchmark, and rankings.

    A search takes 7 masks, and 10 more for every head that is excluded.
    Drops of several heads add up. Every benchmark is intact at 0.8, and guessing gives `chance`.
    """

    preset: Preset
    drops: dict[str, dict[str, float]]
    rankings: dict[str, list[str]]
    stderr: float = 0.01
    chance: float = 0.0
    chosen: int = 99
    struck: dict[str, list[Head]] = field(default_factory=dict)
    draws: int = 9
    limits: list[int | None] = field(default_factory=list)
    excluded: list[list[str]] = field(default_factory=list)  # of each search

    def score(
        self,
        model: PresetModel,
        benchmark: Benchmark,
        heads: Sequence[Head],
        limit: int | None = None,
    ) -> ScoredTask:
        self.limits.append(limit)
        lost = sum(self.drops.get(benchmark.label, {}).get(str(head), 0.0) for head in heads)
        error = self.stderr if heads else 0.0
        return ScoredTask(0.8, 0.01, 0.8 - lost, 0.01, lost, error, 100, self.chance)

    def failures(self, model: PresetModel, benchmark: Benchmark, heads: Sequence[Head]) -> Any:
        kinds = {"right": part(3), "gibberish": part(7), "format": part(1)}
        sample = {"knocked_out": "a | b `c`\n<b>" + "x" * 200}
        return {"verdict": "speech", "categories": kinds, "samples": {"gibberish": [sample]}}

    def search(
        self,
        model: PresetModel,
        benchmark: Benchmark,
        label: str,
        excluded: Sequence[Head] = (),
    ) -> Searched:
        self.excluded.append([str(head) for head in excluded])
        found = [Head.parse(name) for name in self.rankings[benchmark.label]]
        kept = tuple(head for head in found if head not in excluded)
        masks = 7 + 10 * len(excluded)
        return Searched(kept, self.chosen, masks, 10 * masks, {})


def part(count: int) -> dict[str, Any]:
    return {"count": count, "share": count / 11}


def written(**changes: Any) -> dict[str, Any]:
    """A preset as TOML gives it; two families and a general benchmark on the demo model."""
    content: dict[str, Any] = {
        "name": "planted",
        "about": "planted facts",
        "top": 2,
        "main": "CSS",
        "model": [{"label": "demo", "name": DEMO}],
        "search": [{"label": "CSS", "method": "css", "rate": 0.05}],
        "benchmark": [
            {"label": "Add", "task": "demo/addition", "group": "math", "localize": True},
            {"label": "Sort", "task": "demo/sorting", "group": "code", "localize": True},
            {"label": "Gen", "task": "demo/sentences", "group": "general"},
        ],
    }
    return content | changes


def planted(drops=None, rankings=None, **fields) -> Planted:
    """A laboratory with the preset of `written`, unless another is given."""
    preset = fields.pop("preset", None) or Preset.model_validate(written())
    ranked = {"Add": ["L1H0", "L2H0"], "Sort": ["L3H0", "L4H0"]} | (rankings or {})
    return Planted(preset, drops or {}, ranked, **fields)
