"""The shortlist: each of its heads alone, on examples that a screen never used."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Bool

from caploc import designs
from caploc.recovery.estimate import Estimate, Measurements, survived
from caploc.recovery.paired import (
    PairedDifferences,
    falls,
    paired_standard_error,
    right_or_wrong,
    single_head_differences,
)
from caploc.recovery.screening import Effects
from caploc.search.plan import Asking, Plan, Problem, intact_plan
from caploc.search.state import right_of

EVEN = 0.5  # share of the rows that all heads of the shortlist get alike
AHEAD = 2  # times as many examples of the same heads that will probably be asked next
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
        """Rows measured so far, the intact ones apart."""
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
        parts = [self.order[self.asked[head] : self.asked[head] + count] for head in heads]
        for head, part in zip(heads, parts, strict=True):
            self.asked[head] += len(part)
        if self.examples > reached:
            new = self.order[reached : self.examples]
            self.intact |= (yield intact_plan(self.problem, new)).by_example()
        plan = replace(self.alone(heads, parts), ahead=[self.plan_further(heads, AHEAD * count)])
        self.seen = self.seen.joined((yield plan))

    def take(self, measured: Measurements, intact: Mapping[int, float]) -> None:
        """Add what is known of further heads, one in each mask, from examples drawn like these."""
        heads = measured.masks.argmax(axis=1)[measured.mask]
        for head, count in zip(*np.unique(heads, return_counts=True), strict=True):
            self.heads.append(int(head))
            self.asked[int(head)] = int(count)
        self.seen, self.intact = self.seen.joined(measured), {**intact, **self.intact}

    def plan_further(self, heads: list[int], count: int) -> Plan:
        """Plan what `more` would ask of these heads."""
        asked = (self.asked[head] for head in heads)
        return self.alone(heads, [self.order[first : first + count] for first in asked])

    def alone(self, heads: list[int], examples: Sequence[Sequence[int]]) -> Plan:
        """Each of the heads alone, on examples of its own."""
        masks = designs.singles(self.problem.heads)[heads]
        mask = np.repeat(np.arange(len(heads)), [len(own) for own in examples])
        return Plan(masks, mask, np.concatenate(examples).astype(int), what="shortlist alone")

    def estimate(self) -> Estimate:
        """Effect of each head alone with its interval, as reported."""
        return PairedDifferences().fit(self.seen, self.intact)

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
