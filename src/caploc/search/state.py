"""The running part of an adaptive search: rounds, rates, critical heads, and the shortlist.

A head that breaks the task alone turns every mask that holds it into a failure and hides what the
other heads of the mask do: it is found while screening, confirmed alone, and set aside.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from math import log

import numpy as np
from jaxtyping import Bool
from scipy import sparse

from caploc import designs
from caploc.heads import Mask
from caploc.recovery import (
    falls,
    fit_paired,
    paired_standard_error,
    right_or_wrong,
    single_head_differences,
)
from caploc.recovery.estimate import Estimate, Measurements, PerHead, right_of, survived
from caploc.recovery.screening import Effects, top_chances
from caploc.search.plan import Asking, Plan, Problem, column_mask, intact_plan
from caploc.search.screen import Screen

SHARE = 0.6  # of what is left without the head, that the head takes, to be suspected
DEVIATIONS = 3.5  # by which it must do so, in standard errors
SUSPECTED = 1.5  # the same before a screen ends, when a head could not be told for sure so far
CUTS = 4  # of it, at least
TRIED_ALONE = 12  # right examples that a suspect is tried on alone
SURVIVORS = 3  # of them, at most, for the suspicion to hold
ELSEWHERE = 0.5  # share of another task's right answers that a universal head takes at least


def suspects(
    seen: Measurements, alive: Bool[np.ndarray, " rows"], known: Mask, doubt: float = DEVIATIONS
) -> list[int]:
    """Find heads under which most of what works without them fails; the strongest first.

    The loss, of `doubt` standard errors or more, is judged against rows without the heads found so
    far, so that one does not hide the next. `known` heads are set aside from the start.
    """
    cuts = sparse.csr_matrix(seen.masks, dtype=np.float64)[seen.mask]
    aside = known.copy()
    suspected: list[int] = []
    while True:
        clean = np.asarray(cuts @ aside).ravel() == 0
        z = deviations(cuts[clean], alive[clean])
        z[aside] = 0
        worst = int(np.argmax(z))
        if z[worst] < doubt:
            return suspected
        suspected.append(worst)
        aside[worst] = True


def deviations(cuts: sparse.csr_matrix, alive: Bool[np.ndarray, " rows"]) -> PerHead:
    """By how many standard errors each head takes more than its share allows; 0 if it does not."""
    rows = len(alive)
    with_head = np.asarray(cuts.sum(axis=0)).ravel()
    right_with = np.asarray(cuts.T @ alive.astype(float)).ravel()
    without = np.maximum(rows - with_head, 1)
    rest = (alive.sum() - right_with) / without
    mean = right_with / np.maximum(with_head, 1)
    error = np.sqrt(np.maximum(rest * (1 - rest), 1e-9) / np.maximum(with_head, 1))
    strong = (with_head >= CUTS) & (mean < (1 - SHARE) * rest)
    return np.where(strong, (rest - mean) / error, 0.0)


def single_head_plan(heads: int, columns: list[int], examples: list[int], task: int = 0) -> Plan:
    """Plan each head by itself on every one of the examples."""
    masks = designs.singles(heads)[columns]
    return Plan.crossed(masks, examples, task=task, what="critical heads")


def broken(measured: Measurements, intact: dict[int, float], share: float) -> bool:
    """Tell whether at most `share` of the rows are still alive."""
    alive = survived(measured, intact)
    return bool(alive.sum() <= share * len(alive))


OPENING = 0.7  # rows a head that are drawn evenly before any focus
ROUND = 0.3  # rows a head in each of the first rounds
GROWTH = 0.25  # rows of a later round, as a share of those before
LEAST_ROUND = 100
LEAST_OPENING = 300  # rows, so that small models find their rate too
ALIVE = 0.6  # of what the intact model gets right, to be left under a mask
# Heads in a mask, whatever is left: with many others gone a screen tells what heads do together,
# which is what a set is wanted for, and not what one does alone.
MOST = {"heads": 0.06, "set": 0.15}
TRIED_ELSEWHERE = 12  # right answers of another task that a critical head is tried on


@dataclass
class SearchState:
    """What an adaptive search has spent and found out besides effects."""

    problem: Problem
    random: np.random.Generator
    intact: dict[int, float]
    critical: list[int] = field(default_factory=list)
    cleared: list[int] = field(default_factory=list)
    universal: list[int] = field(default_factory=list)
    breaks_task: dict[int, int] = field(default_factory=dict)  # of a universal head, the other one
    tried: Measurements | None = None  # candidates for a set, each alone
    spent: int = 0
    promised: float = 0.0
    unsteadiness: float | None = None  # of likelihoods, in nats, where a trial told it

    @property
    def budget(self) -> int:
        """The most rows to plan; intact rows, which every method needs, are not counted."""
        return self.problem.settings.most_rows(self.problem.heads)

    @property
    def left(self) -> int:
        """Rows of the budget that are not spent."""
        return max(self.budget - self.spent, 0)

    @property
    def struck(self) -> tuple[int, ...]:
        """Heads that are not ranked: the excluded and the universal ones."""
        return (*self.problem.excluded, *self.universal)

    @property
    def own(self) -> list[int]:
        """Critical heads that break no other task."""
        return [column for column in self.critical if column not in self.universal]

    def ask(self, plan: Plan) -> Asking[Measurements]:
        self.spent += len(plan.mask)
        return (yield plan)

    def outcomes_without(
        self, columns: Sequence[int], examples: Sequence[int], what: str
    ) -> Asking[dict[int, float]]:
        """Ask for examples with all of these heads gone."""
        mask = column_mask(self.problem.heads, columns)
        return (yield from self.ask(Plan.crossed(mask[None], examples, what=what))).by_example()

    def screening(self, screen: Screen, until: int) -> Asking[None]:
        """Rows in rounds until so many were spent or the top heads are known well enough."""
        heads = int(screen.free.sum())
        while self.spent < until and screen.free.any():
            done = len(screen.seen.outcome)
            step = max(LEAST_ROUND, int(ROUND * heads), int(GROWTH * done))
            plan = screen.next_rows(min(step, until - self.spent))
            screen.take((yield from self.ask(plan)))
            if not screen.base:  # under a base no row is left to compare with
                yield from self.set_aside(screen)
            if len(screen.seen.outcome) < max(OPENING * heads, LEAST_OPENING):
                retune(screen)
                continue
            screen.look()
            self.promised = expected_recall(screen)
            if self.promised < self.problem.settings.recall:
                continue
            known = len(self.critical)
            if not screen.base:
                yield from self.set_aside(screen, SUSPECTED)
            if len(self.critical) == known:
                break

    def set_aside(self, screen: Screen, doubt: float = DEVIATIONS) -> Asking[None]:
        """Find heads that break everything, try them alone, and draw them no more.

        Suspicions that the budget leaves no rows to confirm are dropped.
        """
        most = TRIED_ALONE + TRIED_ELSEWHERE * len(self.problem.elsewhere)
        known = screen.avoid.copy()
        known[self.cleared] = True
        alive = survived(screen.seen, screen.intact)
        for column in suspects(screen.seen, alive, known, doubt):
            tried = self.random.permutation(screen.right)[:TRIED_ALONE].tolist()
            if self.left < most:
                return
            rows = yield from self.ask(single_head_plan(self.problem.heads, [column], tried))
            if not broken(rows, screen.intact, SURVIVORS / TRIED_ALONE):
                self.cleared.append(column)
                continue
            self.critical.append(column)
            screen.avoid[column] = True
            self.universal += yield from self.find_universal([column])

    @property
    def triable_elsewhere(self) -> int:
        """Of how many heads the budget has rows left to see what else they break."""
        each = TRIED_ELSEWHERE * len(self.problem.elsewhere)
        return self.left // each if each else self.problem.heads

    def find_universal(self, columns: Sequence[int]) -> Asking[list[int]]:
        """Find which of these heads, each alone, takes half of what is right in another task."""
        left = [*columns]
        for task, examples in enumerate(self.problem.elsewhere, start=1):
            if not len(examples):
                continue
            intact = (yield intact_plan(self.problem, examples, task=task)).by_example()
            tried = right_of(intact)[:TRIED_ELSEWHERE]
            if not tried:
                continue
            rows = yield from self.ask(single_head_plan(self.problem.heads, left, tried, task))
            each = [rows.where(rows.mask == number) for number in range(len(left))]
            breaks = [broken(one, intact, ELSEWHERE) for one in each]
            self.breaks_task |= dict.fromkeys(compress(left, breaks), task)
            left = [*compress(left, (not one for one in breaks))]
            if not left:
                break
        return [column for column in columns if column not in left]


def retune(screen: Screen) -> None:
    """Choose the rate under which `ALIVE` of the right answers should be left.

    With a share `a` alive under masks at a rate, each head costs about `-log(a)` over their number;
    the rate changes by a factor of two at most in a round.
    """
    newest = screen.seen.round == screen.seen.round.max()
    last = newest & ~screen.seen.touching(screen.avoid)
    if not last.any():
        return
    alive = survived(screen.seen.where(last), screen.intact)
    left = (alive.sum() + 0.5) / (len(alive) + 1)
    wanted = screen.rate * log(ALIVE) / min(log(left), -0.01)
    most = MOST[screen.problem.settings.goal]
    lowest = max(1 / screen.problem.heads, screen.rate / 2)
    screen.rate = float(np.clip(wanted, lowest, max(lowest, min(2 * screen.rate, most))))


def expected_recall(screen: Screen) -> float:
    """Average the chances of the top heads to be truly among the top, as the screen has it."""
    top = min(screen.problem.settings.top, screen.problem.heads)
    chances = top_chances(screen.posterior(), top, seed=len(screen.seen.outcome))
    return float(np.sort(chances)[::-1][:top].mean())


# With less than `FEW_ROWS` rows a head, a look at likelihoods rests on two examples of each head at
# most. It is then only worth its rows where a head of no account hardly moves a right answer's
# odds: by .01 to .23 nats on six tasks of SmolLM2, by .26 and more where rows have luck.
FEW_ROWS, UNSTEADY = 8.5, 0.25
PROBED, PROBES = 16, 2  # heads, and examples, by which that is told: rows that a screen lacks
PROBING = 0.1  # share of the budget for it at most; fewer heads tell nothing
SMALLEST = 1e-9  # below 0, so that a certain answer has finite odds


def worth_a_look(state: SearchState) -> Asking[bool]:
    """Say whether to begin with likelihoods: where rows are few for the heads, a trial tells."""
    problem, opening = state.problem, state.problem.settings.opening
    few = state.budget < FEW_ROWS * len(problem.eligible)
    if opening != "auto" or not few or not problem.likelihood:  # 0: likelihood is the outcome
        return opening != "masks"
    right = state.random.permutation(right_of(state.intact))[:PROBES].tolist()
    heads = state.random.permutation(problem.eligible)[:PROBED].tolist()
    if len(heads) < PROBED or PROBED * len(right) > PROBING * state.budget:
        return True
    state.unsteadiness = yield from measure_unsteadiness(problem, right, heads)
    state.spent += len(heads) * len(right)
    return not state.unsteadiness > UNSTEADY


def measure_unsteadiness(
    problem: Problem, right: Sequence[int], heads: Sequence[int]
) -> Asking[float]:
    """Measure by how many nats one head alone moves the odds of right answers: the median of some.

    Of random heads nearly all matter to none. NaN where the likelihoods could not be told.
    """
    assert problem.likelihood is not None
    empty, task = problem.empty()[None], problem.likelihood
    before = yield Plan.crossed(empty, right, task=task, what="intact likelihood")
    masks = designs.singles(problem.heads)[list(heads)]
    after = yield Plan.crossed(masks, right, task=task, what="trial of likelihoods")
    likelihood = np.concatenate([before.outcome, after.outcome]).reshape(-1, len(right))
    if (likelihood <= 0).all():  # log-probabilities; margins are odds already
        share = np.minimum(likelihood, -SMALLEST)
        likelihood = share - np.log(-np.expm1(share))
    return float(np.nanmedian(np.abs(likelihood[1:] - likelihood[0])))


EVEN = 0.5  # share of the rows that all heads of the shortlist get alike
LOOKS = 4  # at which the rest is handed to heads that are still contested


@dataclass
class Shortlist:
    """Heads knocked out alone, each on the first so many of the same examples.

    These are `pool`, or if it is empty the problem's fresh ones, or without any those that heads
    are searched for on. `order` is that of the examples, `asked` how many of them each head was
    tried on, and `first` how many all heads began with.
    """

    problem: Problem
    heads: list[int]
    random: np.random.Generator
    pool: Sequence[int] = ()
    order: list[int] = field(init=False)
    asked: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    first: int = 0
    intact: dict[int, float] = field(default_factory=dict)
    seen: Measurements = field(init=False)

    def __post_init__(self) -> None:
        self.heads = list(self.heads)
        self.seen = Measurements.none(self.problem.heads)
        examples = list(self.pool or self.problem.fresh or self.problem.examples)
        self.order = self.random.permutation(examples).tolist()

    @property
    def rows(self) -> int:
        return len(self.seen.outcome)

    @property
    def examples(self) -> int:
        """Examples that any head was tried on."""
        return max(self.asked.values(), default=0)

    @property
    def candidates(self) -> list[int]:
        """Heads tried on more examples than every head of the model was."""
        least = min(self.asked.get(head, 0) for head in self.problem.eligible)
        return [head for head in self.heads if self.asked.get(head, 0) > least]

    def unfinished(self, heads: list[int]) -> list[int]:
        """Those of the heads that are left examples to try them on."""
        return [head for head in heads if self.asked[head] < len(self.order)]

    def even(self, rows: int) -> Asking[None]:
        """All heads on as many examples as half of the rows allow."""
        yield from self.more(self.heads, round(EVEN * rows / max(len(self.heads), 1)))
        self.first = self.examples

    def join(self, heads: list[int], rows: int) -> Asking[None]:
        """Further heads, on the examples that all others began with, as far as the rows go."""
        count = min(self.first, rows // max(len(heads), 1))
        if count:
            self.heads += heads
            yield from self.more(heads, count)

    def more(self, heads: list[int], count: int) -> Asking[None]:
        """These heads alone, each on so many more examples, or as many as it is left."""
        self.heads += [head for head in heads if head not in self.heads]
        reached, heads = self.examples, self.unfinished(heads)
        if not heads or count < 1:
            return
        plan = self.plan_further(heads, count)
        for head, rows in zip(heads, np.bincount(plan.mask).tolist(), strict=True):
            self.asked[head] += rows
        if self.examples > reached:
            new = self.order[reached : self.examples]
            self.intact |= (yield intact_plan(self.problem, new)).by_example()
        self.seen = self.seen.joined((yield plan))

    def take(self, measured: Measurements, intact: Mapping[int, float]) -> None:
        """Add what is known of further heads, one in each mask, from examples drawn like these."""
        heads = measured.masks.argmax(axis=1)[measured.mask]
        for head, count in zip(*np.unique(heads, return_counts=True), strict=True):
            self.heads.append(int(head))
            self.asked[int(head)] = int(count)
        self.seen, self.intact = self.seen.joined(measured), {**intact, **self.intact}

    def plan_further(self, heads: list[int], count: int) -> Plan:
        """Plan each of the heads alone on so many more examples, or as many as it is left."""
        examples = [self.order[self.asked[head] : self.asked[head] + count] for head in heads]
        masks = designs.singles(self.problem.heads)[heads]
        mask = np.repeat(np.arange(len(heads)), [len(own) for own in examples])
        return Plan(masks, mask, np.concatenate(examples).astype(int), what="shortlist alone")

    def estimate(self) -> Estimate:
        return fit_paired(self.seen, self.intact)

    def needed(self, level: float) -> Bool[np.ndarray, " heads"]:
        """Heads without which the outcome falls beyond doubt, by a one-sided test at the level."""
        needed = np.zeros(self.problem.heads, dtype=bool)
        binary = right_or_wrong(self.seen, self.intact)
        for head, differences in single_head_differences(self.seen, self.intact):
            needed[head] = falls(differences, binary=binary) < level
        return needed

    def survival(self) -> dict[int, tuple[int, int]]:
        """Of each head, how many answers that were right are still, and how many were asked."""
        right = self.seen.where(np.isin(self.seen.example, right_of(self.intact)))
        head = right.masks.argmax(axis=1)[right.mask]
        alive = survived(right, self.intact)
        return {
            int(each): (int(alive[head == each].sum()), int((head == each).sum()))
            for each in np.unique(head)
        }

    def effects(self) -> Effects:
        """Effect and standard error of each head alone; NaN off the shortlist.

        The error is at least that of half an example: a head whose loss changed none of the
        answers asked may still change one in the next hundred.
        """
        effect, error, freedom = (np.full(self.problem.heads, np.nan) for _ in range(3))
        typical = np.ptp(list(self.intact.values()) or [0.0]) or 1.0
        binary = right_or_wrong(self.seen, self.intact)
        for head, differences in single_head_differences(self.seen, self.intact):
            count = differences.size
            effect[head], freedom[head] = differences.mean(), max(count - 1, 1)
            stderr = paired_standard_error(differences, binary=binary) if count > 1 else typical
            error[head] = max(stderr, 0.5 * typical / count)
        return Effects(effect, error, freedom)
