"""The goal `specific`: the set that breaks the task most and leaves the spared tasks alone.

Every head is looked at alone on the task, fewer and fewer of them on more examples, and on the
spared tasks too. For several tolerances of what a head may cost these alone, a set is grown head by
head from those within it. The sets as they grew are the first candidates, and are knocked out on
examples of every task. What they show of their heads corrects what looks said: from both, sets are
proposed that may do much for little, tried, and so on. The best are tried on further examples.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest

import numpy as np
from jaxtyping import Float

from caploc.errors import BadOption
from caploc.recovery.estimate import PerHead
from caploc.search.likelihood import FirstLook, balance
from caploc.search.plan import Asking, Found, OtherTask, Plan, Problem, intact_plan
from caploc.search.sets import conclude_set
from caploc.search.settings import Settings
from caploc.search.state import SearchState
from caploc.search.summary import nothing_found

# Shares of the budget for looks at single heads: every head, then the most promising of them, fewer
# heads on more examples each time; of the first, most is for the task and its twins.
LOOKS = (0.25, 0.15, 0.1)
NARROWED = (6, 20)  # a look goes on with one of so many heads,
FEWEST = (32, 16)  # and with so many at least
ELSEWHERE = 0.5  # examples of a spared task for each of the task, after the first look
GROWING = 0.1  # for the growth; the rest is for the candidates
TOLERANCES = (0.5, 1.5, 5.0, np.inf)  # of a head's loss elsewhere, as multiples of the price
ADDED = 6  # heads that are tried as the next of a set
FEWEST_ASKED, MOST_ASKED = 3, 16  # examples of a task that a growing set is asked on
TRIALS = (0.2, 0.5, 0.9)  # shares of the rows left: likelihoods of all, of the best, outcomes
KEPT = 5  # candidates that go on after the first of these
PROPOSING, PROPOSED = 0.6, (12, 8, 6)  # share of the rows left for sets proposed; these, by round
DRAWS, LEAST_EACH = 8, 4  # draws for each set to propose; examples of a task that it is tried on
LINKED, MISLED = 0.005, 0.2  # what likelihoods may be wrong by, in score and as a share
# Most heads cost most examples nothing and a few of them everything, which the first few seldom
# show: a variance of single examples besides what these show.
RARE = 0.03
UNKNOWN = 0.3  # standard error of what was not seen at all
DOUBT = 0.4  # standard errors by which a head's loss elsewhere may be smaller than it seems
CHECKED = 20  # examples on which the heads of the set are knocked out alone, at most
EXCESS = 20.0  # weight of what a set loses elsewhere beyond the price, when one is named

NOTHING_SCORED = (
    "No likelihood of a right answer could be told, so that there is nothing to look at; use "
    "--opening masks."
)

Whole = tuple[int, ...]  # columns of the heads of a set
Changes = Float[np.ndarray, "sets asked"]
Effect = Float[np.ndarray, " heads"]


@dataclass
class Side:
    """A task in the search: how it does intact, and what was learned of it.

    `order` is that in which its right examples are asked, of which `used` were: the less sure half
    of them first, for an answer that is certain shows little of what disturbs it.
    """

    beside: OtherTask
    problem: Problem
    random: np.random.Generator
    intact: dict[int, float] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    used: int = 0
    look: FirstLook = field(init=False)

    def prepare(self) -> Asking[None]:
        """Ask the intact model for its answers, and for how likely the right ones are."""
        number, examples = self.beside.number, self.beside.examples
        self.intact = (yield intact_plan(self.problem, examples, task=number)).by_example()
        problem = replace(self.problem, likelihood=self.beside.likelihood)
        self.look = FirstLook(problem, self.intact, self.random, task=number)
        plan = intact_plan(self.problem, list(self.intact), task=self.beside.likelihood)
        self.look.before = (yield plan).by_example()
        before = self.look.before
        right = sorted((e for e in self.look.right if e in before), key=before.__getitem__)
        half = -(-len(right) // 2)
        parts = (self.random.permutation(part).tolist() for part in (right[:half], right[half:]))
        choices = self.beside.choices
        self.order = [example for part in parts for example in balance(part, choices)]
        self.look.change = np.zeros((self.problem.heads, 0))

    def expect(self, sets: Sequence[Sequence[int]], count: int) -> Asking[Changes]:
        """By how much right answers get less likely without each of the sets, on new examples."""
        asked = [self.order[n % len(self.order)] for n in range(self.used, self.used + count)]
        self.used += count
        masks, task = self.problem.without_each(sets), self.beside.likelihood
        plan = Plan.crossed(masks, asked, task=task, what="likelihood of right answers")
        return (yield from changes(plan, self.look.before))

    def alone(self, heads: Sequence[int]) -> tuple[Effect, Effect]:
        """What the looks tell of these heads, and the variance of that."""
        effects = self.look.effects()
        assert self.look.change is not None
        asked = np.maximum(np.isfinite(self.look.change[heads]).sum(axis=1), 1)
        error = np.nan_to_num(effects.stderr[heads], nan=UNKNOWN)
        return np.nan_to_num(effects.effect[heads]), error**2 + RARE / asked

    def ask(self, heads: Sequence[int], count: int) -> Asking[int]:
        """Look at these heads alone on further examples; the number of rows taken."""
        further = np.full((self.problem.heads, count), np.nan)
        further[list(heads)] = yield from self.expect([(head,) for head in heads], count)
        self.look.change = np.concatenate([self.look.change, further], axis=1)
        return len(heads) * count

    def expect_each(self, sets: Sequence[Sequence[int]], count: int) -> Asking[Changes]:
        """The change of the score that each of some new examples leads one to expect."""
        return self.look.predict((yield from self.expect(sets, count)))

    def try_sets(self, sets: Sequence[Sequence[int]], count: int) -> Asking[Changes]:
        """By how much the outcomes of some examples change without each of the sets."""
        asked = self.random.permutation(list(self.intact))[:count].tolist()
        masks, task = self.problem.without_each(sets), self.beside.number
        plan = Plan.crossed(masks, asked, task=task, what="whole sets")
        return (yield from changes(plan, self.intact))


def changes(plan: Plan, before: dict[int, float]) -> Asking[Changes]:
    """By how much the outcomes of a plan that crosses masks and examples differ from before."""
    table = (yield plan).outcome.reshape(len(plan.masks), -1)
    return table - [before[int(example)] for example in plan.example[: table.shape[1]]]


@dataclass
class GrownSet:
    """A set, and what became of examples without it: of the task and its twins, then of others.

    Of every task, `likely` holds the changes of its score that likelihoods lead one to expect, one
    for each example, and `seen` those of outcomes.
    """

    columns: Whole
    targets: int  # of the tasks, the first so many are the task and its twins
    likely: list[list[float]]
    seen: list[list[float]]

    @cached_property
    def weighed(self) -> Float[np.ndarray, "tasks 2"]:
        """The change of each task's score by both kinds of evidence, and its standard error."""
        return np.array([weigh(*each) for each in zip(self.likely, self.seen, strict=True)])

    @property
    def changes(self) -> Float[np.ndarray, " tasks"]:
        """Of each task's score."""
        return self.weighed[:, 0]

    @property
    def damage(self) -> float:
        """What the task and its twins lose, a mean over these."""
        return -float(self.changes[: self.targets].mean())

    @property
    def loss(self) -> float:
        """What the spared task loses that loses most; 0 if none loses."""
        return -float(self.changes[self.targets :].min(initial=0.0))

    @property
    def risk(self) -> float:
        """The loss if every spared task lost a standard error more than it seems."""
        return float((self.weighed[:, 1] - self.changes)[self.targets :].max(initial=0.0))

    def worth(self, price: float) -> float:
        """The damage, a standard error less than it seems, less what is risked beyond the price."""
        doubt = float(self.weighed[: self.targets, 1].mean())
        return self.damage - doubt - EXCESS * max(0.0, self.risk - price)


def weigh(likely: Sequence[float], seen: Sequence[float]) -> tuple[float, float]:
    """The change of a score by what was expected and what was seen, and its standard error."""
    expected, known = (np.array([x for x in part if np.isfinite(x)]) for part in (likely, seen))
    precision = total = 0.0
    if expected.size > 1:
        mean = float(expected.mean())
        error = (expected.var(ddof=1) + RARE) / expected.size + LINKED**2 + (MISLED * mean) ** 2
        precision, total = 1 / error, mean / error
    if known.size > 1:
        # Half a change of either kind more: where none was seen, some may come.
        error = ((known**2).sum() + 1) / (known.size + 1) / known.size
        precision, total = precision + 1 / error, total + float(known.mean()) / error
    return (total / precision, precision**-0.5) if precision else (0.0, UNKNOWN)


def check_rows(settings: Settings, heads: int, twins: int, spared: int) -> None:
    """Refuse a budget that would be spent before a set is tried.

    Looks at single heads take an example of each task at least, the next head of a set is sought
    among a few for every tolerance, and the sets are tried on each task.
    """
    targets, budget = 1 + twins, settings.budget
    narrowed = sum(
        min(heads, max(heads // part, few)) for part, few in zip(NARROWED, FEWEST, strict=True)
    )
    least = heads * targets + narrowed * (targets + spared)
    least += len(TOLERANCES) * ADDED * FEWEST_ASKED * targets + KEPT * (targets + spared)
    if budget is not None and budget < least:
        raise BadOption(
            f"--budget {budget} is too small: --goal specific needs {least:,} rows or more before "
            f"it has tried a set of these {heads} heads on {targets + spared} tasks; leave "
            "--budget out for what suits them."
        )


def search_specific(state: SearchState) -> Asking[Found]:
    """Find the most damaging set within the price, and the frontier that the model allows."""
    problem = state.problem
    likelihood = problem.likelihood or 0
    first = OtherTask(0, problem.examples, likelihood, twin=True, choices=problem.choices)
    sides = [Side(each, problem, state.random) for each in (first, *problem.sides)]
    for side in sides:
        yield from side.prepare()
    # The twins come first; a task without a right answer has nothing to lose.
    sides = sorted((each for each in sides if each.order), key=lambda each: not each.beside.twin)
    targets = [side for side in sides if side.beside.twin]
    spared = [side for side in sides if not side.beside.twin]
    if not targets:
        return nothing_found(problem, NOTHING_SCORED)
    looks = yield from look_at_heads(state, targets, spared)
    sets = yield from grow(state, targets, looks)
    candidates = yield from try_candidates(state, sides, sets, looks)
    best = best_of(candidates, problem.settings.price, 1)
    chosen = list(best[0].columns) if best and best[0].damage > 2 * LINKED else []  # or no harm
    found = yield from conclude_set(state, targets[0].look, chosen, CHECKED)
    best = best_of(frontier(candidates), problem.settings.price, len(candidates))
    found.diagnostics["candidates"] = [list(each.columns) for each in best]
    return found


@dataclass(frozen=True)
class Looks:
    """What looks at single heads tell: those to grow sets from, what each does and costs elsewhere.

    `limits` are those of the cost, within each of which a set is grown.
    """

    pool: list[int]
    gain: PerHead
    lost: PerHead
    limits: list[float]


def look_at_heads(
    state: SearchState, targets: Sequence[Side], spared: Sequence[Side]
) -> Asking[Looks]:
    """Look at every head alone, then at fewer and fewer of them on more examples."""
    problem, budget = state.problem, state.budget
    limits = [tolerance * problem.settings.price for tolerance in TOLERANCES]
    pool = problem.eligible
    for place, share in enumerate(LOOKS):
        elsewhere = ELSEWHERE if place else 0.0
        each = int(share * budget) / len(pool) / (len(targets) + elsewhere * len(spared))
        for side in (*targets, *spared):
            count = max(1, round(each if side.beside.twin else elsewhere * each))
            if side.beside.twin or elsewhere:
                state.spent += yield from side.ask(pool, count)
        changed = [np.nan_to_num(side.look.effects().effect) for side in targets]
        gain = -np.mean(changed, axis=0)
        lost = surely_lost(spared, problem.heads)
        if place < len(NARROWED):
            count = max(problem.heads // NARROWED[place], FEWEST[place])
            pool = narrow(pool, gain, lost, limits, count)
        if not pool:
            break
    return Looks(pool, gain, lost, limits)


def narrow(
    pool: Sequence[int], gain: PerHead, lost: PerHead, limits: Sequence[float], count: int
) -> list[int]:
    """Choose heads of the pool: those that do most within each limit of the loss, in turn."""
    harmful = sorted((column for column in pool if gain[column] > 0), key=lambda c: -gain[c])
    orders = [[column for column in harmful if lost[column] <= limit] for limit in limits]
    best = dict.fromkeys(
        column for places in zip_longest(*orders) for column in places if column is not None
    )
    return list(best)[:count]


def surely_lost(spared: Sequence[Side], heads: int) -> PerHead:
    """Tell what each head costs the spared task that it costs most, 0 at least.

    `DOUBT` standard errors less than estimated: of several tasks the largest is so by chance too.
    """
    least = np.zeros(heads)
    for side in spared:
        alone = side.look.effects()
        least = np.fmax(least, -alone.effect - DOUBT * alone.stderr)
    return least


def grow(state: SearchState, targets: Sequence[Side], looks: Looks) -> Asking[list[Whole]]:
    """Sets grown head by head, for each tolerance of what a head alone costs elsewhere.

    The next head is the one with which the set is expected to do most, as the mean of two ways to
    expect it: the sum of what the set did and the head does alone, and likelihoods without both.
    """
    allowed = [
        [column for column in looks.pool if looks.lost[column] <= limit] for limit in looks.limits
    ]
    top = state.problem.settings.top
    share = GROWING * state.budget / (top * len(looks.limits) * ADDED * len(targets))
    count = int(np.clip(share, FEWEST_ASKED, MOST_ASKED))
    grown: list[Whole] = [() for _ in looks.limits]
    damage: dict[Whole, float] = {(): 0.0}
    every: dict[Whole, None] = {}
    for _ in range(top):
        larger: list[dict[Whole, float]] = []
        for current, heads in zip(grown, allowed, strict=True):
            further = sorted(set(heads) - set(current), key=lambda c: -looks.gain[c])[:ADDED]
            larger.append(
                {tuple(sorted((*current, c))): damage[current] + looks.gain[c] for c in further}
            )
        asked = list(dict.fromkeys(each for sums in larger for each in sums))
        if not asked or state.left < len(asked) * count * len(targets):
            break
        losses = []
        for side in targets:
            changed = yield from side.expect_each(asked, count)
            losses.append(-np.nan_to_num(np.nanmean(changed, axis=1)))
            state.spent += changed.size
        expected = dict(zip(asked, np.mean(losses, axis=0).tolist(), strict=True))
        for place, sums in enumerate(larger):
            if sums:
                both = {each: (total + expected[each]) / 2 for each, total in sums.items()}
                grown[place] = best = max(both, key=both.__getitem__)
                damage[best] = both[best]
                every[best] = None
    return list(every)


def try_candidates(
    state: SearchState, sides: Sequence[Side], sets: Sequence[Whole], looks: Looks
) -> Asking[list[GrownSet]]:
    """Try the sets, and those proposed after them, on further examples of every task."""
    tried = untried(sides, sets)
    if not tried:
        return []
    price = state.problem.settings.price
    yield from try_further(state, sides, tried, int(TRIALS[0] * state.left))
    yield from propose(state, sides, tried, looks.pool)
    for share in TRIALS[1:]:
        best, rows = best_of(tried, price, KEPT), int(share * state.left)
        yield from try_further(state, sides, best, rows, outcomes=share == TRIALS[-1])
    return tried


def propose(
    state: SearchState, sides: Sequence[Side], tried: list[GrownSet], pool: Sequence[int]
) -> Asking[None]:
    """Try sets that may be worth more than those tried, round by round, and add them to these.

    Thompson sampling: every set is the best by one draw of what heads do from what is known of
    them, at a price between nothing and the one named. One that was tried is tried further.
    """
    rows, price = int(PROPOSING * state.left / len(PROPOSED)), state.problem.settings.price
    for most in PROPOSED:
        count = min(most, rows // (LEAST_EACH * len(sides)))
        known = [
            posterior(side.alone(pool), tried, place, pool) for place, side in enumerate(sides)
        ]
        sets: dict[Whole, None] = {}
        for number in range(DRAWS * count):
            effects = np.array(
                [state.random.multivariate_normal(*each) if number else each[0] for each in known]
            )
            limit = price * state.random.random()
            best = compose(effects, tried[0].targets, limit, state.problem.settings.top)
            sets |= {tuple(sorted(pool[place] for place in best)): None} if best else {}
            if len(sets) == count:
                break
        have = {each.columns for each in tried}
        tried += untried(sides, [each for each in sets if each not in have])
        yield from try_further(state, sides, [each for each in tried if each.columns in sets], rows)


def posterior(
    alone: tuple[Effect, Effect], tried: Sequence[GrownSet], task: int, pool: Sequence[int]
) -> tuple[Effect, Float[np.ndarray, "heads heads"]]:
    """What heads of the pool do to a task, as if those of a set added up: mean and covariance.

    Bayesian linear regression of what was seen of sets; before, it is what looks told of each head
    `alone`, with its variance.
    """
    prior, variance = alone
    known = [each for each in tried if len(each.likely[task]) > 1]
    if not known:
        return prior, np.diag(variance)
    members = np.array([[column in each.columns for column in pool] for each in known], dtype=float)
    change, error = np.array([each.weighed[task] for each in known]).T
    shared = variance[:, None] * members.T
    gain = np.linalg.solve(members @ shared + np.diag(error**2), shared.T).T
    return prior + gain @ (change - members @ prior), np.diag(variance) - gain @ shared.T


def compose(
    effects: Float[np.ndarray, "tasks heads"], targets: int, price: float, top: int
) -> list[int]:
    """Add heads to a set, each time the one that is worth most, as long as that grows."""
    chosen: list[int] = []
    total, worth = np.zeros((len(effects), 1)), 0.0
    while len(chosen) < top:
        sums = total + effects
        beyond = -sums[targets:].min(axis=0, initial=0.0) - price
        worths = -sums[:targets].mean(axis=0) - EXCESS * np.maximum(beyond, 0.0)
        worths[chosen] = -np.inf
        best = int(np.argmax(worths))
        if worths[best] <= worth:
            break
        chosen.append(best)
        total, worth = sums[:, [best]], float(worths[best])
    return chosen


def untried(sides: Sequence[Side], sets: Sequence[Whole]) -> list[GrownSet]:
    """Make candidates of sets, with nothing known of them."""
    targets = sum(side.beside.twin for side in sides)
    return [GrownSet(each, targets, [[] for _ in sides], [[] for _ in sides]) for each in sets]


def best_of(sets: Sequence[GrownSet], price: float, count: int) -> list[GrownSet]:
    """Choose so many of the sets, those that are worth most."""
    return sorted(sets, key=lambda each: -each.worth(price))[:count]


def try_further(
    state: SearchState,
    sides: Sequence[Side],
    sets: Sequence[GrownSet],
    rows: int,
    *,
    outcomes: bool = False,
) -> Asking[None]:
    """Spend so many rows on the sets: likelihoods, or outcomes, of further examples."""
    count = rows // (len(sets) * len(sides)) if sets else 0
    for place, side in enumerate(sides if count else ()):
        ask = side.try_sets if outcomes else side.expect_each
        changed = yield from ask([each.columns for each in sets], count)
        state.spent += changed.size
        for candidate, change in zip(sets, changed, strict=True):
            kind = candidate.seen if outcomes else candidate.likely
            kind[place] += change.tolist()
    for candidate in sets:
        vars(candidate).pop("weighed", None)


def frontier(candidates: Sequence[GrownSet]) -> list[GrownSet]:
    """List the candidates than which none does more and may lose less elsewhere."""
    return [
        each
        for each in candidates
        if not any(
            other.damage >= each.damage
            and other.risk <= each.risk
            and (other.damage, -other.risk) != (each.damage, -each.risk)
            for other in candidates
        )
    ]
