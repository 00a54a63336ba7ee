"""A screen: rows under scattered masks, more of them where the question is open."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from math import sqrt
from typing import ClassVar

import numpy as np

from caploc import designs
from caploc.heads import Mask
from caploc.recovery.estimate import Measurements, PerHead, Rows, right_of
from caploc.recovery.screening import Effects, Posterior, joined, screened, shrink, top_chances
from caploc.search.plan import Plan, Problem, column_mask

FOCUS = 0.7  # share of each mask that is drawn by the chance to belong to the top
CAP = 0.15  # most often that a head is in a mask, as a share of masks
SPARE = 3  # heads beyond the top that count as contenders
START = 0.04  # share of heads in the first masks
NOISE_RATIO = 10.0  # variance within masks over that between: 9 to 19 on simulated models


@dataclass
class First(ABC):
    """A first estimate of every head: from masks of several heads, or from likelihoods.

    All masks knock out `base`, under which the outcomes are `intact`; heads of `avoid` are never
    drawn. Asked are the examples still `right`: only there can a knockout take something away.
    """

    OPENING: ClassVar[str]  # likelihood or masks
    ESTIMATOR: ClassVar[str]  # what turns its rows into effects
    # Standard deviation of the logarithm of what its errors have to be multiplied by.
    DOUBT: ClassVar[float]
    problem: Problem
    intact: dict[int, float]
    random: np.random.Generator
    base: list[int] = field(default_factory=list)
    avoid: Mask = field(default_factory=lambda: np.zeros(0, dtype=bool))
    right: list[int] = field(init=False)
    seen: Measurements = field(init=False)

    def __post_init__(self) -> None:
        """Nothing is seen yet; without a word on it, what the problem excludes is avoided."""
        self.right = right_of(self.intact)
        self.seen = Measurements.none(self.problem.heads)
        if not self.avoid.size:
            self.avoid = column_mask(self.problem.heads, self.problem.excluded)

    @property
    def free(self) -> Mask:
        """Heads that may be drawn."""
        return ~self.avoid & ~column_mask(self.problem.heads, self.base)

    @property
    @abstractmethod
    def size(self) -> int:
        """Heads in a mask beyond the base."""

    @property
    @abstractmethod
    def examples_each(self) -> tuple[int, int]:
        """The fewest examples that a mask is used for, and the most."""

    @abstractmethod
    def effects(self) -> Effects:
        """Each head's effect, given the base, and its error; NaN where unknown."""

    @abstractmethod
    def believe(self, first: Effects, alone: Effects) -> Posterior:
        """What to believe of every head, given such estimates and those of heads alone."""


@dataclass
class Screen(First):
    """Rows of masks of several heads, drawn evenly or by the `chances` to belong to the top."""

    OPENING: ClassVar[str] = "masks"
    ESTIMATOR: ClassVar[str] = "spike-slab"
    # Masks are drawn at random, which makes their errors what they say; the few heads of the
    # shortlist would tell less than they disturb.
    DOUBT: ClassVar[float] = 0.1

    rate: float = START
    chances: PerHead | None = None
    known: dict[tuple[int, int], tuple[Effects, Posterior]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return min(max(1, round(self.rate * self.problem.heads)), int(self.free.sum()))

    @property
    def examples_each(self) -> tuple[int, int]:
        return self.group, self.group

    @property
    def group(self) -> int:
        return self.problem.settings.group or best_group(self.problem.shared)

    def next_rows(self, count: int) -> Plan:
        """So many rows: even masks, or `FOCUS` of each by the chance to belong to the top."""
        group = min(self.group, count)
        masks = -(-count // group)
        if self.chances is None:
            drawn = designs.scattered(self.free, masks, size=self.size, random=self.random)
        else:
            drawn = designs.weighted(self.draw_chances(), masks, random=self.random)
        drawn[:, self.base] = True
        examples = designs.spread_examples(self.right, count, random=self.random)
        return Plan.scattered(drawn, examples, "screen")

    def draw_chances(self) -> PerHead:
        """How often each head is drawn: evenly and by its chance to belong to the top."""
        assert self.chances is not None
        focus = np.where(self.free, self.chances, 0.0)
        total = focus.sum()
        even = self.size / self.free.sum()
        aimed = self.size * focus / total if total else even
        share = FOCUS if total else 0.0
        return np.where(self.free, np.minimum((1 - share) * even + share * aimed, CAP), 0.0)

    def take(self, measured: Measurements) -> None:
        self.seen = self.seen.joined(measured)

    def effects(self) -> Effects:
        state = (len(self.seen.outcome), int(self.avoid.sum()))
        if state not in self.known:
            # Every look asks several times; only the latest is worth its memory.
            first = screened(Rows.of(self.seen, self.intact, self.avoid)).only(self.free)
            self.known = {state: (first, shrink(first.effect, first.stderr))}
        return self.known[state][0]

    def believe(self, first: Effects, alone: Effects) -> Posterior:
        """Join and shrink estimates: most heads do nothing, and by chance some look needed."""
        both = joined(first, alone)
        return shrink(both.effect, both.stderr)

    def posterior(self) -> Posterior:
        """What the rows say of each head."""
        self.effects()
        ((_, posterior),) = self.known.values()
        return posterior

    def strongest_first(self) -> list[int]:
        """All free heads, by their expected effect beside the base."""
        mean = np.where(self.free, self.posterior().mean, np.inf)
        return [int(column) for column in np.argsort(mean, kind="stable") if self.free[column]]

    def look(self) -> PerHead:
        """Renew the chances by which the next masks are drawn; return them."""
        top = self.problem.settings.top + SPARE
        chances = top_chances(self.posterior(), top, seed=len(self.seen.outcome))
        self.chances = np.where(self.free, chances, 0.0)
        return self.chances


def best_group(shared: float) -> int:
    """Examples for which one mask should be used, given the price of a shared prompt.

    A row of a mask used for g examples costs `1 + shared / g`; its effects have the variance
    `within + g between`, of outcomes within a mask and of masks. The product is least at
    `g = sqrt(shared within / between)`.
    """
    return max(1, round(sqrt(shared * NOISE_RATIO)))
