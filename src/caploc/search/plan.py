"""What a search is given, what it asks for, and what it hands back."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Int

from caploc import designs
from caploc.errors import BadOption
from caploc.heads import Mask, Masks
from caploc.lookup import pick
from caploc.recovery import ESTIMATORS, Estimate, Measurements

MOST_MASKS = 100_000  # drawn at once, each a byte a head
MOST_ROWS = 10**12  # a budget beyond what anyone could measure is a slip of the finger
MOST_SEEDS = 2**63 - 1
GOALS = ("heads", "set", "specific")
OPENINGS = ("likelihood", "masks")


@dataclass(frozen=True)
class Plan:
    """Rows to measure next: row r is `masks[mask[r]]` on example `example[r]` of task `task`.

    Task 0 is the one that heads are searched for; the others are those named beside it. `what` says
    in a word or two what the rows are for, to whoever watches.
    """

    masks: Masks
    mask: Int[np.ndarray, " rows"]
    example: Int[np.ndarray, " rows"]
    task: int = 0
    what: str = "masks"

    @classmethod
    def crossed(
        cls, masks: Masks, examples: Sequence[int], *, task: int = 0, what: str = "masks"
    ) -> "Plan":
        """Every mask on every example."""
        return cls(
            masks,
            np.repeat(np.arange(len(masks)), len(examples)),
            np.tile(np.asarray(examples, dtype=int), len(masks)),
            task,
            what,
        )

    @classmethod
    def scattered(cls, masks: Masks, examples: Int[np.ndarray, " rows"], what: str) -> "Plan":
        """Each mask on its own run of examples: as many for every mask as the division gives."""
        mask = np.arange(len(examples)) * len(masks) // max(len(examples), 1)
        return cls(masks, mask, examples, 0, what)


@dataclass(frozen=True)
class Settings:
    """What a search may be told. Each uses what it needs.

    `budget` is the most rows an adaptive search may plan (None: 16 a head, and 2,000 at least); it
    stops earlier once the expected recall of its top heads reaches `recall`. `goal` says whether
    the heads that matter most alone are wanted, or the set that breaks the task most, or the one
    that does while each spared task loses no more than `price` of its score. `opening`
    says what an adaptive search begins with: the likelihood of right answers, head by head, where
    the task names any, or masks of several heads. `group` is
    the number of examples that one scattered mask is used for (None: as the price of a shared
    prompt makes best). `estimator` is for masks drawn beforehand (None: the method's own).
    `mask_counts` and `rates` (None: those of the paper) span the settings that a search for the
    best of them tries.
    """

    masks: int = 100
    rate: float = 0.02
    top: int = 5
    seed: int = 0
    goal: str = "heads"
    price: float = 0.02
    opening: str = "likelihood"
    budget: int | None = None
    recall: float = 0.85
    group: int | None = None
    estimator: str | None = None
    mask_counts: Sequence[int] = (100, 200, 300, 400)
    rates: Sequence[float] | None = None

    def check(self) -> None:
        """Refuse values that mean nothing.

        Raises:
            BadOption: with the value and what is allowed.
        """
        designs.check_rate(self.rate)
        for name in ("masks", "top"):
            if getattr(self, name) < 1:
                raise BadOption(f"--{name} must be 1 or more; got {getattr(self, name)}.")
        self.check_sizes()
        if self.seed < 0:
            raise BadOption(f"--seed must be 0 or more; got {self.seed}.")
        for name, share in (("recall", self.recall), ("price", self.price)):
            if not 0 < share <= 1:
                raise BadOption(f"--{name} must lie above 0 and at most at 1; got {share:g}.")
        if self.estimator is not None:
            pick(ESTIMATORS, self.estimator, "estimator")
        if self.group is not None and self.group < 1:
            raise BadOption(f"--group must be 1 or more; got {self.group}.")
        self.check_spans()

    def check_sizes(self) -> None:
        """Refuse words that mean nothing, what no memory holds, and what nobody can wait for.

        Raises:
            BadOption: with the word or the number, and what is allowed.
        """
        for name, allowed in (("goal", GOALS), ("opening", OPENINGS)):
            check_choice(name, getattr(self, name), allowed)
        for name, value, most in (
            ("masks", self.masks, MOST_MASKS),
            ("mask-counts", max(self.mask_counts, default=0), MOST_MASKS),
            ("budget", self.budget or 0, MOST_ROWS),
            ("seed", self.seed, MOST_SEEDS),
        ):
            if value > most:
                raise BadOption(f"--{name} must be at most {most:,}; got {value}.")

    def check_spans(self) -> None:
        """Refuse numbers of masks, or rates, that are out of range or do not rise.

        Raises:
            BadOption: with the values and what is allowed.
        """
        if not rising(self.mask_counts) or self.mask_counts[0] < 1:
            raise BadOption(
                "--mask-counts must be 1 or more, each larger than the one before; got "
                f"{parse_numbers(self.mask_counts)}."
            )
        rates = self.rates
        if rates is not None and not (rising(rates) and rates[0] > 0 and rates[-1] < 1):
            raise BadOption(
                "--rates must be shares of the heads between 0 and 1, each larger than the one "
                f"before; got {parse_numbers(rates)}."
            )

    def check_budget(self, heads: int) -> None:
        """Refuse a budget that no adaptive search can use.

        Raises:
            BadOption: if it is less than two rows a head.
        """
        if self.budget is not None and self.budget < 2 * heads:
            raise BadOption(
                f"--budget {self.budget} is too small: adaptive needs {2 * heads} rows or more, "
                f"two for each of the {heads} heads."
            )


@dataclass(frozen=True)
class OtherTask:
    """A task that a specific set must spare or, a twin of the task, break as well.

    `number` is that of the task in plans; `examples` are for the search. `likelihood` is the number
    of the same task with the log-probability of the right answer as its outcome (`number`: there is
    no such thing, and the outcome itself is looked at).
    """

    number: int
    examples: Sequence[int]
    likelihood: int
    twin: bool = False


@dataclass(frozen=True)
class Problem:
    """Among how many heads, on which examples.

    Heads are searched for on `examples`; `fresh` ones, disjoint, are kept for the check of what was
    found. `others` holds some examples of each other task; `beside` those that the goal `specific`
    is about. `shared` is the price of reading what
    all prompts begin with, as a multiple of the rest of a row; `chance` the score of guessing.
    `likelihood` is the number, in plans, of the same task with the log-probability of the right
    answer as its outcome (0: it is the task itself); None if there is no such thing.
    """

    heads: int
    examples: Sequence[int]
    settings: Settings
    fresh: Sequence[int] = ()
    others: Sequence[Sequence[int]] = ()
    shared: float = 0.0
    chance: float = 0.0
    likelihood: int | None = None
    beside: Sequence[OtherTask] = ()

    def empty(self) -> Mask:
        """The mask that knocks out nothing."""
        return np.zeros(self.heads, dtype=bool)


@dataclass(frozen=True)
class Found:
    """What a search found.

    `chosen` are the columns to name, the most needed first; `ranking` all columns in the order in
    which the search would name them. `critical` heads each break the task alone, and `universal`
    ones of them break another task too. `diagnostics` holds what else there is to say, as
    `result.json` keeps it; `notes` are sentences for the reader.
    """

    chosen: list[int]
    ranking: list[int]
    estimate: Estimate
    seen: Measurements
    critical: list[int] = field(default_factory=list)
    universal: list[int] = field(default_factory=list)
    diagnostics: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


Search = Generator[Plan, Measurements, Found]


def check_choice(name: str, value: str, allowed: Sequence[str]) -> None:
    """Refuse a word that is not among those allowed.

    Raises:
        BadOption: with the word and what is allowed.
    """
    if value not in allowed:
        raise BadOption(f"--{name} must be one of {', '.join(allowed)}; got {value!r}.")


def rising(values: Sequence[int] | Sequence[float]) -> bool:
    """Whether there are any, each larger than the one before."""
    return len(values) > 0 and all(first < second for first, second in pairwise(values))


def parse_numbers(values: Sequence[int] | Sequence[float]) -> str:
    """Numbers as a user wrote them."""
    return ", ".join(f"{value:g}" for value in values) or "none"


def column_mask(heads: int, columns: Sequence[int]) -> Mask:
    """The mask that knocks out the heads of these columns."""
    mask = np.zeros(heads, dtype=bool)
    mask[list(columns)] = True
    return mask


def intact_plan(problem: Problem, examples: Sequence[int], *, task: int = 0) -> Plan:
    """Examples with no head knocked out."""
    return Plan.crossed(problem.empty()[None], examples, task=task, what="intact")
