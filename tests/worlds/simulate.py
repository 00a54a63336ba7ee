"""Planted truth: outcomes with known effects, and no model.

    world = World.of_kind("strong", seed=0)
    world.outcomes(masks, examples)     # 0/1, one for each (mask, example) row
    world.single_effects()              # the truth that a locator should find

Any locator can be tried against it: it needs masks in and outcomes out, nothing else.
"""

from dataclasses import dataclass, replace
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
FREE = 21  # heads of no account that interactions draw on
Shifts = Float[np.ndarray, " heads"]
RowMasks = Bool[np.ndarray, "rows heads"] | Float[np.ndarray, "rows heads"]
Examples = Int[np.ndarray, " rows"]
PerRow = Float[np.ndarray, " rows"]
Columns = Int[np.ndarray, " _"]


@dataclass(frozen=True)
class Kind:
    """A kind of world: how strong, how many, how entangled its heads are.

    `largest` is the shift of the strongest of `large` heads, each `ratio` times the one before;
    `tail` the mean shift of `tails` weaker ones; `rest` the spread of all others. `universal` heads
    break every answer. `coupling` scales the interactions, `damage` what sheer number costs, and
    `intact` is the accuracy with no head knocked out. `breakers` heads of the first two layers take
    `broken` of every margin alone, and nothing once one of their `rescuers` is gone as well.
    `unsteady` is how much any knockout disturbs an example, `noise` the luck of a row.
    """

    largest: float = 1.6
    ratio: float = 0.8
    large: int = 12
    tail: float = 0.08
    tails: int = 60
    rest: float = 0.03
    universal: int = 3
    intact: float = 0.8
    coupling: float = 1.0
    damage: float = 0.015
    unsteady: float = 0.15
    noise: float = NOISE
    breakers: int = 0
    broken: float = 0.0
    rescuers: int = 0


# As SmolLM2's heads do on six tasks (docs/real_networks.md): few heads of some effect alone, none
# universal, hardly any luck, and a small disturbance of every example by whatever head is gone.
REAL = Kind(
    largest=1.1, ratio=0.85, tail=0.1, tails=40, rest=0.02, universal=0,
    intact=0.85, damage=0.02, unsteady=0.2, noise=0.03,
)  # fmt: skip

KINDS = {
    "strong": Kind(),
    "weak": Kind(largest=0.7, ratio=0.85, tail=0.06, intact=0.7),
    "inter": Kind(coupling=2.5, damage=0.04),
    "fragile": Kind(tail=0.15, tails=100, universal=8, damage=0.06),
    "lowbase": Kind(intact=0.35),
    "additive": Kind(universal=0, coupling=0.0, damage=0.0),
    "null": Kind(large=0, tails=0, rest=0.0, universal=0, coupling=0.0),
    "real": REAL,
    "rescue": replace(REAL, breakers=1, broken=6.0, rescuers=12),
}


@dataclass(frozen=True)
class Interaction:
    """A further shift of the margin when all of these heads are gone; negative: they saturate."""

    columns: tuple[int, ...]
    shift: float


@dataclass(frozen=True)
class PlantedRescue:
    """A head that takes `shift` of every margin unless one of its rescuers is gone as well."""

    breaker: int
    rescuers: tuple[int, ...]
    shift: float


@dataclass(frozen=True)
class World:
    """0/1 outcomes of examples whose margins knocked-out heads eat into.

    Example i has margin `m_i ~ N(mean, 2²)`, drawn from its number and the seed; with the heads S
    of a mask gone it is right with chance `logistic((m_i - shift_i(S)) / noise)`, where

        shift_i(S) = sum over h in S of (shifts_h g_ih + unsteady z_ih) + interactions(S)
                     + rescues(S) + damage (100 |S| / heads)²

    `g_ih` is gamma with mean 1 for heads that matter much (and 1 for the others, and for universal
    heads), `z_ih` a standard normal: any knockout disturbs a little. Both belong to the pair of
    example and head; the logistic luck belongs to the row, and is the same whenever it is asked.
    """

    shifts: Shifts
    mean: float
    seed: int
    interactions: tuple[Interaction, ...] = ()
    universal: tuple[int, ...] = ()
    unsteady: float = 0.0
    damage: float = 0.0
    varied: bool = False
    noise: float = NOISE
    rescues: tuple[PlantedRescue, ...] = ()

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
    def of_kind(cls, kind: str | Kind, *, seed: int, layers: int = 32, width: int = 32) -> "World":
        """A world of `layers` x `width` heads with the entanglements of a real model.

        Large heads lie above the first eighth of the layers and the first two, universal heads in
        the first two, breakers and their rescuers in that eighth. Among the large heads two pairs
        saturate and two have a silent backup; four pairs have no single effect but a joint one; six
        pairs of weak heads strengthen each other; and one group of four, as if they shared a
        key-value head, acts jointly.
        """
        kind = KINDS[kind] if isinstance(kind, str) else kind
        random, heads = generator(seed), layers * width
        shifts = random.normal(kind.rest / 3, kind.rest, heads)
        order = random.permutation(np.arange(max(layers // 8, 2) * width, heads))
        large, tail, free = np.split(order, [kind.large, kind.large + kind.tails])
        strengths = kind.largest * kind.ratio ** np.arange(kind.large)
        shifts[large] = strengths * random.uniform(0.9, 1.1, kind.large)
        shifts[tail] = random.exponential(kind.tail, kind.tails)
        universal = random.choice(2 * width, kind.universal, replace=False)
        shifts[universal] = random.uniform(5, 9, kind.universal)
        early = np.setdiff1d(np.arange(max(layers // 8, 2) * width), universal)
        rescues = draw_rescues(kind, random.permutation(early))
        shifts[[rescue.breaker for rescue in rescues]] = 0.0
        if kind.coupling:
            shifts[group_of_four(free, large)] = 0.12
        interactions = entangled(kind.coupling, shifts, large, tail, free)
        return cls(
            shifts=shifts,
            mean=SPREAD * float(ndtri(kind.intact)),
            seed=seed,
            interactions=interactions,
            universal=tuple(int(column) for column in universal),
            unsteady=kind.unsteady,
            damage=kind.damage,
            varied=True,
            noise=kind.noise,
            rescues=rescues,
        )

    @property
    def heads(self) -> int:
        return len(self.shifts)

    @property
    def planted_heads(self) -> list[int]:
        """Columns of the heads that matter."""
        breakers = [rescue.breaker for rescue in self.rescues]
        return sorted({*np.flatnonzero(self.shifts).tolist(), *breakers})

    @property
    def common(self) -> Bool[np.ndarray, " heads"]:
        """Heads that are not universal."""
        return ~np.isin(np.arange(self.heads), self.universal)

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
        for rescue in self.rescues:
            rescued = knocked_out[:, list(rescue.rescuers)].any(axis=1)
            breaks = knocked_out[:, rescue.breaker].astype(bool)
            together.append(rescue.shift * (breaks & ~rescued))
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
        varied: np.ndarray = (np.abs(self.shifts) > VARIED) & self.common
        return varied & self.varied

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


def draw_rescues(kind: Kind, early: Columns) -> tuple[PlantedRescue, ...]:
    """The breakers of a kind and their rescuers, all different, among the early heads."""
    each = 1 + kind.rescuers
    parts = early[: kind.breakers * each].reshape(kind.breakers, each).tolist()
    return tuple(PlantedRescue(part[0], tuple(part[1:]), kind.broken) for part in parts)


def group_of_four(free: Columns, large: Columns) -> Columns:
    """Four neighbouring columns, none large, as query heads of one key-value head would be."""
    groups = (np.arange(4) + 4 * (int(column) // 4) for column in free[FREE - 1 :])
    return next(group for group in groups if not np.isin(group, large).any())


def entangled(
    coupling: float, shifts: Shifts, large: Columns, tail: Columns, free: Columns
) -> tuple[Interaction, ...]:
    """The interactions that `World.of_kind` describes."""
    if not coupling:
        return ()
    saturating = [((large[0], large[5]), 0.3), ((large[1], large[3]), 0.5)]
    pairs = [(both, -coupling * share * shifts[both[1]]) for both, share in saturating]
    pairs += [((large[2], free[0]), coupling * 0.6), ((large[4], free[1]), coupling * 0.6)]
    pairs += [((free[2 + 2 * n], free[3 + 2 * n]), coupling * 1.2) for n in range(4)]
    pairs += [((tail[2 * n], tail[2 * n + 1]), coupling * 0.4) for n in range(6)]
    together = (*pairs, (tuple(group_of_four(free, large)), coupling * 0.8))
    return tuple(Interaction(tuple(int(c) for c in both), float(s)) for both, s in together)
