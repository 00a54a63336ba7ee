"""Do heads stand in for each other, or strengthen each other? Asked of a finished run.

Of two sets A and B of heads the contrast is `y(A and B gone) - y(A gone) - y(B gone) + y(intact)`,
example by example. Below zero they do more together than the sum: each covers for the loss of the
other. Above zero they do less: they are links of one chain, or there is not that much score to
lose.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from caploc.components import Grid
from caploc.declaration import Allowed
from caploc.errors import BadOption
from caploc.finished import FinishedRun
from caploc.folder import INTERACTIONS, check_named, write_json
from caploc.measurement import search
from caploc.options import Settings
from caploc.progress import Progress, Silent
from caploc.recovery import false_discovery_rates, paired
from caploc.recovery.estimate import right_of
from caploc.report.page import rewrite_page
from caploc.result import number
from caploc.search import Plan, Problem, column_mask
from caploc.search.plan import Asking, intact_plan
from caploc.search.scan import Scan
from caploc.session import add_signal

FEWEST_RIGHT = 8  # examples still right without the found heads, to see anything


def primary_set(problem: Problem, found: Sequence[int]) -> Asking[tuple[list[int], list[int]]]:
    """Take found heads out one by one; return those gone, and the examples still right.

    A head after which too few examples stay right is passed over: a backup shows only where there
    is something left to lose.
    """
    intact = (yield intact_plan(problem, problem.probe, problem.examples)).by_example()
    right, base = right_of(intact), list[int]()
    enough = max(FEWEST_RIGHT, len(right) // 5)
    left = right
    for column in found:
        mask = problem.without_each([(*base, column)])
        after = (yield Plan.crossed(problem.probe, mask, right, "found heads")).by_example()
        still = right_of(after)
        if len(still) >= enough:
            base, left = [*base, column], still
    return base, left


def standing_in(problem: Problem, found: Sequence[int], count: int) -> Asking[list[int]]:
    """Find heads that are needed once the found ones are gone, the most needed first.

    Every head that was not found is scanned beside the primary set, on `count` examples each. None
    if all found heads are passed over.
    """
    base, left = yield from primary_set(problem, found)
    if not base:
        return []
    scan = Scan(problem, problem.signal, left, problem.signal == problem.probe, tuple(base))
    yield from scan.open()
    yield from scan.ask([c for c in problem.eligible if c not in found], count)
    surely = [c for c in scan.order() if scan.mean_lost[c] >= LOST]
    return surely[: problem.settings.top]


LOST = 0.1  # share of the answer's probability that a head must take beside the found ones
LEVEL = 0.05  # false discovery rate at which an interaction is named
PER_HEAD = 4  # examples of every head that may be a backup, if no budget is given
EXAMPLES = 100
FEWEST = 10  # examples: two or three may give one contrast by chance, and seem sure
LIMITS = (
    "Two heads that cover for each other completely, neither found alone, are out of reach of any "
    "scan of this size. A score near its floor makes contrasts look positive."
)


@dataclass(frozen=True)
class Contrast:
    """Two sets of heads whose joint loss is compared with the sum of their losses."""

    kind: str  # pair, backup or group
    first: tuple[int, ...]
    second: tuple[int, ...]


def contrasts(
    problem: Problem, examples: Sequence[int], wanted: Sequence[Contrast], what: str
) -> Asking[list[dict[str, Any]]]:
    """Mean, interval and p of each contrast over some examples."""
    sets = [s for each in wanted for s in (each.first + each.second, each.first, each.second)]
    masks = problem.without_each([(), *sets])
    measured = yield Plan.crossed(problem.probe, masks, examples, what)
    intact, *cut = measured.outcome.reshape(len(masks), -1)
    return [
        {"contrast": each} | estimate_contrast(both - first - second + intact)
        for each, both, first, second in zip(wanted, cut[::3], cut[1::3], cut[2::3], strict=True)
    ]


def estimate_contrast(values: np.ndarray) -> dict[str, float]:
    """Mean, interval and p of a contrast's values, one an example; NaN if none is known."""
    values = values[np.isfinite(values)]
    figures = paired(values) if values.size else (np.nan,) * 4
    return dict(zip(("effect", "low", "high", "p"), figures, strict=True))


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
    (a scan of `budget` rows beside them, then contrasts with each chosen head); and the key-value
    groups that the chosen heads belong to, as wholes. `allowed` says what may be run for
    it, and who answers. Raises UserError if the folder holds no finished run that found heads, or
    the options mean nothing; RunFailed if the machine gives up: rows already measured are kept.
    """
    for name, value in (("most", most), ("examples", examples), ("budget", budget)):
        if value is not None and value < 1:
            raise BadOption(f"--{name} must be 1 or more; got {value}.")
    if examples < FEWEST:
        raise BadOption(f"--examples must be {FEWEST} or more to tell contrasts; got {examples}.")
    run = FinishedRun.read(check_named(folder), allowed)
    with run.opened() as (bench, tasks):
        task, grid = tasks[run.study.task], bench.grid
        chosen = grid.columns(run.result.top[:most])
        excluded = tuple(grid.columns(run.study.exclude))
        draw = run.study.draw(task.size)
        meter, progress = bench.meter(task), progress or Silent()
        meters = {task.name: meter}
        intact = meter.under(column_mask(grid.size, []), draw.searched, progress, "intact")
        problem = Problem(
            heads=grid.size,
            examples=draw.searched,
            settings=Settings(seed=run.study.settings.seed, top=most),
            probe=task.name,
            excluded=excluded,
            signal=add_signal(bench, meters, task.name, intact),
        )
        each = max(1, budget // grid.size) if budget else PER_HEAD
        stand_ins = search(meters, standing_in(problem, chosen, each), progress)
        judged = (draw.kept or draw.searched)[:examples]
        backups = list(behind(chosen, stand_ins))
        known = [{each.first, each.second} for each in backups]
        # A head's backup may be all the rest of its group: that pair is asked once.
        wholes = [w for w in groups(grid, chosen, excluded) if {w.first, w.second} not in known]
        asked = [
            contrasts(problem, judged, list(pairs(chosen)), "pairs"),
            contrasts(problem, judged, backups, "backups"),
            contrasts(problem, judged, wholes, "key-value groups"),
        ]
        rows = [row for each in asked for row in search(meters, each, progress)]
        described = describe_contrasts(rows, grid)
        told = {
            "schema": 1,
            "heads": [str(grid.components[column]) for column in chosen],
            "stand_ins": [str(grid.components[column]) for column in stand_ins],
            "examples": len(judged),
            "interactions": described,
            "limits": LIMITS,
            "cost": bench.cost.as_dict(),
        }
        write_json(folder / INTERACTIONS, told)
        rewrite_page(folder)
    return told


def pairs(chosen: Sequence[int]) -> Iterator[Contrast]:
    """Every two of the chosen heads."""
    for first, second in combinations(chosen, 2):
        yield Contrast("pair", (first,), (second,))


def behind(chosen: Sequence[int], stand_ins: Sequence[int]) -> Iterator[Contrast]:
    """Each head that steps in, against each chosen head and against all of them."""
    for column in stand_ins:
        yield from (Contrast("backup", (each,), (column,)) for each in chosen)
        if len(chosen) > 1:
            yield Contrast("backup", tuple(chosen), (column,))


def groups(
    grid: Grid[Any], chosen: Sequence[int], excluded: Sequence[int] = ()
) -> Iterator[Contrast]:
    """The chosen heads of a key-value group against the rest of it, without excluded heads."""
    for group in grid.groups:
        inside = tuple(column for column in group if column in chosen)
        rest = tuple(column for column in group if column not in (*chosen, *excluded))
        if inside and rest:
            yield Contrast("group", inside, rest)


def describe_contrasts(rows: Sequence[dict[str, Any]], grid: Grid[Any]) -> list[dict[str, Any]]:
    """Contrasts with their false discovery rates and what they mean, the surest first."""
    q = false_discovery_rates(np.array([row["p"] for row in rows], dtype=float))
    told: list[dict[str, Any]] = []
    for row, rate in zip(rows, q, strict=True):
        contrast = row["contrast"]
        told.append(
            {
                "kind": contrast.kind,
                "first": [str(grid.components[column]) for column in contrast.first],
                "second": [str(grid.components[column]) for column in contrast.second],
                **{name: number(row[name]) for name in ("effect", "low", "high")},
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
