"""Is what is located faithful to the fact? However a fact is worded, the same must come out.

The idea is that of Huang et al. (ICLR 2025); its formulas are not known to us, and these are ours.
For a fact's prompt q and a rewrite r, with P the located set (of neurons, of edges):

    reference |P(q) & P(r)| / |P(q)|,   largest (by the larger set),   iou

and where a method gives a profile of effects over layers: do both peak in one layer (`agreement`),
how many layers lie between their peaks (`distance`), and how alike are they (`spearman`)?

A high rate alone says little: it is held against prompts of other facts, and the *margin* is the
rate with the fact's own rewrites less that with rewrites of other facts of the same relation. Only
a margin clearly above 0 speaks for single facts being located; a high rate with no margin is what
the relation's, or the form's, prompts have in common.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float64

from caploc.designs import generator
from caploc.errors import BadData
from caploc.grid import Grid
from caploc.neurons.facts import Fact, FactPrompt, check_names
from caploc.progress import Progress, Silent
from caploc.stats.chance import layer_matched
from caploc.stats.intervals import Interval, JsonRecord, mean_interval
from caploc.stats.sets import overlap_rates, rank_correlation

ARMS = ("rewrites", "same_prompt", "same_relation", "unrelated")
SET_MEASURES = ("reference", "largest", "iou")
LAYER_MEASURES = ("agreement", "distance", "spearman")
T = TypeVar("T")
Set = Bool[np.ndarray, " units"]
Profile = Float64[np.ndarray, " layers"]
Intervals = dict[str, Interval]  # of means over facts, facts resampled, by measure


@runtime_checkable
class SetLocator(Protocol):
    """Finds the set of `units` that a prompt's answer rests on, the same for the same prompt.

    Random sets are drawn within a layer of the `grid`.
    """

    name: str
    units: str

    @property
    def grid(self) -> Grid: ...
    def locate(self, prompt: FactPrompt) -> Bool[np.ndarray, " units"]: ...


@runtime_checkable
class Profiler(Protocol):
    """Says how much a prompt's answer rests on each layer: its profile.

    That is NaN for a layer that has no effect, None where the prompt is of no use.
    """

    name: str

    def profile(self, prompt: FactPrompt) -> Float64[np.ndarray, " layers"] | None: ...


@dataclass(frozen=True)
class WordingPair:
    """A fact's prompt beside one of its own rewrites and rewrites of other facts, by number.

    `fact` and `rewrite` are numbers; `related` is a fact of the same relation and `unrelated` one
    of another, each with the number of one of its rewrites; None where there is none. That all are
    rewrites keeps differences of form out of the comparison.
    """

    fact: int
    rewrite: int
    related: tuple[int, int] | None
    unrelated: tuple[int, int] | None


def pair_wordings(facts: Sequence[Fact], seed: int) -> list[WordingPair]:
    """Make one pair for each rewrite of each fact, its partners drawn at random.

    A partner's rewrite has the same number, counted round. A fact whose relation is not known has
    no related facts, and is unrelated only to facts of a known relation.

    Raises:
        BadData: if no fact has a rewrite.
    """
    random = generator(seed)
    usable = [number for number, fact in enumerate(facts) if fact.rewrites]
    if not usable:
        raise BadData("No fact has a rewrite to compare it with; give some.")

    def partner(fact: int, rewrite: int, same: bool) -> tuple[int, int] | None:
        pool = [
            other
            for other in usable
            if other != fact and are_related(facts[fact], facts[other]) is same
        ]
        if not pool:
            return None
        other = pool[int(random.integers(len(pool)))]
        return other, rewrite % len(facts[other].rewrites)

    return [
        WordingPair(fact, rewrite, partner(fact, rewrite, True), partner(fact, rewrite, False))
        for fact in usable
        for rewrite in range(len(facts[fact].rewrites))
    ]


def are_related(first: Fact, second: Fact) -> bool | None:
    """Ask whether two facts are of one relation; None where that of both is unknown."""
    if first.relation is None and second.relation is None:
        return None
    return first.relation == second.relation


def mean_by_fact(
    owners: Sequence[int], values: Sequence[float], facts: int
) -> Float64[np.ndarray, " facts"]:
    """Average each fact's values that are not missing; NaN where it has none."""
    owned, given = np.asarray(owners, dtype=int), np.asarray(values, dtype=float)
    means = np.full(facts, np.nan)
    for fact in range(facts):
        known = given[(owned == fact) & ~np.isnan(given)]
        if len(known):
            means[fact] = known.mean()
    return means


def _locate_wordings(
    locate: Callable[[FactPrompt], T],
    facts: Sequence[Fact],
    compared: Sequence[WordingPair],
    what: str,
    progress: Progress | None,
) -> dict[int, list[T]]:
    """Locate of each fact that is compared the prompt, the prompt again, and each rewrite."""
    used, shown = sorted({pair.fact for pair in compared}), progress or Silent()
    shown.start(what, sum(2 + len(facts[n].rewrites) for n in used))
    found: dict[int, list[T]] = {}
    for number in used:
        fact, found[number] = facts[number], []
        for prompt in (fact.prompt, fact.prompt, *fact.rewrites):
            found[number].append(locate(prompt))
            shown.advance(1, 1)
    return found


def _partner(found: Mapping[int, list[T]], arm: str, pair: WordingPair) -> T | None:
    """Find what an arm holds a fact's prompt against; None where there is nothing."""
    if arm == "same_prompt":
        return found[pair.fact][1]
    places = {"same_relation": pair.related, "unrelated": pair.unrelated}
    place = places.get(arm, (pair.fact, pair.rewrite))
    return None if place is None else found[place[0]][2 + place[1]]


def _means(
    arms: Mapping[str, list[dict[str, float]]],
    compared: Sequence[WordingPair],
    facts: int,
    seed: int,
) -> dict[str, Intervals]:
    """Average each arm's measures by fact and over facts, and take the margin."""
    owners = [pair.fact for pair in compared]
    means = {
        arm: {name: mean_by_fact(owners, [row[name] for row in rows], facts) for name in rows[0]}
        for arm, rows in arms.items()
    }
    own, related = means["rewrites"], means["same_relation"]
    means |= {"margin": {name: own[name] - related[name] for name in own}}
    return {
        arm: {name: mean_interval(each, seed=seed) for name, each in values.items()}
        for arm, values in means.items()
    }


@dataclass(frozen=True)
class Fidelity(JsonRecord):
    """How well a locator's sets agree between wordings of a fact, beside what other prompts give.

    `size` is the mean number of units located in the `prompts`, `empty` how many of these gave none
    (their rates are missing). `rewrites` compares a fact's prompt with its rewrites, `same_prompt`
    with itself located anew (1 unless the locator is random), `same_relation` and `unrelated` with
    rewrites of other facts, `random` with sets of the rewrites' size in each layer. `margin` is
    `rewrites` less `same_relation`, paired by fact.
    """

    locator: str
    units: str
    facts: int
    without_rewrites: int
    prompts: int
    size: float
    empty: int
    rewrites: Intervals
    same_prompt: Intervals
    same_relation: Intervals
    unrelated: Intervals
    random: Intervals
    margin: Intervals


def wording_fidelity(
    locator: SetLocator, facts: Sequence[Fact], *, seed: int, progress: Progress | None = None
) -> Fidelity:
    """Locate every prompt and rewrite, and every prompt once more, and compare the sets."""
    compared = pair_wordings(facts := check_names(facts), seed)
    what = f"{locator.name} of rewrites"
    located = _locate_wordings(locator.locate, facts, compared, what, progress)

    def rate(arm: str, number: int, pair: WordingPair) -> dict[str, float]:
        second = _partner(located, arm, pair)
        if arm == "random" and second is not None:
            draw = seed + number
            second = layer_matched(second, locator.grid, 1, seed=draw, excluding=False)[0]
        found = {} if second is None else vars(overlap_rates(located[pair.fact][0], second))
        return {name: np.nan if found.get(name) is None else found[name] for name in SET_MEASURES}

    arms = {arm: [rate(arm, *each) for each in enumerate(compared)] for arm in (*ARMS, "random")}
    sets = [each for found in located.values() for each in (found[0], *found[2:])]
    return Fidelity(
        locator=locator.name,
        units=locator.units,
        facts=len(located),
        without_rewrites=len(facts) - len(located),
        prompts=len(sets),
        size=float(np.mean([each.sum() for each in sets])),
        empty=sum(not each.any() for each in sets),
        **_means(arms, compared, len(facts), seed),
    )


@dataclass(frozen=True)
class LayerFidelity(JsonRecord):
    """How well a fact's wordings agree on the layer, beside what other prompts give.

    The arms are those of `Fidelity`; `chance` is the agreement and distance of a peak with a layer
    drawn uniformly, in closed form (its `spearman` is missing). `margin` is `rewrites` less
    `same_relation`, paired by fact: of `distance`, below 0 is better. `peaks` counts the facts
    whose prompt peaks in each layer, `rewrite_peaks` the rewrites; `modal_share` is the share of a
    fact's wordings in the layer most of them peak in (1: all agree). `wrong` prompts were skipped
    because the model does not answer them rightly.
    """

    locator: str
    layers: int
    facts: int
    facts_wrong: int
    prompts: int
    wrong: int
    rewrites: Intervals
    same_prompt: Intervals
    same_relation: Intervals
    unrelated: Intervals
    chance: Intervals
    margin: Intervals
    modal_share: Interval
    peaks: tuple[int, ...]
    rewrite_peaks: tuple[int, ...]


def layer_fidelity(
    profiler: Profiler, facts: Sequence[Fact], *, seed: int, progress: Progress | None = None
) -> LayerFidelity:
    """Trace every prompt and rewrite, and every prompt once more, and compare the layers.

    Raises:
        BadData: if there is no fact, two have one name, none has a rewrite, a prompt cannot be
            traced, or the model answers no prompt rightly.
    """
    compared = pair_wordings(facts := check_names(facts), seed)
    what = f"{profiler.name} of rewrites"
    profiles = _locate_wordings(profiler.profile, facts, compared, what, progress)
    first = [found[0] for found in profiles.values() if found[0] is not None]
    if not first:
        raise BadData(
            f"The model answers none of the {len(profiles)} facts rightly, so that there is "
            "nothing to trace; give facts that it knows."
        )
    layers = len(first[0])
    arms = {
        arm: [
            compare_profiles(profiles[pair.fact][0], _partner(profiles, arm, pair))
            for pair in compared
        ]
        for arm in ARMS
    }
    arms["chance"] = [_chance(profiles[pair.fact][0], layers) for pair in compared]
    rewrites = [each for found in profiles.values() for each in found[2:]]
    modal = []
    for found in profiles.values():
        peaks = [peak(each) for each in (found[0], *found[2:]) if each is not None]
        modal.append(max(np.bincount(peaks)) / len(peaks) if len(peaks) > 1 else np.nan)
    return LayerFidelity(
        locator=profiler.name,
        layers=layers,
        facts=len(first),
        facts_wrong=len(profiles) - len(first),
        prompts=len(profiles) + len(rewrites),
        wrong=sum(each is None for each in rewrites) + len(profiles) - len(first),
        **_means(arms, compared, len(facts), seed),
        modal_share=mean_interval(np.array(modal), seed=seed),
        peaks=tuple(np.bincount([peak(each) for each in first], minlength=layers).tolist()),
        rewrite_peaks=tuple(
            np.bincount(
                [peak(each) for each in rewrites if each is not None], minlength=layers
            ).tolist()
        ),
    )


def peak(profile: Profile) -> int:
    """Find the layer of the largest effect; of equal ones the lowest.

    Raises:
        BadData: if no layer has an effect.
    """
    if np.isnan(profile).all():
        raise BadData("A traced profile has no layer with an effect; widen the window.")
    return int(np.nanargmax(profile))


def compare_profiles(first: Profile | None, second: Profile | None) -> dict[str, float]:
    """Compare two profiles: same peak, distance of peaks, and rank correlation."""
    if first is None or second is None:
        return dict.fromkeys(LAYER_MEASURES, np.nan)
    apart = abs(peak(first) - peak(second))
    rho = rank_correlation(first, second)
    figures = float(apart == 0), float(apart), np.nan if rho is None else rho
    return dict(zip(LAYER_MEASURES, figures, strict=True))


def _chance(profile: Profile | None, layers: int) -> dict[str, float]:
    """Tell what a layer drawn uniformly gives on average."""
    if profile is None:
        return dict.fromkeys(LAYER_MEASURES, np.nan)
    distances = np.abs(np.arange(layers) - peak(profile))
    return {"agreement": 1 / layers, "distance": float(distances.mean()), "spearman": np.nan}
