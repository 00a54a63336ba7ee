"""Sets of heads: what breaks a task most together, and what does so and spares other tasks.

Both goals are one search. Single heads are scanned on the task and its twins, the best of them also
on the tasks to spare. Sets are then composed of them and tried jointly, each on the signals of a
few examples of every task: sets that grow by the head with which most is lost, the heads that
matter most alone, and draws from what is known so far (Thompson sampling: a linear model of what
heads cost each task, corrected by the sets that were tried). The best are tried on outcomes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

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
from caploc.search.scan import LEVEL, Scan, split, try_heads
from caploc.search.settings import KNOBS
from caploc.search.summary import NOTHING_SCORED, nothing_found, nothing_to_lose

Whole = tuple[int, ...]  # columns of the heads of a set
Effects = Float[np.ndarray, "tasks heads"]


@dataclass
class Side:
    """A task that a set must break, or spare: how the intact model does it, and its scan.

    `weight` is the share of right answers, or of other outcomes 1: what is lost when all signals
    are gone, in units of the score.
    """

    probe: str
    target: bool
    intact: dict[int, float]
    scan: Scan
    weight: float
    random: np.random.Generator
    used: int = 0

    @classmethod
    def open(
        cls, problem: Problem, each: OtherTask, target: bool, random: np.random.Generator
    ) -> Asking["Side"]:
        """Ask the intact model for its answers, and how strongly it holds on to the right ones."""
        intact = (yield intact_plan(problem, each.probe, each.examples)).by_example()
        right = random.permutation(right_of(intact)).tolist() if intact else []
        scan = Scan(problem, each.signal, right, each.signal == each.probe)
        yield from scan.open()
        weight = len(right) / len(intact) if intact and is_binary(intact) else 1.0
        return cls(each.probe, target, intact, scan, weight, random)

    def losses(self, sets: Sequence[Whole], count: int) -> Asking[Float[np.ndarray, "sets asked"]]:
        """Try sets on the signals of right examples; what the score loses by each, in its units."""
        right = self.scan.right
        asked = [right[n % len(right)] for n in range(self.used, self.used + count)]
        self.used += count
        masks = self.scan.problem.without_each(sets)
        measured = yield Plan.crossed(self.scan.probe, masks, asked, "sets")
        lost = harm(self.scan.lost_by(measured), measured.kept_or_unknown)
        return self.weight * lost.reshape(len(sets), count)

    def falls(self, sets: Sequence[Whole], count: int) -> Asking[Float[np.ndarray, "sets asked"]]:
        """Try sets on the outcomes of examples; by how much each outcome falls."""
        asked = self.random.permutation([*self.intact])[:count].tolist()
        masks = self.scan.problem.without_each(sets)
        measured = yield Plan.crossed(self.probe, masks, asked, "whole sets")
        before = np.array([self.intact[example] for example in asked])
        return before - measured.outcome.reshape(len(sets), len(asked))

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
    """A set, and what each task loses without it: by signals, and by outcomes if asked."""

    columns: Whole
    targets: int  # of the tasks, the first so many are to be broken
    signals: list[list[float]]
    outcomes: list[list[float]]

    def losses(self) -> Float[np.ndarray, "tasks 2"]:
        """Mean loss of each task and its standard error; outcomes count once there are enough."""
        parts = []
        for signals, outcomes in zip(self.signals, self.outcomes, strict=True):
            values = outcomes if len(outcomes) >= KNOBS.enough else [*signals]
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
        doubt = errors[: self.targets].mean()
        damage = losses[: self.targets].mean() - doubt
        return float(damage - KNOBS.excess * max(0.0, risk - price))


@dataclass
class SetSearch:
    """The running search for a set: its tasks, pool of heads, candidates, and rows spent."""

    problem: Problem
    sides: list[Side]
    budget: int
    random: np.random.Generator
    pool: list[int] = field(default_factory=list)
    tried: dict[Whole, CandidateSet] = field(default_factory=dict)
    simple: list[Whole] = field(default_factory=list)  # the strongest alone, and the grown set
    spent: int = 0

    @property
    def targets(self) -> int:
        return sum(side.target for side in self.sides)

    @property
    def price(self) -> float:
        """What a spared task may lose; without one a set costs nothing."""
        return self.problem.settings.price

    @property
    def left(self) -> int:
        return max(self.budget - self.spent, 0)

    def candidate(self, columns: Sequence[int]) -> CandidateSet:
        whole = tuple(sorted(columns))
        empty: tuple[list[list[float]], ...] = ([[] for _ in self.sides], [[] for _ in self.sides])
        return self.tried.setdefault(whole, CandidateSet(whole, self.targets, *empty))

    def scan(self) -> Asking[None]:
        """Scan every head on the targets, then the best of them further and on spared tasks."""
        every = self.problem.eligible
        share = KNOBS.scanning * self.budget / (len(every) * self.targets)
        count = int(np.clip(share, 1, KNOBS.most_scanned))
        for side in self.sides[: self.targets]:
            self.spent += yield from side.scan.ask(every, count)
        gain = np.mean([side.scan.mean_fall[every] for side in self.sides[: self.targets]], axis=0)
        size = max(KNOBS.pooled * self.problem.settings.top, KNOBS.least_pool)
        best = np.argsort(-np.nan_to_num(gain, nan=-np.inf), kind="stable")[:size]
        self.pool = [every[place] for place in best]
        share = KNOBS.pooling * self.budget / (len(self.pool) * len(self.sides))
        for side in self.sides:
            more = int(np.clip(share, KNOBS.least_each, KNOBS.most_each))
            self.spent += yield from side.scan.ask(
                self.pool, more, offset=int(self.random.integers(99))
            )

    def known(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """What heads of the pool cost each task as if losses added up: mean and covariance."""
        return [
            posterior(side.alone(self.pool), [*self.tried.values()], place, self.pool)
            for place, side in enumerate(self.sides)
        ]

    def try_sets(
        self, sets: Sequence[Whole], count: int, *, outcomes: bool = False
    ) -> Asking[None]:
        """Try sets on further examples of every task."""
        each = [self.candidate(columns) for columns in dict.fromkeys(sets)]
        if not each or count < 1:
            return
        for place, side in enumerate(self.sides):
            if not side.scan.right:
                continue
            ask = side.falls if outcomes else side.losses
            lost = yield from ask([one.columns for one in each], count)
            self.spent += lost.size
            for one, values in zip(each, lost, strict=True):
                (one.outcomes if outcomes else one.signals)[place] += values.tolist()

    def grow(self) -> Asking[Whole]:
        """Add heads to a set, each time the one with which it is worth most by trying."""
        base: Whole = ()
        for _ in range(min(self.problem.settings.top, len(self.pool))):
            means = np.array([mean for mean, _ in self.known()])
            order = np.argsort(-self.worths(means, base), kind="stable")
            heads = [self.pool[p] for p in order if self.pool[p] not in base][: KNOBS.added]
            sets = [tuple(sorted((*base, head))) for head in heads]
            if not sets or self.left < len(sets) * len(self.sides) * KNOBS.least_each:
                break
            yield from self.try_sets(sets, KNOBS.grown_on)
            base = max(sets, key=lambda each: self.tried[each].worth(self.price))
        return base

    def worths(self, means: Effects, base: Whole) -> Float[np.ndarray, " pool"]:
        """What a set would be worth with each head of the pool added, if losses added up."""
        inside = [self.pool.index(column) for column in base]
        total = means[:, inside].sum(axis=1, keepdims=True) + means
        beyond = total[self.targets :].max(axis=0, initial=0.0) - self.price
        return total[: self.targets].mean(axis=0) - KNOBS.excess * np.maximum(beyond, 0.0)

    def propose(self, count: int) -> list[Whole]:
        """Compose different sets, each the best by one draw of what is known of the heads."""
        known, sets = self.known(), dict[Whole, None]()
        for number in range(KNOBS.draws * count):
            means = np.array(
                [self.random.multivariate_normal(*each) if number else each[0] for each in known]
            )
            price = self.price * (self.random.random() if number else 1.0)
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
        return sorted(self.tried.values(), key=lambda each: -each.worth(self.price))[:count]


def posterior(
    alone: tuple[np.ndarray, ...], tried: Sequence[CandidateSet], task: int, pool: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Correct what heads cost alone by what sets of them cost: Bayesian linear regression."""
    prior, variance = alone
    known = [each for each in tried if len(each.signals[task]) > 1]
    if not known:
        return prior, np.diag(variance)
    members = np.array([[column in each.columns for column in pool] for each in known], dtype=float)
    loss, error = np.array([each.losses()[task] for each in known]).T
    shared = variance[:, None] * members.T
    gain = np.linalg.solve(members @ shared + np.diag(error**2), shared.T).T
    return prior + gain @ (loss - members @ prior), np.diag(variance) - gain @ shared.T


def search_sets(problem: Problem, sides: list[Side], budget: int) -> Asking[SetSearch]:
    """Scan, compose sets, try them; the candidates are in what is returned, with what they cost."""
    search = SetSearch(problem, sides, budget, designs.generator(problem.settings.seed))
    yield from search.scan()
    first = [*map(int, np.argsort(-search.known()[0][0], kind="stable"))]
    alone = tuple(sorted(search.pool[place] for place in first[: problem.settings.top]))
    grown = yield from search.grow()
    search.simple = [each for each in (alone, grown) if each]
    yield from search.try_sets([alone], KNOBS.grown_on)
    for count in KNOBS.proposed:
        rows = int(KNOBS.proposing * search.left / len(KNOBS.proposed))
        sets = search.propose(min(count, rows // (KNOBS.least_each * len(sides))))
        if sets:
            each = min(rows // (len(sets) * len(sides)), KNOBS.most_each)
            yield from search.try_sets(sets, max(each, 1))
    for count, share, outcomes in ((KNOBS.finalists, 0.4, False), (KNOBS.finalists, 0.9, True)):
        sets = [each.columns for each in search.best(count)]
        if sets:
            each = int(share * search.left) // (len(sets) * len(sides))
            yield from search.try_sets(sets, each, outcomes=outcomes)
    return search


def most_damaging(
    problem: Problem, sets: Sequence[Whole], examples: Sequence[int], level: float
) -> Asking[Whole]:
    """Find the set that leaves least of these examples; none if it takes nothing for sure.

    The level is shared between the sets compared (Bonferroni).
    """
    if not sets or not len(examples):
        return ()
    intact = (yield intact_plan(problem, problem.probe, examples)).by_example()
    masks = problem.without_each(sets)
    measured = yield Plan.crossed(problem.probe, masks, examples, "whole sets")
    best = int(np.argmin(np.nan_to_num(measured.mask_means(), nan=np.inf)))
    outcomes = measured.where(measured.mask == best).by_example()
    drop = np.array([outcomes[e] - intact[e] for e in outcomes if e in intact])
    p = falls(drop, binary=is_binary(intact)) if drop.size else 1.0
    return sets[best] if p < level / len(sets) else ()


def find_set(problem: Problem) -> Search:
    """Find the set that breaks the task most, or the one that does and keeps to the price."""
    intact = (yield intact_plan(problem, problem.probe, problem.examples)).by_example()
    if hopeless := nothing_to_lose(problem, intact):
        return nothing_found(problem, hopeless)
    random = designs.generator(problem.settings.seed)
    composed_on, tried_on = split(problem, KNOBS.trial)
    own = OtherTask(problem.probe, composed_on, problem.signal, twin=True)
    every = sorted((own, *problem.sides), key=lambda each: not each.twin)
    sides = []
    for each in every:
        side = yield from Side.open(problem, each, each.twin, random)
        sides += [side] if side.scan.right else []  # what has no right answer has nothing to lose
    if not sides or sides[0].probe != problem.probe:
        return nothing_found(problem, NOTHING_SCORED)
    budget = problem.settings.budget or set_budget(len(problem.eligible), len(sides))
    search = yield from search_sets(problem, sides, budget)
    specific = problem.settings.goal == "specific"
    best = [each for each in search.best(KNOBS.candidates) if each.damage > 0]
    candidates = [each.columns for each in best]
    scan = sides[0].scan
    tried = scan.order()[: KNOBS.tried * problem.settings.top]
    tried = list(dict.fromkeys([*tried, *(candidates[0] if candidates else ())]))
    trial = yield from try_heads(problem, tried, tried_on)
    members = candidates[0] if candidates else ()
    if not specific:
        # The simplest sets are judged as well, so that no search is worse than none.
        alone = tuple(sorted(trial.estimate().needed(problem.settings.top)))
        candidates = [*dict.fromkeys([*candidates, *search.simple, *([alone] if alone else [])])]
        fresh = list(problem.fresh or problem.examples)[: KNOBS.compared]
        members = yield from most_damaging(problem, candidates, fresh, LEVEL)
        if untried := [column for column in members if column not in trial.heads]:
            trial = trial.joined((yield from try_heads(problem, untried, tried_on)))
    estimate = trial.estimate()
    order = sorted(members, key=lambda column: float(estimate.effect[column]))
    return Found(
        chosen=order,
        ranking=problem.rank(list(dict.fromkeys([*order, *estimate.order()]))),
        estimate=estimate,
        seen=trial.seen,
        critical=trial.critical(),
        candidates=[list(each) for each in candidates] if specific else [],
        stages=ScanRecord(
            budget=budget,
            rows=search.spent + len(trial.seen.outcome),
            scanned=scan.asked,
            broken=scan.broken,
            lost=scan.mean_lost,
            tried=trial.heads,
            tried_on=len(trial.intact),
            sets=len(search.tried),
        ),
    )


def set_budget(heads: int, tasks: int) -> int:
    """Rows of a search for a set if none are named: eight a head and task."""
    return max(KNOBS.least_budget, KNOBS.per_head * heads * tasks)
