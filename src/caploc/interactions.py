"""Do heads stand in for each other, or strengthen each other? Asked of a finished run.

Of two sets A and B of heads the contrast is `y(A and B gone) - y(A gone) - y(B gone) + y(intact)`,
example by example. Below zero they do more together than the sum: each covers for the loss of the
other. Above zero they do less: they are links of one chain, or there is not that much score to
lose. A head that breaks the task alone may be rescued by the absence of another one: that contrast
is `y(both gone) - y(the one gone)`.

A network without one head may be thrown off by what that head no longer corrects; with the source
of that gone as well it answers as before. So every other head is knocked out together with one that
breaks the task alone, on a few of the examples that this one breaks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from caploc import designs
from caploc.errors import BadOption
from caploc.finished import FinishedRun
from caploc.folder import INTERACTIONS, check_named, write_json
from caploc.heads import HeadGrid
from caploc.measurement import search
from caploc.progress import Progress, Silent
from caploc.recovery import paired
from caploc.recovery.estimate import Measurements, right_of, survived
from caploc.recovery.screening import false_discovery_rates
from caploc.report.page import rewrite_page
from caploc.report.wording import name_list
from caploc.result import number
from caploc.search import Plan, Problem, Settings
from caploc.search.plan import Asking, intact_plan
from caploc.search.published import Sheet
from caploc.search.screen import Screen
from caploc.search.sets import beyond_doubt
from caploc.search.state import SearchState
from caploc.workbench import Allowed, shared_price

TRIED = 40  # right examples on which a head alone shows whether it breaks the task
BREAKS = 0.2  # share of them that it must take for its rescue to be looked for
FEW = 4  # of the examples that it breaks, on which it is asked together with every other head
PROMISING = 0.25  # share of what it takes from these that another head's absence must bring back
MOST = 8  # heads whose absence may rescue one, handed on to be tried on other examples


@dataclass(frozen=True)
class Rescue:
    """A head that breaks the task alone, and others whose absence seems to mend that.

    `rescuers` come in the order of what they bring back, on the `examples` that were asked; no
    examples: the budget left none to ask.
    """

    breaker: int
    rescuers: tuple[int, ...] = ()
    examples: tuple[int, ...] = ()


def search_rescuers(
    problem: Problem, suspects: Sequence[int], rows: int | None
) -> Asking[list[Rescue]]:
    """What may rescue each of the suspects that breaks the task alone, the worst of them first.

    `rows` is the most that all pairs together may take (None: `FEW` examples a pair); where it does
    not pay for one example a pair, the heads that break least are not asked about.
    """
    intact = (yield intact_plan(problem, problem.examples)).by_example()
    tried = right_of(intact)[:TRIED]
    if not suspects or not tried:
        return []
    masks = designs.singles(problem.heads)[list(suspects)]
    alone = yield Plan.crossed(masks, tried, what="heads alone")
    broken = broken_by(suspects, alone, intact)
    pays = None if rows is None else rows // max(problem.heads - 1, 1)  # examples for all pairs
    asked = len(broken) if pays is None else min(len(broken), pays)
    few = FEW if pays is None else min(FEW, pays // max(asked, 1))
    rescues = []
    for breaker, without in list(broken.items())[:asked]:
        lost = dict(list(without.items())[:few])
        rescues.append((yield from promising(problem, breaker, lost, intact)))
    return rescues + [Rescue(breaker) for breaker in list(broken)[asked:]]


def broken_by(
    suspects: Sequence[int], alone: Measurements, intact: dict[int, float]
) -> dict[int, dict[int, float]]:
    """The outcomes that each suspect breaks alone, by example, of those that break enough."""
    lost = ~survived(alone, intact) & np.isfinite(alone.outcome)
    taken = {}
    for place, column in enumerate(suspects):
        own = alone.mask == place
        if lost[own].sum() >= BREAKS * own.sum():
            taken[column] = alone.where(own & lost).by_example()
    return dict(sorted(taken.items(), key=lambda item: -len(item[1])))


def promising(
    problem: Problem, breaker: int, lost: dict[int, float], intact: dict[int, float]
) -> Asking[Rescue]:
    """The heads whose absence brings back enough of what the breaker takes.

    `lost` holds the outcome without the breaker of each example that is asked.
    """
    others = [column for column in range(problem.heads) if column != breaker]
    masks = designs.singles(problem.heads)[others]
    masks[:, breaker] = True
    both = yield Plan.crossed(masks, list(lost), what="pairs that may rescue")
    before, after = np.array([intact[example] for example in lost]), np.array(list(lost.values()))
    gained = np.nan_to_num(both.outcome.reshape(len(others), -1) - after).sum(axis=1)
    order = np.argsort(-gained, kind="stable")[:MOST]
    enough = PROMISING * (before - after).sum()
    rescuers = tuple(others[place] for place in order if gained[place] >= enough)
    return Rescue(breaker, rescuers, tuple(lost))


FEWEST_RIGHT = 8  # examples still right without the found heads, to see anything


def standing_in(
    problem: Problem, found: Sequence[int], critical: Sequence[int], rows: int
) -> Asking[list[int]]:
    """Heads that are needed once the found ones are gone, the most needed first.

    Found heads are added one by one; one after which too few examples stay right is passed over,
    since a backup shows only where there is something left to lose. None if all are. What it
    returns are candidates: at two standard errors about one in forty idle heads is among them.
    """
    measured = yield intact_plan(problem, problem.examples)
    intact = measured.by_example()
    state = SearchState(problem, designs.generator(problem.settings.seed), intact)
    base: list[int] = []
    left = intact
    for column in found:
        right = right_of(intact)
        after = yield from state.outcomes_without([*base, column], right, "found heads")
        if len(right_of(after)) >= max(FEWEST_RIGHT, len(right_of(intact)) // 5):
            base, left = [*base, column], after
    if not base:
        return []
    avoid = problem.empty()
    avoid[[*critical, *found]] = True
    avoid[base] = False
    screen = Screen(problem, left, state.random, base, avoid)
    yield from state.screening(screen, state.spent + rows)
    return beyond_doubt(screen, problem.settings.top)


LEVEL = 0.05  # false discovery rate at which an interaction is named
PER_HEAD = 4  # rows a head of the screen for backups, if no budget is given
EXAMPLES = 100
COSTS = "cost_alone", "cost_together"  # of a head, and of it with its rescuer
LIMITS = (
    "Two heads that cover for each other completely, neither found alone, are out of reach of any "
    "screen of this size. A score near its floor makes contrasts look positive."
)


@dataclass(frozen=True)
class Contrast:
    """Two sets of heads whose joint loss is compared with the sum of their losses."""

    kind: str  # pair, backup, group or rescue
    first: tuple[int, ...]
    second: tuple[int, ...]


def contrasts(sheet: Sheet, wanted: Sequence[Contrast], what: str) -> Asking[list[dict[str, Any]]]:
    """Mean, interval and p of each contrast over the examples of a sheet."""
    sets = [s for each in wanted for s in (each.first + each.second, each.first, each.second)]
    intact, *cut = yield from sheet.without([(), *sets], what)
    return [
        {"contrast": each} | estimate_contrast(both - first - second + intact)
        for each, both, first, second in zip(wanted, cut[::3], cut[1::3], cut[2::3], strict=True)
    ]


def contrast_rescues(sheet: Sheet, found: Sequence[Rescue]) -> Asking[list[dict[str, Any]]]:
    """What each rescuer's absence brings back, on examples by which it was not picked.

    Beside the contrast stand the costs of the head alone and of both together.
    """
    pairs = [(each, column) for each in found for column in each.rescuers]
    alone = [(each.breaker,) for each, _ in pairs]
    together = [(each.breaker, column) for each, column in pairs]
    intact, *cut = yield from sheet.without([(), *alone, *together], "rescues")
    told = []
    for (each, column), *without in zip(pairs, cut[: len(pairs)], cut[len(pairs) :], strict=True):
        fresh = ~np.isin(sheet.examples, each.examples)
        outcomes = np.stack([intact, *without])[:, fresh]
        before, one, both = outcomes[:, np.isfinite(outcomes).all(axis=0)]
        binary = bool(np.isin(outcomes, (0.0, 1.0)).all())
        costs = [float((before - y).mean()) if before.size else np.nan for y in (one, both)]
        row: dict[str, Any] = {"contrast": Contrast("rescue", (each.breaker,), (column,))}
        row |= dict(zip(COSTS, costs, strict=True))
        told.append(row | estimate_contrast(both - one, binary=binary))
    return told


def estimate_contrast(values: np.ndarray, *, binary: bool = False) -> dict[str, float]:
    """Mean, interval and p of a contrast's values, one an example; NaN if none is known."""
    values = values[np.isfinite(values)]
    figures = paired(values, binary=binary) if values.size else (np.nan,) * 4
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

    Four questions: pairs of the `most` chosen heads; heads outside that step in once they are gone
    (a screen of `budget` rows, then contrasts with each chosen head); the key-value groups that the
    chosen heads belong to, as wholes; and heads whose absence rescues what one that breaks the task
    alone took (a screen of `budget` rows again, then contrasts). `allowed` says what may be run for
    it, and who answers. Raises UserError if the folder holds no finished run that found heads, or
    the options mean nothing; RunFailed if the machine gives up: rows already measured are kept.
    """
    for name, value in (("most", most), ("examples", examples), ("budget", budget)):
        if value is not None and value < 1:
            raise BadOption(f"--{name} must be 1 or more; got {value}.")
    run = FinishedRun.read(check_named(folder), allowed)
    task, *_ = run.tasks()
    with run.workbench() as bench:
        grid = bench.engine.loaded.grid
        chosen = columns(grid, run.result.top[:most])
        found, kept = run.study.drawn(task.size)
        meter, progress = bench.meter(task), progress or Silent()
        problem = Problem(
            heads=grid.size,
            examples=found,
            settings=Settings(seed=run.study.settings.seed, recall=1.0, top=most),
            shared=shared_price(bench, meter, found, progress),
        )
        critical = columns(grid, run.result.search.critical)
        generator = standing_in(problem, chosen, critical, budget or PER_HEAD * grid.size)
        stand_ins = search([meter], generator, progress)
        sheet = Sheet(problem, (kept or found)[:examples])
        screened = [example for example in found if example not in sheet.examples] or found
        suspects = list(dict.fromkeys(chosen + critical))
        asking = search_rescuers(replace(problem, examples=screened), suspects, budget)
        rescues = search([meter], asking, progress)
        backups = list(behind(chosen, stand_ins))
        known = [{each.first, each.second} for each in backups]
        # A head's backup may be all the rest of its group: that pair is asked once.
        wholes = [w for w in groups(grid, chosen) if {w.first, w.second} not in known]
        asked = [
            contrasts(sheet, list(pairs(chosen)), "pairs"),
            contrasts(sheet, backups, "backups"),
            contrasts(sheet, wholes, "key-value groups"),
            contrast_rescues(sheet, rescues),
        ]
        rows = [row for each in asked for row in search([meter], each, progress)]
        described = describe_contrasts(rows, grid)
        told = {
            "schema": 1,
            "heads": [str(grid.heads[column]) for column in chosen],
            "stand_ins": [str(grid.heads[column]) for column in stand_ins],
            "breaking": [str(grid.heads[each.breaker]) for each in rescues],
            "examples": len(sheet.examples),
            "interactions": described,
            "summary": [summary(each, grid, described) for each in rescues],
            "limits": LIMITS,
            "cost": bench.cost.as_dict(),
        }
        write_json(folder / INTERACTIONS, told)
        rewrite_page(folder)
    return told


def columns(grid: HeadGrid, names: Sequence[str]) -> list[int]:
    """The columns of heads given by name."""
    return [grid.column(head) for head in grid.named_in(names)]


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


def groups(grid: HeadGrid, chosen: Sequence[int]) -> Iterator[Contrast]:
    """The chosen heads of a key-value group against the rest of it."""
    for group in grid.groups:
        inside = tuple(column for column in group if column in chosen)
        rest = tuple(column for column in group if column not in chosen)
        if inside and rest:
            yield Contrast("group", inside, rest)


def describe_contrasts(rows: Sequence[dict[str, Any]], grid: HeadGrid) -> list[dict[str, Any]]:
    """Contrasts with their false discovery rates and what they mean, the surest first."""
    q = false_discovery_rates(np.array([row["p"] for row in rows], dtype=float))
    told: list[dict[str, Any]] = []
    for row, rate in zip(rows, q, strict=True):
        contrast = row["contrast"]
        costs = {key: number(row[key]) for key in COSTS if key in row}
        told.append(
            {
                "kind": contrast.kind,
                "first": [str(grid.heads[column]) for column in contrast.first],
                "second": [str(grid.heads[column]) for column in contrast.second],
                **{name: number(row[name]) for name in ("effect", "low", "high")},
                "q": number(float(rate)),
                "meaning": meaning(contrast.kind, row["effect"], float(rate)),
                **costs,
            }
        )
    return sorted(told, key=lambda row: (row["q"] is None, row["q"], row["effect"]))


def meaning(kind: str, effect: float, q: float) -> str:
    """What a contrast says, in a few words."""
    if not q < LEVEL:
        return "no interaction beyond doubt"
    if kind == "rescue":
        return "rescue: its absence mends" if effect > 0 else "no rescue: both gone is worse"
    if effect > 0:
        return "overlap: together less than the sum"
    if kind == "backup":
        return "backup: needed once the other is gone"
    return "synergy: together more than the sum"


def summary(rescue: Rescue, grid: HeadGrid, contrasts: Sequence[dict[str, Any]]) -> str:
    """Which heads' absence rescues what this head breaks, the best of them with its figures."""
    breaker = str(grid.heads[rescue.breaker])
    if not rescue.examples:
        return (
            f"{breaker} alone takes a fifth of right answers or more; whether another head's "
            "absence rescues them was not asked, because --budget is too small."
        )
    own = [each for each in contrasts if each["kind"] == "rescue" and each["first"] == [breaker]]
    named = [each for each in own if each["meaning"].startswith("rescue")]
    if not named:
        return (
            f"{breaker} alone takes a fifth of right answers or more, and no other head's "
            "absence was found to rescue them."
        )
    best, *others = sorted(named, key=lambda each: -each["effect"])
    (rescuer,) = best["second"]
    also = name_list([head for each in others for head in each["second"]])
    return (
        f"Removing {breaker} alone costs {best['cost_alone']:.2f}; with {rescuer} gone too it "
        f"costs {best['cost_together']:.2f} in all: {rescuer}'s absence rescues the answer."
        + (f" So does that of {also}, each without the others." if also else "")
    )
