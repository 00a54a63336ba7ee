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
PER_HEAD = 16  # rows a head, at most, if no budget is given
LEAST_BUDGET = 2000
MOST_SEEDS = 2**63 - 1
GOALS = ("heads", "set", "specific")
OPENINGS = ("auto", "likelihood", "masks")


@dataclass(frozen=True)
class Settings:
    """What a search may be told. Each uses what it needs.

    `budget` is the most rows an adaptive search may plan (None: 16 a head, and 2,000 at least); it
    stops earlier once the expected recall of its top heads reaches `recall`. `goal` says whether
    the heads that matter most alone are wanted, or the set that breaks the task most, or the one
    that does while each spared task loses no more than `price` of its score. `opening` says what an
    adaptive search begins with: the `likelihood` of right answers, head by head, where the task
    names any, or `masks` of several heads; `auto` takes masks where rows are few for the heads and
    a trial shows likelihoods to be unsteady. `group` is the number of examples that one scattered
    mask is used for (None: as the price of a shared prompt makes best). `estimator` is for masks
    drawn beforehand (None: the method's own). `mask_counts` and `rates` (None: those of the paper)
    span the settings that a search for the best of them tries.
    """

    masks: int = 100
    rate: float = 0.02
    top: int = 5
    seed: int = 0
    goal: str = "heads"
    price: float = 0.02
    opening: str = "auto"
    budget: int | None = None
    recall: float = 0.85
    group: int | None = None
    estimator: str | None = None
    mask_counts: Sequence[int] = (100, 200, 300, 400)
    rates: Sequence[float] | None = None

    def check(self) -> None:
        """Refuse values that mean nothing; raises BadOption with the value and what is allowed."""
        designs.check_rate(self.rate)
        for name, allowed in (("goal", GOALS), ("opening", OPENINGS)):
            if getattr(self, name) not in allowed:
                raise unknown(allowed, getattr(self, name), f"--{name}")
        self.check_sizes()
        for name, share in (("recall", self.recall), ("price", self.price)):
            if not 0 < share <= 1:
                points = "; .05 is 5 points" if name == "price" else ""
                raise BadOption(
                    f"--{name} must lie above 0 and at most at 1{points}; got {share:g}."
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
            ("group", 1 if self.group is None else self.group, 1, inf),
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

    def most_rows(self, heads: int) -> int:
        """Return the budget of an adaptive search: what was asked, or as suits so many heads."""
        return self.budget or max(LEAST_BUDGET, PER_HEAD * heads)

    def check_budget(self, heads: int) -> None:
        """Refuse a budget of less than two rows a head, which no adaptive search can use."""
        if self.budget is not None and self.budget < 2 * heads:
            raise BadOption(
                f"--budget {self.budget} is too small: adaptive needs {2 * heads} rows or more, "
                f"two for each of the {heads} heads."
            )


def check_spared(goal: str, spare: Sequence[str], *, adaptive: bool = True) -> None:
    """Refuse a specific set without tasks to spare or an `adaptive` search, and the reverse."""
    if goal == "specific" and not adaptive:
        raise BadOption(
            "--goal specific is for --method adaptive: no other method looks for sets that leave "
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
