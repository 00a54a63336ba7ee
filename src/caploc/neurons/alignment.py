"""Do a capability's heads and its neurons lie in the same layers? Numbers only; all of it is ours.

A profile says which share lies in each layer: of the heads and of the neurons located, or of what
all heads cost and all neurons score. Of two profiles h and n,

    overlap  = sum over layers min(h_l, n_l), which is 1 less their total variation distance
    distance = sum over layers l n_l - l h_l, the mean over all pairs of layer less layer
    reading  = share of pairs of a neuron and a head that the neuron can read

and Spearman's correlation over layers. The neurons stay where they are; the heads are held against
as many drawn at random from all of the model's, what they cost against the same costs dealt out to
the heads anew.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from scipy import stats

from caploc.commonality import Result, Scores, layer_counts, permutation_p
from caploc.commonality.agreement import correlations
from caploc.designs import generator
from caploc.errors import BadData, BadOption
from caploc.grid import Grid, Mask

DRAWS = 9_999  # random heads; no p is below 1 / (1 + DRAWS)
DEALT = 500  # ways to deal out costs held in memory at a time
MIDDLE = (0.025, 0.975)
ROUNDING = 1e-12  # two ways to add up the same shares may differ by this much
Profile = Float64[np.ndarray, " layers"]
Drawn = Float64[np.ndarray, "draws layers"]
Effects = Float64[np.ndarray, " heads"]
Figure = Callable[[Drawn, Profile], Float64[np.ndarray, " draws"]]


@dataclass(frozen=True)
class BesideChance(Result):
    """A figure beside what random heads give; None where it is not defined.

    `expected` is their mean, `low` and `high` enclose their middle 95 %. `p` is two-sided: twice
    the share of draws, the located heads included, that lie at least as far on the figure's side.
    """

    value: float | None
    expected: float | None
    low: float | None
    high: float | None
    p: float | None


@dataclass(frozen=True)
class Alike(Result):
    """Two profiles over layers, and how alike they are."""

    heads: Profile
    neurons: Profile
    overlap: BesideChance
    spearman: BesideChance


@dataclass(frozen=True)
class Alignment(Result):
    """Where heads and neurons lie.

    `located` compares how many lie in each layer; `weighed` the sum, over all heads measured, of
    the score that each costs alone, and over all neurons of their positive scores (None if no
    head's effect is known, none costs anything, or no neuron scores above 0). `distance` is in
    layers, above 0 if the neurons lie above the heads. `same_layer` says whether in this model
    neurons read what the heads of their own layer write, as `reading` counts it.
    """

    located: Alike
    weighed: Alike | None
    distance: BesideChance
    reading: BesideChance
    same_layer: bool
    draws: int = DRAWS


@dataclass(frozen=True)
class Placed:
    """Located parts of one kind, and what every part of that kind weighs (None: not known).

    A head weighs what its knockout costs, NaN if that was not measured; a neuron its score.
    """

    grid: Grid
    chosen: Mask
    weights: Scores | None = None


def align(heads: Placed, neurons: Placed, *, same_layer: bool = True, seed: int = 0) -> Alignment:
    """Hold the layers of located heads against those of located neurons.

    Raises:
        BadOption: if there is no head or no neuron. BadData: if the grids are of different models.
    """
    check_placed(heads, neurons)
    counts = [layer_counts(each.chosen, each.grid) for each in (heads, neurons)]
    own, profile = (each / each.sum() for each in counts)
    drawn = generator(seed).multivariate_hypergeometric(
        heads.grid.per_layer, int(counts[0].sum()), size=DRAWS
    ) / int(counts[0].sum())
    return Alignment(
        located=alike(own, profile, drawn),
        weighed=weighed(heads, neurons, seed),
        distance=beside(distance, own, profile, drawn),
        reading=beside(upward if same_layer else strictly_upward, own, profile, drawn),
        same_layer=same_layer,
    )


def weighed(heads: Placed, neurons: Placed, seed: int) -> Alike | None:
    """The profiles of what heads cost and neurons score; gains and negative scores weigh nothing.

    A cost is dealt out anew only among heads whose cost is known.
    """
    if heads.weights is None or neurons.weights is None:
        return None
    known = np.flatnonzero(~np.isnan(heads.weights))
    costs = heads.weights[known].clip(min=0.0)
    scores = neurons.weights.clip(min=0.0)
    if not costs.sum() > 0 or not scores.sum() > 0:
        return None
    own = membership(heads.grid)[known]
    return alike(
        costs @ own / costs.sum(),
        np.array([scores[columns].sum() for columns in neurons.grid.layer_slices]) / scores.sum(),
        np.concatenate(list(dealt(costs / costs.sum(), own, generator(seed)))),
    )


def dealt(
    costs: Float64[np.ndarray, " known"],
    own: Float64[np.ndarray, "known layers"],
    random: np.random.Generator,
) -> Iterator[Drawn]:
    """Profiles of the same costs dealt out to the heads anew, some at a time."""
    for first in range(0, DRAWS, DEALT):
        rows = np.tile(costs, (min(DEALT, DRAWS - first), 1))
        yield random.permuted(rows, axis=1) @ own


def membership(grid: Grid) -> Float64[np.ndarray, "parts layers"]:
    """1 where a part lies in a layer."""
    return np.repeat(np.eye(grid.layers), grid.per_layer, axis=0)


def alike(heads: Profile, neurons: Profile, drawn: Drawn) -> Alike:
    """How alike two profiles are, beside random profiles of heads."""
    return Alike(
        heads=heads,
        neurons=neurons,
        overlap=beside(overlap, heads, neurons, drawn),
        spearman=beside(spearman, heads, neurons, drawn),
    )


def beside(figure: Figure, heads: Profile, neurons: Profile, drawn: Drawn) -> BesideChance:
    """A figure of the located heads beside that of random ones; draws without one do not count."""
    value = float(figure(heads[None], neurons)[0])
    chance = figure(drawn, neurons)
    chance = chance[~np.isnan(chance)]
    if np.isnan(value) or not len(chance):
        return BesideChance(None, None, None, None, None)
    low, high = np.quantile(chance, MIDDLE)
    above = permutation_p(value - ROUNDING, chance)
    below = permutation_p(-value - ROUNDING, -chance)
    p = min(1.0, 2 * min(above, below))
    return BesideChance(value, float(chance.mean()), float(low), float(high), p)


def overlap(heads: Drawn, neurons: Profile) -> Float64[np.ndarray, " draws"]:
    """What two profiles have in common, from 0 to 1."""
    found: np.ndarray = np.minimum(heads, neurons).sum(axis=1)
    return found


def spearman(heads: Drawn, neurons: Profile) -> Float64[np.ndarray, " draws"]:
    """Spearman's correlation over layers; NaN where a profile is flat."""
    ranks = stats.rankdata(heads.round(12), axis=1)
    return correlations(ranks, stats.rankdata(neurons.round(12))[None], np.ones_like(ranks))


def distance(heads: Drawn, neurons: Profile) -> Float64[np.ndarray, " draws"]:
    """Mean layer of the neurons less that of the heads."""
    layers = np.arange(len(neurons))
    return neurons @ layers - heads @ layers


def upward(heads: Drawn, neurons: Profile) -> Float64[np.ndarray, " draws"]:
    """Share of pairs in which the neuron lies in the head's layer or above."""
    return heads @ neurons[::-1].cumsum()[::-1]


def strictly_upward(heads: Drawn, neurons: Profile) -> Float64[np.ndarray, " draws"]:
    """Share of pairs in which the neuron lies above the head's layer."""
    return upward(heads, neurons) - heads @ neurons


def check_placed(heads: Placed, neurons: Placed) -> None:
    """Refuse what cannot be compared.

    Raises:
        BadOption: if there is no head or no neuron. BadData: if the grids are of different models.
    """
    for name, placed in (("head", heads), ("neuron", neurons)):
        if not placed.chosen.any():
            raise BadOption(f"There is no located {name} to compare layers of; locate at least 1.")
    if heads.grid.layers != neurons.grid.layers:
        raise BadData(
            f"The heads are of a model of {heads.grid.layers} layers and the neurons of one of "
            f"{neurons.grid.layers}; locate both in one model."
        )
