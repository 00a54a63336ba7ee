"""Sets of heads: what breaks a task most together, and what does so and spares other tasks.

A *set* grows: all heads are scanned again with the set so far knocked out, on the right answers
that are left, and the one that takes most of them joins. So heads that cover for each other are
found. On fresh examples it stands beside the heads that are strongest alone; the better is named.

A *specific* set is composed: a linear model of what heads cost each task proposes sets (Thompson
sampling), these are tried jointly on all tasks, and correct the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float

from caploc import designs
from caploc.recovery import falls
from caploc.recovery.estimate import is_binary, right_of
from caploc.search.plan import (
    Asking,
    Found,
    OtherTask,
    Plan,
    Problem,
    ScanRecord,
    Search,
    intact_plan,
)
from caploc.search.scan import (
    LEVEL,
    Scan,
    Trial,
    find_universal,
    mean_overlap,
    split,
    to_try,
    try_heads,
)
from caploc.search.settings import KNOBS
from caploc.search.summary import NOTHING_SCORED, nothing_found, nothing_to_lose

Whole = tuple[int, ...]  # columns of the heads of a set
Effects = Float[np.ndarray, "tasks heads"]


def find_set(problem: Problem) -> Search:
    """Find the set that breaks the task most, or the one that does and keeps to the price."""
    intact = (yield intact_plan(problem, problem.probe, problem.examples)).by_example()
    if hopeless := nothing_to_lose(problem, intact):
        return nothing_found(problem, hopeless)
    composed_on, tried_on = split(problem, KNOBS.trial)
    random = designs.generator(problem.settings.seed)
    own = OtherTask(problem.probe, composed_on, problem.signal, twin=True)
    sides = []
    for each in sorted((own, *problem.sides), key=lambda each: not each.twin):
        side = yield from Side.open(problem, each, random)
        sides += [side] if side.scan.right else []  # what has no right answer has nothing to lose
    if not sides or sides[0].probe != problem.probe:
        return nothing_found(problem, NOTHING_SCORED)
    find = find_specific if problem.settings.goal == "specific" else find_most_damaging
    return (yield from find(problem, sides, tried_on))


def find_most_damaging(problem: Problem, sides: list["Side"], tried_on: list[int]) -> Search:
    """Grow a set; name it, or the heads that are strongest alone if these do more."""
    scan, top = sides[0].scan, problem.settings.top
    budget = problem.settings.budget or set_budget(len(problem.eligible), 1, top)
    spent = yield from scan.ask(problem.eligible, scanned_of(problem, budget))
    first = to_try(scan, min(KNOBS.tried * top, len(problem.eligible)))
    breaks = yield from find_universal(problem, first)
    common = replace(problem, excluded=(*problem.excluded, *breaks))
    grown, more = yield from grow(common, scan, budget - spent)
    late = yield from find_universal(problem, [column for column in grown if column not in first])
    grown, breaks = [column for column in grown if column not in late], breaks | late
    trial = yield from try_heads(problem, list(dict.fromkeys([*first, *grown])), tried_on)
    candidates = [
        grown,
        [column for column in trial.estimate().order() if column in trial.heads],
        scan.order(),
    ]
    sets = [tuple(sorted([c for c in each if c not in breaks][:top])) for each in candidates]
    fresh = list(problem.fresh or problem.examples)[: KNOBS.compared]
    sets = list(dict.fromkeys(filter(None, sets)))
    named, stable = yield from most_damaging(problem, sets, fresh, LEVEL)
    found = told(problem, sides[0], trial, named, spent + more, len(sets))
    assert found.stages is not None
    stages = replace(found.stages, stability=stable)
    return replace(found, universal=[*breaks], breaks_task=breaks, stages=stages)


def grow(problem: Problem, scan: Scan, rows: int) -> Asking[tuple[list[int], int]]:
    """Add heads, each time the one that takes most of what is left; the set, and the rows asked.

    Where neither rows nor right answers are left, the next ones of the last scan fill it up.
    """
    base, spent, order = list[int](), 0, list[int]()
    while True:
        order = [c for c in scan.order() if c not in base and c not in problem.excluded]
        first = order[: KNOBS.added]
        if not first:
            break
        examples = [
            scan.right[place % len(scan.right)]
            for place in range(len(base) * KNOBS.grown_on, (len(base) + 1) * KNOBS.grown_on)
        ]
        sets = [(*base, head) for head in first]
        masks = problem.without_each(sets)
        measured = yield Plan.crossed(scan.probe, masks, examples, "sets")
        lost = harm(scan.lost_by(measured), measured.kept_or_unknown).reshape(len(sets), -1)
        base.append(first[int(np.argmax(np.nan_to_num(lost).mean(axis=1)))])
        left = [column for column in problem.eligible if column not in base]
        spent += lost.size
        each = KNOBS.least_scanned * len(left) + KNOBS.added * KNOBS.grown_on
        if len(base) == problem.settings.top or not left or spent + each > rows:
            break
        again = Scan(problem, scan.probe, scan.right, scan.linear, tuple(base))
        yield from again.open()
        if len(again.right) < KNOBS.least_left:
            break
        spent += yield from again.ask(left, KNOBS.least_scanned)
        scan = again
    filled = [*base, *(column for column in order if column not in base)]
    return filled[: problem.settings.top], spent


def scanned_of(problem: Problem, budget: int) -> int:
    """How many answers each head is scanned on, if the rest of the budget is for the growth."""
    heads, top = len(problem.eligible), problem.settings.top
    spare = budget - set_budget(heads, 1, top) + KNOBS.scanned * heads
    return int(np.clip(spare // heads, KNOBS.least_scanned, KNOBS.most_scanned))


def set_budget(heads: int, tasks: int, top: int) -> int:
    """Rows of a search for a set, without trial and judgement, if no budget is given."""
    if tasks > 1:
        return max(KNOBS.least_budget, KNOBS.per_head * heads * tasks)
    again = (top - 1) * KNOBS.least_scanned * heads
    return KNOBS.scanned * heads + again + top * KNOBS.added * KNOBS.grown_on


def most_damaging(
    problem: Problem, sets: Sequence[Whole], examples: Sequence[int], level: float
) -> Asking[tuple[Whole, float]]:
    """Find the set that leaves least of these examples; none if it takes nothing for sure.

    The level is shared between the sets compared (Bonferroni). Also how much the sets overlap that
    would be named on resampled examples (`mean_overlap`).
    """
    if not sets or not len(examples):
        return (), 1.0
    intact = (yield intact_plan(problem, problem.probe, examples)).by_example()
    masks = problem.without_each(sets)
    measured = yield Plan.crossed(problem.probe, masks, examples, "whole sets")
    before = np.array([intact.get(example, np.nan) for example in examples])
    change = measured.outcome.reshape(len(sets), -1) - before
    random = designs.generator(problem.settings.seed)
    samples = random.integers(len(examples), size=(KNOBS.resamples, len(examples)))
    named = [best_of(change[:, sample], level, binary=is_binary(intact)) for sample in samples]
    nothing = problem.empty()
    members = np.stack([nothing if place is None else masks[place] for place in named])
    best = best_of(change, level, binary=is_binary(intact))
    return () if best is None else sets[best], mean_overlap(members)


def best_of(
    change: Float[np.ndarray, "sets examples"], level: float, *, binary: bool
) -> int | None:
    """Choose the set without which outcomes fall most, if they surely do."""
    scored = np.isfinite(change)
    total = np.where(scored, change, 0.0).sum(axis=1)
    mean = total / np.maximum(scored.sum(axis=1), 1)
    best = int(np.argmin(mean))
    drop = change[best][scored[best]]
    p = falls(drop, binary=binary) if drop.size else 1.0
    return best if p < level / len(change) else None


def told(
    problem: Problem,
    side: "Side",
    trial: Trial,
    named: Sequence[int],
    rows: int,
    sets: int,
) -> Found:
    """Tell of the heads named what each does alone, by the trial."""
    estimate, scan = trial.estimate(), side.scan
    chosen = sorted(named, key=lambda column: float(estimate.effect[column]))
    return Found(
        chosen=chosen,
        ranking=problem.rank(list(dict.fromkeys([*chosen, *estimate.order()]))),
        estimate=estimate,
        seen=trial.seen,
        critical=trial.critical(),
        stages=ScanRecord(
            budget=problem.settings.budget,
            rows=rows + len(trial.seen.outcome),
            scanned=scan.asked,
            broken=scan.broken,
            lost=scan.mean_lost,
            tried=trial.heads,
            tried_on=len(trial.intact),
            sets=sets,
        ),
    )


@dataclass
class Side:
    """A task that a set must break, or spare, and its scan.

    `weight` is the share of right answers, or of other outcomes 1: what is lost when all signals
    are gone, in units of the score.
    """

    probe: str
    target: bool
    scan: Scan
    weight: float
    used: int = 0

    @classmethod
    def open(cls, problem: Problem, each: OtherTask, random: np.random.Generator) -> Asking["Side"]:
        """Ask the intact model for its answers, and how strongly it holds on to the right ones."""
        intact = (yield intact_plan(problem, each.probe, each.examples)).by_example()
        right = random.permutation(right_of(intact)).tolist() if intact else []
        scan = Scan(problem, each.signal, right, each.signal == each.probe)
        yield from scan.open()
        weight = len(right) / len(intact) if intact and is_binary(intact) else 1.0
        return cls(each.probe, each.twin, scan, weight)

    def losses(self, sets: Sequence[Whole], count: int) -> Asking[Float[np.ndarray, "sets asked"]]:
        """Try sets on the signals of right examples; what the score loses by each, in its units."""
        right = self.scan.right
        asked = [right[n % len(right)] for n in range(self.used, self.used + count)]
        self.used += count
        masks = self.scan.problem.without_each(sets)
        measured = yield Plan.crossed(self.scan.probe, masks, asked, "sets")
        lost = harm(self.scan.lost_by(measured), measured.kept_or_unknown)
        return self.weight * lost.reshape(len(sets), count)

    def alone(self, pool: Sequence[int]) -> tuple[Float[np.ndarray, " pool"], ...]:
        """What each head of the pool costs alone, by the scan, and the variance of that."""
        lost = harm(self.scan.lost, self.scan.kept)[list(pool)]
        count = np.isfinite(lost).sum(axis=1)
        known = np.maximum(count, 1)
        mean = np.nansum(lost, axis=1) / known
        spread = np.nansum((lost - mean[:, None]) ** 2, axis=1) / known
        variance = np.where(count > 0, (spread + KNOBS.rare) / known, KNOBS.unknown**2)
        return self.weight * mean, self.weight**2 * variance


def harm(lost: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Average the share of the answer's probability that is lost and whether another one is given.

    The first tells small losses apart, the second is what greedy decoding does.
    """
    return np.where(np.isfinite(kept), (lost + 1 - kept) / 2, lost)


@dataclass
class CandidateSet:
    """A set, and what each task was seen to lose without it."""

    columns: Whole
    targets: int  # of the tasks, the first so many are to be broken
    lost: list[list[float]]

    def losses(self) -> Float[np.ndarray, "tasks 2"]:
        """Mean loss of each task and its standard error."""
        parts = []
        for values in self.lost:
            known = np.array([each for each in values if np.isfinite(each)])
            if known.size < 2:
                parts.append((float(known.mean()) if known.size else 0.0, KNOBS.unknown))
                continue
            error = ((known.var(ddof=1) + KNOBS.rare) / known.size) ** 0.5
            parts.append((float(known.mean()), error))
        return np.array(parts)

    @property
    def damage(self) -> float:
        """Mean loss of the task and its twins."""
        return float(self.losses()[: self.targets, 0].mean())

    def worth(self, price: float) -> float:
        """The damage, a standard error less than it seems, less what is risked beyond the price."""
        losses, errors = self.losses().T
        risk = (losses + errors)[self.targets :].max(initial=0.0)
        damage = (losses - errors)[: self.targets].mean()
        return float(damage - KNOBS.excess * max(0.0, risk - price))


@dataclass
class Composition:
    """The running search for a specific set: its tasks, pool of heads, candidates, rows left."""

    problem: Problem
    sides: list[Side]
    left: int
    random: np.random.Generator
    pool: list[int] = field(default_factory=list)
    tried: dict[Whole, CandidateSet] = field(default_factory=dict)

    @property
    def targets(self) -> int:
        return sum(side.target for side in self.sides)

    def scan(self) -> Asking[None]:
        """Scan every head on the targets, then the best of them further and on spared tasks."""
        every, budget = self.problem.eligible, self.left
        count = KNOBS.scanning * budget / (len(every) * self.targets)
        for side in self.sides[: self.targets]:
            self.left -= yield from side.scan.ask(every, int(np.clip(count, 1, KNOBS.most_scanned)))
        gain = np.mean([side.scan.mean_fall[every] for side in self.sides[: self.targets]], axis=0)
        size = max(KNOBS.pooled * self.problem.settings.top, KNOBS.least_pool)
        best = np.argsort(-np.nan_to_num(gain, nan=-np.inf), kind="stable")[:size]
        self.pool = [every[place] for place in best]
        count = KNOBS.pooling * budget / (len(self.pool) * len(self.sides))
        for side in self.sides:
            more = int(np.clip(count, KNOBS.least_each, KNOBS.most_each))
            self.left -= yield from side.scan.ask(self.pool, more, int(self.random.integers(99)))

    def known(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """What heads of the pool cost each task as if losses added up: mean and covariance."""
        return [
            posterior(side.alone(self.pool), [*self.tried.values()], place, self.pool)
            for place, side in enumerate(self.sides)
        ]

    def try_sets(self, sets: Sequence[Whole], rows: int) -> Asking[None]:
        """Try sets on further examples of every task, with so many rows in all."""
        if not sets:
            return
        for columns in sets:
            nothing = CandidateSet(columns, self.targets, [[] for _ in self.sides])
            self.tried.setdefault(columns, nothing)
        count = int(np.clip(rows // (len(sets) * len(self.sides)), 1, KNOBS.most_each))
        for place, side in enumerate(self.sides):
            lost = yield from side.losses(sets, count)
            self.left -= lost.size
            for columns, values in zip(sets, lost, strict=True):
                self.tried[columns].lost[place] += values.tolist()

    def propose(self, count: int) -> list[Whole]:
        """Compose different sets, each the best by one draw of what is known of the heads."""
        known, sets = self.known(), dict[Whole, None]()
        for number in range(KNOBS.draws * count):
            means = np.array(
                [self.random.multivariate_normal(*each) if number else each[0] for each in known]
            )
            price = self.problem.settings.price * (self.random.random() if number else 1.0)
            best = self.compose(means, price)
            if best:
                sets[best] = None
            if len(sets) == count:
                break
        return list(sets)

    def compose(self, means: Effects, price: float) -> Whole:
        """Add the head that is worth most, as long as the worth grows."""
        chosen: list[int] = []
        total, worth = np.zeros((len(means), 1)), 0.0
        while len(chosen) < self.problem.settings.top:
            sums = total + means
            beyond = sums[self.targets :].max(axis=0, initial=0.0) - price
            worths = sums[: self.targets].mean(axis=0) - KNOBS.excess * np.maximum(beyond, 0.0)
            worths[chosen] = -np.inf
            best = int(np.argmax(worths))
            if worths[best] <= worth:
                break
            chosen.append(best)
            total, worth = sums[:, [best]], float(worths[best])
        return tuple(sorted(self.pool[place] for place in chosen))

    def best(self, count: int) -> list[CandidateSet]:
        """The candidates that are worth most."""
        price = self.problem.settings.price
        return sorted(self.tried.values(), key=lambda each: -each.worth(price))[:count]


def posterior(
    alone: tuple[np.ndarray, ...], tried: Sequence[CandidateSet], task: int, pool: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Correct what heads cost alone by what sets of them cost: Bayesian linear regression."""
    prior, variance = alone
    known = [each for each in tried if len(each.lost[task]) > 1]
    if not known:
        return prior, np.diag(variance)
    members = np.array([[column in each.columns for column in pool] for each in known], dtype=float)
    loss, error = np.array([each.losses()[task] for each in known]).T
    shared = variance[:, None] * members.T
    gain = np.linalg.solve(members @ shared + np.diag(error**2), shared.T).T
    return prior + gain @ (loss - members @ prior), np.diag(variance) - gain @ shared.T


def find_specific(problem: Problem, sides: list[Side], tried_on: list[int]) -> Search:
    """Compose sets and try them; the best are to be judged against the price."""
    top = problem.settings.top
    budget = problem.settings.budget or set_budget(len(problem.eligible), len(sides), top)
    search = Composition(problem, sides, budget, designs.generator(problem.settings.seed))
    yield from search.scan()
    rounds = len(KNOBS.proposed)
    for number, count in enumerate(KNOBS.proposed):
        rows = int(KNOBS.proposing * search.left / (rounds - number))
        sets = search.propose(min(count, rows // (KNOBS.least_each * len(sides))))
        yield from search.try_sets(sets, rows)
    for _ in range(2):
        sets = [each.columns for each in search.best(KNOBS.finalists)]
        yield from search.try_sets(sets, search.left // 2)
    best = [each for each in search.best(KNOBS.candidates) if each.damage > 0]
    members = best[0].columns if best else ()
    heads = dict.fromkeys([*sides[0].scan.order()[: KNOBS.tried * top], *members])
    trial = yield from try_heads(problem, [*heads], tried_on)
    found = told(problem, sides[0], trial, members, budget - search.left, len(search.tried))
    return replace(found, candidates=[list(each.columns) for each in best])
