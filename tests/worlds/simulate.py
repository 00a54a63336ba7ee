"""Planted truth: outcomes with known effects, and no model.

    world = World.real(seed=0, layers=32, width=32)
    world.outcomes(masks, examples)     # 0/1, one for each (mask, example) row
    world.single_effects()              # the truth that a locator should find

Any locator can be tried against it: it needs masks in and outcomes out, nothing else.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import expit, ndtri

from caploc.components import Mask
from caploc.designs import generator

SPREAD = 2.0  # standard deviation of the examples' margins
NOISE = 0.3  # scale of the logistic noise of a row
POPULATION = 4001  # examples of the numerical mean over all there could be
VARIED = 0.1  # heads with a larger shift matter more to some examples than to others
SHAPE = 1.5  # of the gamma variable, of mean 1, by which they do
# As SmolLM2's heads do on six tasks (docs/real_networks.md): few heads of some effect alone, hardly
# any luck, and a small disturbance of every example by whatever head is gone.
LARGE, LARGEST, RATIO = 12, 1.1, 0.85  # the strongest's shift; each other has so much of the last
TAILS, TAIL, REST = 40, 0.1, 0.02  # weaker heads and their mean shift; the spread of all others
Shifts = Float[np.ndarray, " heads"]
RowMasks = Bool[np.ndarray, "rows heads"] | Float[np.ndarray, "rows heads"]
Examples = Int[np.ndarray, " rows"]
PerRow = Float[np.ndarray, " rows"]


@dataclass(frozen=True)
class Interaction:
    """A further shift of the margin when all of these heads are gone; negative: they saturate."""

    columns: tuple[int, ...]
    shift: float


@dataclass(frozen=True)
class World:
    """0/1 outcomes of examples whose margins knocked-out heads eat into.

    Example i has margin `m_i ~ N(mean, 2²)`, drawn from its number and the seed; with the heads S
    of a mask gone it is right with chance `logistic((m_i - shift_i(S)) / noise)`, where

        shift_i(S) = sum over h in S of (shifts_h g_ih + unsteady z_ih) + interactions(S)
                     + damage (100 |S| / heads)²

    `g_ih` is gamma with mean 1 for heads that matter much (and 1 for the others), `z_ih` a standard
    normal: any knockout disturbs a little. Both belong to the pair of example and head; the
    logistic luck belongs to the row, and is the same whenever it is asked.
    """

    shifts: Shifts
    mean: float
    seed: int
    interactions: tuple[Interaction, ...] = ()
    unsteady: float = 0.0
    damage: float = 0.0
    varied: bool = False
    noise: float = NOISE

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

    @classmethod
    def real(cls, *, seed: int, layers: int, width: int) -> "World":
        """A world of `layers` x `width` heads with the entanglements of a real model.

        Large heads lie above the first eighth of the layers and the first two. Among them two pairs
        saturate and two have a silent backup; four pairs have no single effect but a joint one; six
        pairs of weak heads strengthen each other; and one group of four, as if they shared a
        key-value head, acts jointly.
        """
        random, heads = generator(seed), layers * width
        shifts = random.normal(REST / 3, REST, heads)
        order = random.permutation(np.arange(max(layers // 8, 2) * width, heads))
        large, tail, free = np.split(order, [LARGE, LARGE + TAILS])
        shifts[large] = LARGEST * RATIO ** np.arange(LARGE) * random.uniform(0.9, 1.1, LARGE)
        shifts[tail] = random.exponential(TAIL, TAILS)
        groups = (np.arange(4) + 4 * (int(column) // 4) for column in free[20:])
        four = next(group for group in groups if not np.isin(group, large).any())
        shifts[four] = 0.12
        pairs = [((large[0], large[5]), -0.3 * shifts[large[5]])]
        pairs += [((large[1], large[3]), -0.5 * shifts[large[3]])]
        pairs += [((large[2], free[0]), 0.6), ((large[4], free[1]), 0.6)]
        pairs += [((free[2 + 2 * n], free[3 + 2 * n]), 1.2) for n in range(4)]
        pairs += [((tail[2 * n], tail[2 * n + 1]), 0.4) for n in range(6)]
        return cls(
            shifts=shifts,
            mean=SPREAD * float(ndtri(0.85)),
            seed=seed,
            interactions=tuple(
                Interaction(tuple(int(column) for column in together), float(shift))
                for together, shift in (*pairs, (four, 0.8))
            ),
            unsteady=0.2,
            damage=0.02,
            varied=True,
            noise=0.03,
        )

    @property
    def heads(self) -> int:
        return len(self.shifts)

    @property
    def planted_heads(self) -> list[int]:
        """Columns of the heads that matter."""
        return np.flatnonzero(self.shifts).tolist()

    def outcomes(self, knocked_out: RowMasks, example: Examples) -> PerRow:
        """0/1 outcomes of rows; the same row has the same outcome every time."""
        chance = expit(self.margins(knocked_out, example) / self.noise)
        right: np.ndarray = self.luck(knocked_out, example) < chance
        return right.astype(float)

    def logprobs(self, knocked_out: RowMasks, example: Examples) -> PerRow:
        """Log-probability of the gold answer: log logistic of the noisy margin."""
        luck = np.clip(self.luck(knocked_out, example), 1e-9, 1 - 1e-9)
        noisy = self.margins(knocked_out, example) - self.noise * np.log(luck / (1 - luck))
        return -np.logaddexp(0.0, -noisy)

    def margins(self, knocked_out: RowMasks, example: Examples) -> PerRow:
        """What is left of each row's margin."""
        numbers, place = np.unique(example, return_inverse=True)
        margins, table = zip(*(self.profile(int(number)) for number in numbers), strict=True)
        row, column = np.nonzero(knocked_out)
        shift = np.stack(table)[place[row], column]
        gone = np.bincount(row, shift, minlength=len(example))
        return np.array(margins)[place] - gone - self.joint(knocked_out)

    def joint(self, knocked_out: RowMasks) -> PerRow:
        """What a mask costs beyond the sum of its heads."""
        share = 100 * knocked_out.sum(axis=1) / self.heads
        together = [
            interaction.shift * knocked_out[:, list(interaction.columns)].all(axis=1)
            for interaction in self.interactions
        ]
        return self.damage * share**2 + np.sum(together, axis=0)

    def profile(self, example: int) -> tuple[float, Shifts]:
        """An example's margin, and how much of it each head alone takes."""
        if example not in self._profiles:
            random = np.random.default_rng([self.seed, 1, example])
            margin = float(random.normal(self.mean, SPREAD))
            shift = self.shifts.copy()
            if self.varied:
                shift[self._varied] *= random.gamma(SHAPE, 1 / SHAPE, self._varied.sum())
            if self.unsteady:
                shift += self.unsteady * random.standard_normal(self.heads)
            self._profiles[example] = (margin, shift)
        return self._profiles[example]

    @cached_property
    def _profiles(self) -> dict[int, tuple[float, np.ndarray]]:
        return {}

    @cached_property
    def _varied(self) -> Bool[np.ndarray, " heads"]:
        return (np.abs(self.shifts) > VARIED) & self.varied

    def luck(self, knocked_out: RowMasks, example: Examples) -> PerRow:
        """A uniform number for each (mask, example) pair, a pure function of the pair."""
        weights = generator(self.seed).integers(0, 2**63, size=self.heads + 1, dtype=np.uint64)
        keys = np.zeros(len(example), dtype=np.uint64)
        row, column = np.nonzero(knocked_out)
        np.add.at(keys, row, weights[column])  # sums wrap around, as a hash may
        keys += (example.astype(np.uint64) + np.uint64(1)) * weights[-1]
        # the finalizer of splitmix64 (Steele et al., 2014)
        with np.errstate(over="ignore"):
            keys = keys + np.uint64(0x9E3779B97F4A7C15)
            keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            keys = keys ^ (keys >> np.uint64(31))
        return (keys >> np.uint64(11)) / 2.0**53

    def accuracy(self, mask: Mask) -> float:
        """The expected accuracy under a mask, over all examples there could be."""
        margins, relied, disturbed = self._population
        columns = np.flatnonzero(mask)
        gone = np.full(POPULATION, float(self.joint(mask[None])[0]))
        for column in columns:
            gone += self.shifts[column] * relied.get(int(column), 1.0)
        gone += self.unsteady * np.sqrt(len(columns)) * disturbed
        return float(expit((margins - gone) / self.noise).mean())

    @cached_property
    def _population(self) -> tuple[np.ndarray, dict[int, np.ndarray], np.ndarray]:
        random = np.random.default_rng([self.seed, 3])
        margins = self.mean + SPREAD * ndtri((np.arange(POPULATION) + 0.5) / POPULATION)
        relied = {
            int(column): random.gamma(SHAPE, 1 / SHAPE, POPULATION)
            for column in np.flatnonzero(self._varied)
        }
        return margins, relied, random.standard_normal(POPULATION)

    def single_effects(self) -> Shifts:
        """The true effect of knocking out each head alone."""
        intact = self.accuracy(np.zeros(self.heads, dtype=bool))
        return np.array([self.accuracy(mask) - intact for mask in np.eye(self.heads, dtype=bool)])

    def damage_of(self, columns: "list[int] | tuple[int, ...]") -> float:
        """The true drop of the accuracy with these heads gone."""
        mask = np.isin(np.arange(self.heads), columns)
        return self.accuracy(np.zeros_like(mask)) - self.accuracy(mask)
