"""Do heads stand in for each other, or strengthen each other? Asked of a finished run.

Of two sets A and B of heads the contrast is `y(A and B gone) - y(A gone) - y(B gone) + y(intact)`,
example by example. Below zero they do more together than the sum: each covers for the loss of the
other. Above zero they do less: they are links of one chain, or there is not that much score to
lose.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from caploc.errors import BadOption, UserError
from caploc.finished import FinishedRun
from caploc.folder import INTERACTIONS, write_json
from caploc.heads import HeadGrid, Mask
from caploc.measurement import Meter, search
from caploc.progress import Progress, Silent
from caploc.recovery import paired
from caploc.recovery.screening import false_discovery_rates
from caploc.search import Plan, Problem, Settings, column_mask
from caploc.search.backups import standing_in
from caploc.study import shared_price
from caploc.validation.comparison import number
from caploc.workbench import Allowed

LEVEL = 0.05  # false discovery rate at which an interaction is named
PER_HEAD = 4  # rows a head of the screen for backups, if no budget is given
EXAMPLES = 100
LIMITS = (
    "Two heads that cover for each other completely, neither found alone, are out of reach of any "
    "screen of this size. A score near its floor makes contrasts look positive."
)


@dataclass(frozen=True)
class Contrast:
    """Two sets of heads whose joint loss is compared with the sum of their losses."""

    kind: str  # pair, backup or group
    first: tuple[int, ...]
    second: tuple[int, ...]

    def masks(self, heads: int) -> list[Mask]:
        """Both gone, the first, the second."""
        both = (*self.first, *self.second)
        return [column_mask(heads, columns) for columns in (both, self.first, self.second)]


@dataclass
class Table:
    """Outcomes of masks on the same examples; each mask is measured once."""

    meter: Meter
    examples: Sequence[int]
    progress: Progress
    known: dict[bytes, np.ndarray] = field(default_factory=dict)

    def measure(self, masks: Sequence[Mask], what: str) -> None:
        """Measure those that are not known."""
        fresh = {mask.tobytes(): mask for mask in masks if mask.tobytes() not in self.known}
        if not fresh:
            return
        rows = self.meter.measure(
            Plan.crossed(np.stack(list(fresh.values())), self.examples), self.progress, what
        )
        values = np.array([row.outcome for row in rows]).reshape(len(fresh), -1)
        self.known |= dict(zip(fresh, values, strict=True))

    def contrasts(self, wanted: Sequence[Contrast], what: str) -> list[dict[str, Any]]:
        """Mean, interval and p of each contrast over the examples."""
        heads = self.meter.engine.grid.size
        empty = np.zeros(heads, dtype=bool)
        self.measure([empty, *(mask for each in wanted for mask in each.masks(heads))], what)
        found = []
        for each in wanted:
            both, first, second = (self.known[mask.tobytes()] for mask in each.masks(heads))
            value = both - first - second + self.known[empty.tobytes()]
            value = value[np.isfinite(value)]
            mean, low, high, p = paired(value) if value.size else (np.nan,) * 4
            found.append({"contrast": each, "effect": mean, "low": low, "high": high, "p": p})
        return found


def interactions(
    folder: Path,
    most: int = 5,
    examples: int = EXAMPLES,
    budget: int | None = None,
    progress: Progress | None = None,
    allowed: Allowed | None = None,
) -> dict[str, Any]:
    """Measure how a finished run's heads act together; write `interactions.json` into its folder.

    Three questions: pairs of the `most` chosen heads; heads outside that step in once they are gone
    (a screen of `budget` rows, then contrasts with each chosen head); and the key-value groups that
    the chosen heads belong to, as wholes. `allowed` says what may
    be run for it, and who answers.

    Raises:
        UserError: if the folder holds no finished run that found heads, or the options mean
        nothing. RunFailed: if the machine gives up; rows already measured are kept.
    """
    for name, value in (("most", most), ("examples", examples), ("budget", budget)):
        if value is not None and value < 1:
            raise BadOption(f"--{name} must be 1 or more; got {value}.")
    run = FinishedRun.read(folder, allowed)
    if not run.result["top"]:
        raise UserError(f"The run in {folder} named no head; there is nothing to combine.")
    task, *_ = run.tasks()
    with run.workbench() as bench:
        grid = bench.engine.loaded.grid
        chosen = columns(grid, run.result["top"][:most])
        found, kept = run.study.drawn(task.size)
        table = Table(bench.meter(task), (kept or found)[:examples], progress or Silent())
        problem = Problem(
            heads=grid.size,
            examples=found,
            settings=Settings(seed=run.study.settings.seed, recall=1.0, top=most),
            shared=shared_price(bench, table.meter, found, table.progress),
        )
        critical = columns(grid, run.result["search"]["critical"])
        generator = standing_in(problem, chosen, critical, budget or PER_HEAD * grid.size)
        stand_ins = search([table.meter], generator, table.progress)
        told = {
            "schema": 1,
            "heads": [str(grid.heads[column]) for column in chosen],
            "stand_ins": [str(grid.heads[column]) for column in stand_ins],
            "examples": len(table.examples),
            "interactions": described(asked(table, grid, chosen, stand_ins), grid),
            "limits": LIMITS,
            "cost": bench.cost.as_dict(),
        }
        write_json(folder / INTERACTIONS, told)
    return told


def columns(grid: HeadGrid, names: Sequence[str]) -> list[int]:
    """The columns of heads given by name."""
    return [grid.column(head) for head in grid.named_in(names)]


def asked(
    table: Table, grid: HeadGrid, chosen: Sequence[int], stand_ins: Sequence[int]
) -> list[dict[str, Any]]:
    """Every contrast of the three questions."""
    return [
        *table.contrasts(list(pairs(chosen)), "pairs"),
        *table.contrasts(list(behind(chosen, stand_ins)), "backups"),
        *table.contrasts(list(groups(grid, chosen)), "key-value groups"),
    ]


def pairs(chosen: Sequence[int]) -> Iterator[Contrast]:
    """Every two of the chosen heads."""
    for first, second in combinations(chosen, 2):
        yield Contrast("pair", (first,), (second,))


def behind(chosen: Sequence[int], stand_ins: Sequence[int]) -> Iterator[Contrast]:
    """Each head that steps in, against each chosen head and against all of them."""
    for column in stand_ins:
        for each in chosen:
            yield Contrast("backup", (each,), (column,))
        if len(chosen) > 1:
            yield Contrast("backup", tuple(chosen), (column,))


def groups(grid: HeadGrid, chosen: Sequence[int]) -> Iterator[Contrast]:
    """The chosen heads of a key-value group against the rest of it."""
    for group in grid.groups:
        inside = tuple(column for column in group if column in chosen)
        rest = tuple(column for column in group if column not in chosen)
        if inside and rest:
            yield Contrast("group", inside, rest)


def described(rows: Sequence[dict[str, Any]], grid: HeadGrid) -> list[dict[str, Any]]:
    """Contrasts with their false discovery rates and what they mean, the surest first."""
    q = false_discovery_rates(np.array([row["p"] for row in rows], dtype=float))
    told = []
    for row, rate in zip(rows, q, strict=True):
        contrast = row["contrast"]
        told.append(
            {
                **asdict(contrast),
                "first": [str(grid.heads[column]) for column in contrast.first],
                "second": [str(grid.heads[column]) for column in contrast.second],
                "effect": number(row["effect"]),
                "low": number(row["low"]),
                "high": number(row["high"]),
                "q": number(float(rate)),
                "meaning": meaning(contrast.kind, row["effect"], float(rate)),
            }
        )
    return sorted(told, key=lambda row: (row["q"] is None, row["q"], row["effect"]))


def meaning(kind: str, effect: float, q: float) -> str:
    """What a contrast says, in a few words."""
    if not q < LEVEL:
        return "no interaction beyond doubt"
    if effect > 0:
        return "overlap: together less than the sum"
    if kind == "backup":
        return "backup: needed once the other is gone"
    return "synergy: together more than the sum"
