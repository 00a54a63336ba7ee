"""Planted truth: outcomes with known effects, and no model."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import expit, ndtri

from caploc.designs import generator

SPREAD = 2.0  # standard deviation of the examples' margins
NOISE = 0.3  # scale of the logistic noise of a row
GRID = 4001  # points of the numerical mean over examples


@dataclass(frozen=True)
class World:
    """0/1 outcomes of examples whose margins knocked-out heads eat into.

    Example i has margin `m_i ~ N(mean, 2²)`, drawn from its number and the seed; with the heads of
    a mask gone it is right with chance `logistic((m_i - sum of their shifts) / 0.3)`. A head's
    shift is 0 unless it is planted.
    """

    shifts: Float[np.ndarray, " heads"]
    mean: float
    seed: int

    @classmethod
    def planted(
        cls, heads: int, needed: int, *, drop: float = 0.3, intact: float = 0.9, seed: int = 0
    ) -> "World":
        """`needed` random heads, each of which alone costs about `drop` of the accuracy."""
        mean = SPREAD * float(ndtri(intact))
        shifts = np.zeros(heads)
        chosen = generator(seed).choice(heads, size=needed, replace=False)
        shifts[chosen] = mean - SPREAD * float(ndtri(max(intact - drop, 0.01)))
        return cls(shifts, mean, seed)

    @property
    def heads(self) -> int:
        """Number of heads."""
        return len(self.shifts)

    @property
    def planted_heads(self) -> list[int]:
        """Columns of the heads that matter."""
        return [int(column) for column in np.flatnonzero(self.shifts)]

    def outcomes(
        self, knocked_out: Bool[np.ndarray, "rows heads"], example: Int[np.ndarray, " rows"]
    ) -> Float[np.ndarray, " rows"]:
        """0/1 outcomes of rows; the same row has the same outcome every time."""
        margins = np.array([self.margin(int(number)) for number in example])
        chance = expit((margins - knocked_out @ self.shifts) / NOISE)
        right: np.ndarray = self.luck(knocked_out, example) < chance
        return right.astype(float)

    def margin(self, example: int) -> float:
        """How far the intact model is from getting the example wrong."""
        return float(np.random.default_rng([self.seed, 1, example]).normal(self.mean, SPREAD))

    def luck(
        self, knocked_out: Bool[np.ndarray, "rows heads"], example: Int[np.ndarray, " rows"]
    ) -> Float[np.ndarray, " rows"]:
        """A uniform number for each (mask, example) pair, a pure function of the pair."""
        keys = [int.from_bytes(np.packbits(mask).tobytes(), "big") for mask in knocked_out]
        return np.array(
            [
                np.random.default_rng([self.seed, 2, int(number), key]).random()
                for number, key in zip(example, keys, strict=True)
            ]
        )

    def accuracy(self, mask: Bool[np.ndarray, " heads"]) -> float:
        """The expected accuracy under a mask, over all examples there could be."""
        quantiles = (np.arange(GRID) + 0.5) / GRID
        margins = self.mean + SPREAD * ndtri(quantiles) - float(mask @ self.shifts)
        return float(expit(margins / NOISE).mean())

    def single_effects(self) -> Float[np.ndarray, " heads"]:
        """The true effect of knocking out each head alone."""
        intact = self.accuracy(np.zeros(self.heads, dtype=bool))
        return np.array([self.accuracy(mask) - intact for mask in np.eye(self.heads, dtype=bool)])
