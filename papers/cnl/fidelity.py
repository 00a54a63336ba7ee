"""Fidelity: does a locator say the same of every wording of a fact, and not of other facts?

That the same must come out however a fact is worded is the idea of Huang et al. (ICLR 2025); its
formulas are not known to us, and these are ours. For a fact's prompt q and a rewrite r, with P the
located set (of neurons, of edges):

    reference |P(q) & P(r)| / |P(q)|,   largest (by the larger set),   iou

and where a method gives a profile of effects over layers: do both peak in one layer (`agreement`),
how many layers lie between their peaks (`distance`), and how alike are they (`spearman`)?

A high rate alone says little: it is held against prompts of other facts, and the *margin* is the
rate with the fact's own rewrites less that with rewrites of other facts of the same relation. Only
a margin clearly above 0 speaks for single facts being located; a high rate with no margin is what
the relation's, or the form's, prompts have in common.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float64
from tqdm import tqdm

from caploc.components import Grid
from caploc.designs import generator
from caploc.errors import BadData
from caploc.neurons.chance import random_sets
from caploc.neurons.sets import overlap_rates, rank_correlation
from caploc.neurons.stats import mean_interval
from papers.cnl.facts import Fact, FactPrompt

ARMS = ("rewrites", "same_relation", "unrelated", "random")
SET_MEASURES = ("reference", "largest", "iou")
LAYER_MEASURES = ("agreement", "distance", "spearman")
Profile = Float64[np.ndarray, " layers"]
Located = Bool[np.ndarray, " units"] | Profile  # a set, or effects by layer
Place = tuple[int, int]  # a fact, and which of its rewrites


class FactLocator(Protocol):
    """Finds what a prompt's answer rests on, the same for the same prompt.

    That is a set of `units`, drawn at random within a layer of the `grid`, or an effect for each
    of the `layers` (NaN where there is none to have); None where the prompt is of no use.
    """

    name: str
    units: str

    @property
    def grid(self) -> Grid: ...
    def locate(self, prompt: FactPrompt) -> Located | None: ...


def are_related(first: Fact, second: Fact) -> bool | None:
    """Ask whether two facts are of one relation; None where that of both is unknown."""
    if first.relation is None and second.relation is None:
        return None
    return first.relation == second.relation


def pair_wordings(facts: Sequence[Fact], seed: int) -> list[tuple[int, dict[str, Place | None]]]:
    """Pair the prompt of a fact with each of its rewrites and, by arm, with those of other facts.

    A partner is drawn at random and its rewrite has the same number, counted round; that all are
    rewrites keeps differences of form out of the comparison. A fact whose relation is not known has
    no related facts, and is unrelated only to facts of a known relation. Raises BadData if no fact
    has a rewrite.
    """
    random = generator(seed)
    usable = [number for number, fact in enumerate(facts) if fact.rewrites]
    if not usable:
        raise BadData("No fact has a rewrite to compare it with; give some.")

    def partner(fact: int, rewrite: int, same: bool) -> Place | None:
        pool = [n for n in usable if n != fact and are_related(facts[fact], facts[n]) is same]
        if not pool:
            return None
        other = pool[int(random.integers(len(pool)))]
        return other, rewrite % len(facts[other].rewrites)

    pairs = []
    for fact in usable:
        for rewrite in range(len(facts[fact].rewrites)):
            related, unrelated = (partner(fact, rewrite, same) for same in (True, False))
            places = (fact, rewrite), related, unrelated, (fact, rewrite)
            pairs.append((fact, dict(zip(ARMS, places, strict=True))))
    return pairs


def wording_fidelity(locator: FactLocator, facts: Sequence[Fact], *, seed: int) -> dict[str, Any]:
    """Locate every prompt and every rewrite, and compare what comes out.

    `arms` holds each measure's mean over facts: a fact's prompt beside its `rewrites`, rewrites of
    other facts (`same_relation`, `unrelated`), and what is as large as the rewrites' in each layer,
    or the same profile with its layers dealt anew (`random`). `margin` is `rewrites` less
    `same_relation`, paired by fact (of `distance`, below 0 is better). `size` is the mean number of
    units of the `prompts`; at `missing` ones nothing was located, or the model answers wrongly.
    `peaks` counts the facts whose profile peaks in each layer.
    """
    pairs = pair_wordings(facts, seed)
    used = sorted({fact for fact, _ in pairs})
    located = {
        number: [locator.locate(each) for each in (facts[number].prompt, *facts[number].rewrites)]
        for number in tqdm(used, f"{locator.name} of wordings", disable=None)
    }
    rows = []
    for number, (fact, partners) in enumerate(pairs):
        for arm, place in partners.items():
            second = None if place is None else located[place[0]][1 + place[1]]
            if arm == "random" and second is not None:
                second = random_like(second, locator.grid, seed + number)
            rows.append({"fact": fact, "arm": arm} | compare_located(located[fact][0], second))
    names = LAYER_MEASURES if locator.units == "layers" else SET_MEASURES
    table = pd.DataFrame(rows).reindex(columns=["fact", "arm", *names])
    means = table.astype(dict.fromkeys(names, float)).groupby(["arm", "fact"]).mean()
    every = [each for found in located.values() for each in found]
    sets = [each for each in every if each is not None and each.dtype == bool]
    firsts = [found[0] for found in located.values()]
    profiles = [each for each in firsts if each is not None and each.dtype != bool]
    peaks = np.bincount(list(map(peak, profiles)), minlength=max(map(len, profiles), default=0))

    def intervals(by_fact: pd.DataFrame) -> dict[str, Any]:
        return {name: mean_interval(by_fact[name].to_numpy(), seed=seed) for name in names}

    return {
        "locator": locator.name,
        "units": locator.units,
        "facts": len(used),
        "without_rewrites": len(facts) - len(used),
        "prompts": len(every),
        "missing": sum(each is None or (each.dtype == bool and not each.any()) for each in every),
        "size": float(np.mean([each.sum() for each in sets])) if sets else None,
        "peaks": peaks.tolist() or None,
        "arms": {arm: intervals(means.loc[arm]) for arm in ARMS},
        "margin": intervals(means.loc["rewrites"] - means.loc["same_relation"]),
    }


def random_like(located: Located, grid: Grid, seed: int) -> Located:
    """Draw a set as large in every layer, or deal a profile's effects to layers anew."""
    if located.dtype != bool:
        return generator(seed).permutation(located)
    return random_sets(located, grid, 1, seed=seed, excluding=False)[0]


def compare_located(first: Located | None, second: Located | None) -> dict[str, float | None]:
    """Compare two sets, or two profiles; empty where one is missing, None where undefined."""
    if first is None or second is None:
        return {}
    if first.dtype == bool:
        found = vars(overlap_rates(first, second))
        return {name: found[name] for name in SET_MEASURES}
    apart = float(abs(peak(first) - peak(second)))
    figures = float(apart == 0), apart, rank_correlation(first, second)
    return dict(zip(LAYER_MEASURES, figures, strict=True))


def peak(profile: Profile) -> int:
    """Find the layer of the largest effect, the lowest of equals; BadData if there is none."""
    if np.isnan(profile).all():
        raise BadData("A traced profile has no layer with an effect; widen the window.")
    return int(np.nanargmax(profile))
