"""What a search may be told."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from caploc import designs
from caploc.errors import BadOption, pick, unknown
from caploc.recovery import ESTIMATORS

MOST_MASKS = 100_000  # drawn at once, each a byte a head
MOST_ROWS = 10**12  # a budget beyond what anyone could measure is a slip of the finger
MOST_SEEDS = 2**63 - 1
GOALS = ("heads", "set", "specific")


@dataclass(frozen=True)
class Knobs:
    """The constants of the default search; where each comes from stands beside it.

    *Measured* ones are of SmolLM2's past tense, upper case and digits, every head of which was
    knocked out alone on 150 examples (docs/experiments.md); the others were set once.
    """

    # the scan and the trial
    scanned: int = (
        4  # examples a head: .940, .965, .986 of the first five tried by 2, 4, 8 (measured)
    )
    least_scanned: int = 2
    most_scanned: int = 8
    breaking: int = 2  # as many heads again, at most, that broke half of what the scan asked
    tried: int = 3  # heads in the trial, times `top`: .982 with 3, .983 with 4 (measured)
    trial: int = 100  # examples each: 3.5 heads are named with 60, 4.7 with 100 (measured)
    universal: float = 0.5  # share of another task's right answers that a universal head takes
    elsewhere: int = 12  # right answers of another task that each head to name is tried on
    resamples: int = 100  # of the trial, for the stability of the named heads (arXiv 2510.00845)
    # sets: shares of the budget, counts of sets and of examples
    per_head: int = 8  # rows a head and task, if no budget is given
    least_budget: int = 2000
    scanning: float = 0.25
    pooling: float = 0.15
    pooled: int = 6  # heads of the pool, times `top`
    least_pool: int = 24
    added: int = 8  # heads that are tried as the next of a growing set
    grown_on: int = 6  # examples of each task that it is tried on
    least_each: int = 4
    most_each: int = 16
    proposed: tuple[int, ...] = (12, 8, 6)  # sets of each round of proposals
    proposing: float = 0.5
    draws: int = 8  # for each set to propose
    finalists: int = 5
    candidates: int = 8  # sets that are judged in the end
    compared: int = 60  # fresh examples on which sets are compared
    enough: int = 12  # outcomes from which on signals no longer count
    rare: float = 0.03  # variance of single examples beside what few of them show
    unknown: float = 0.3  # standard error of what was not seen at all
    excess: float = 20.0  # weight of what a set loses elsewhere beyond the price


KNOBS = Knobs()


@dataclass(frozen=True)
class Settings:
    """What a search may be told. Each uses what it needs.

    `budget` is the most rows of the default search (None: what its stages usually take). `goal`
    says whether the heads that matter most alone are wanted, or the set that breaks the task most,
    or the one that does while each spared task loses no more than `price` of its score.
    `estimator` is for masks drawn beforehand (None: the method's own). `mask_counts` and `rates`
    (None: those of the paper) span the settings that a search for the best of them tries.
    """

    masks: int = 100
    rate: float = 0.02
    top: int = 5
    seed: int = 0
    goal: str = "heads"
    price: float = 0.02
    budget: int | None = None
    estimator: str | None = None
    mask_counts: Sequence[int] = (100, 200, 300, 400)
    rates: Sequence[float] | None = None

    def check(self) -> None:
        """Refuse values that mean nothing; raises BadOption with the value and what is allowed."""
        designs.check_rate(self.rate)
        if self.goal not in GOALS:
            raise unknown(GOALS, self.goal, "--goal")
        self.check_sizes()
        if not 0 < self.price <= 1:
            raise BadOption(
                f"--price must lie above 0 and at most at 1; .05 is 5 points; got {self.price:g}."
            )
        if self.estimator is not None:
            pick(ESTIMATORS, self.estimator, "estimator")
        self.check_spans()

    def check_sizes(self) -> None:
        """Refuse too small a number, what no memory holds, and what nobody can wait for."""
        for name, value, least, most in (
            ("masks", self.masks, 1, MOST_MASKS),
            ("top", self.top, 1, inf),
            ("mask-counts", max(self.mask_counts, default=0), -inf, MOST_MASKS),
            ("budget", self.budget or 0, -inf, MOST_ROWS),
            ("seed", self.seed, 0, MOST_SEEDS),
        ):
            if value < least:
                raise BadOption(f"--{name} must be {least} or more; got {value}.")
            if value > most:
                raise BadOption(f"--{name} must be at most {most:,}; got {value}.")

    def check_spans(self) -> None:
        """Refuse numbers of masks, or rates, that are out of range or do not rise."""
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

    def check_budget(self, heads: int, tasks: int = 1) -> None:
        """Refuse a budget with which the default search cannot finish its first stage."""
        least = KNOBS.least_scanned * heads * tasks + KNOBS.tried * self.top * KNOBS.least_each
        if self.budget is not None and self.budget < least:
            raise BadOption(
                f"--budget {self.budget} is too small: {least:,} rows or more are needed to scan "
                f"{heads} heads on {tasks} {'tasks' if tasks > 1 else 'task'} and to try "
                f"{KNOBS.tried * self.top}; leave --budget out for what suits them."
            )


def check_spared(goal: str, spare: Sequence[str], *, has_goals: bool = True) -> None:
    """Refuse a specific set without tasks to spare, or by a method without goals; the reverse."""
    if goal == "specific" and not has_goals:
        raise BadOption(
            "--goal specific is for --method scan: no other method looks for sets that leave "
            "tasks alone. Leave out the method or the goal."
        )
    if goal == "specific" and not spare:
        raise BadOption(
            "--goal specific needs a task to leave alone, or several: name them with --spare."
        )
    if goal in GOALS and goal != "specific" and spare:
        raise BadOption(
            f"--spare is for --goal specific; got --goal {goal}. Add that goal, or name the tasks "
            "with --also, to see what they lose."
        )


def rising(values: Sequence[int] | Sequence[float]) -> bool:
    """Tell whether there are any, each larger than the one before."""
    return len(values) > 0 and all(first < second for first, second in pairwise(values))


def parse_numbers(values: Sequence[int] | Sequence[float]) -> str:
    """Write numbers as a user wrote them."""
    return ", ".join(f"{value:g}" for value in values) or "none"
