"""What goes into an estimator, and what comes out."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import stats

from caploc.components import AMONG, Masks

PerHead = Float[np.ndarray, " heads"]
PerRow = Float[np.ndarray, " rows"]
PerExample = Float[np.ndarray, " examples"]


@dataclass(frozen=True)
class Measurements:
    """Outcomes of rows: row r measured `masks[mask[r]]` on example `example[r]`.

    A mask that was planned twice stands here twice. NaN marks an outcome that could not be scored.
    `kept` is 1 where the answer is as the intact model's, 0 where it is another, NaN where that is
    not known; None if no row tells.
    """

    masks: Masks
    mask: Int[np.ndarray, " rows"]
    example: Int[np.ndarray, " rows"]
    outcome: PerRow
    kept: PerRow | None = None

    @property
    def kept_or_unknown(self) -> PerRow:
        return np.full(len(self.mask), np.nan) if self.kept is None else self.kept

    @classmethod
    def none(cls, heads: int) -> "Measurements":
        """Nothing measured yet on a grid of so many heads."""
        empty = np.zeros(0, dtype=int)
        return cls(np.zeros((0, heads), dtype=bool), empty, empty, np.zeros(0))

    def joined(self, later: "Measurements") -> "Measurements":
        """These rows and later ones; the later masks are numbered on."""
        return Measurements(
            np.concatenate([self.masks, later.masks]),
            np.concatenate([self.mask, later.mask + len(self.masks)]),
            np.concatenate([self.example, later.example]),
            np.concatenate([self.outcome, later.outcome]),
            np.concatenate([self.kept_or_unknown, later.kept_or_unknown]),
        )

    def mask_means(self) -> Float[np.ndarray, " masks"]:
        """Mean outcome of each mask over its examples; NaN for a mask without rows."""
        scored = ~np.isnan(self.outcome)
        rows = np.bincount(self.mask[scored], minlength=len(self.masks))
        sums = np.bincount(self.mask[scored], self.outcome[scored], minlength=len(self.masks))
        means = np.full(len(self.masks), np.nan)
        np.divide(sums, rows, out=means, where=rows > 0)
        return means

    def where(self, rows: Bool[np.ndarray, " rows"]) -> "Measurements":
        """Some of the rows, with the masks as they are."""
        return replace(
            self,
            mask=self.mask[rows],
            example=self.example[rows],
            outcome=self.outcome[rows],
            kept=None if self.kept is None else self.kept[rows],
        )

    def by_example(self) -> dict[int, float]:
        """The scored outcomes; the last of an example that stands here several times."""
        rows = ~np.isnan(self.outcome)
        return dict(zip(self.example[rows].tolist(), self.outcome[rows].tolist(), strict=True))


@dataclass(frozen=True)
class Estimate:
    """The effect of every head, in units of the outcome; NaN where it was not estimated.

    `estimand` says which effect it is: of the head `ALONE`, or `AMONG` the others of a mask. `low`
    and `high` bound it with 95 % confidence; `q` is the false discovery rate at which the head
    would be named; `top_chance` its chance to be among the most needed. All are NaN for an
    estimator that does not know.
    """

    estimator: str
    effect: PerHead
    low: PerHead
    high: PerHead
    q: PerHead
    r2_held_out: float = float("nan")
    top_chance: PerHead | None = None
    estimand: str = AMONG

    def within(self, outcomes: PerExample) -> "Estimate":
        """Keep effects and intervals to what a score of these right and wrong outcomes can change.

        An interval's ends may go as far as the true score may lie from the one seen.
        """
        level = outcomes.mean()
        lower, upper = true_scores(round(float(outcomes.sum())), len(outcomes))
        effect = np.clip(self.effect, -level, 1 - level)
        low, high = (np.clip(end, -upper, 1 - lower) for end in (self.low, self.high))
        return replace(self, effect=effect, low=low, high=high)

    def order(self) -> list[int]:
        """All columns, the most needed head (most negative effect) first, unknown ones as idle."""
        return np.argsort(np.nan_to_num(self.effect, nan=0.0), kind="stable").tolist()

    def needed(self, top: int) -> list[int]:
        """Columns of the `top` most needed heads; fewer if fewer effects are negative."""
        return [column for column in self.order()[:top] if self.effect[column] < 0]


def true_scores(right: int, count: int) -> tuple[float, float]:
    """Ends of the 95 % interval (Wilson's) of a share of which so many of a count were seen."""
    low, high = stats.binomtest(right, count).proportion_ci(method="wilson")
    return float(low), float(high)


# Every head's effect, from what was seen and the intact outcome of each example.
Estimator = Callable[[Measurements, dict[int, float]], Estimate]


def survived(seen: Measurements, intact: dict[int, float]) -> Bool[np.ndarray, " rows"]:
    """Mark rows whose outcome is still right, or for other outcomes than 0 and 1, still near.

    Near is a loss of 1.5 standard deviations of the intact outcomes at most; unscored is not.
    """
    if is_binary(intact):
        return seen.outcome >= 0.5
    before = np.array([intact[int(example)] for example in seen.example])
    return seen.outcome > before - 1.5 * max(float(np.std(list(intact.values()))), 1e-9)


def is_binary(intact: dict[int, float]) -> bool:
    """Tell whether outcomes are right or wrong rather than a measure."""
    return all(outcome in (0.0, 1.0) for outcome in intact.values())


def right_of(intact: dict[int, float]) -> list[int]:
    """List examples that a knockout can take something from: the right ones, or all if not 0/1."""
    binary = is_binary(intact)
    return [example for example, outcome in intact.items() if outcome or not binary]
