"""Is a located layer faithful to the fact? However a fact is worded, the same layer must come out.

What `fidelity` asks of sets, asked of a profile of effects over layers: do a fact's prompt and its
rewrites peak in one layer, how far apart do they peak, and are the profiles alike? The measures and
the margin are ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from scipy import stats

from caploc.commonality.intervals import Interval, mean_interval
from caploc.commonality.result import Result
from caploc.errors import BadData
from caploc.neurons.facts.facts import Fact, check_names
from caploc.neurons.facts.locators import Pair, Profiler, by_fact, pairs
from caploc.progress import Progress, Silent

Profile = Float64[np.ndarray, " layers"]
MEASURES = ("agreement", "distance", "spearman")


@dataclass(frozen=True)
class Likeness(Result):
    """Means over facts: do two profiles peak in one layer (`agreement`, a share), how many layers
    lie between their peaks (`distance`), and how alike are they (`spearman`, missing where one of
    them is flat).
    """

    agreement: Interval
    distance: Interval
    spearman: Interval


@dataclass(frozen=True)
class LayerFidelity(Result):
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
    rewrites: Likeness
    same_prompt: Likeness
    same_relation: Likeness
    unrelated: Likeness
    chance: Likeness
    margin: Likeness
    modal_share: Interval
    peaks: tuple[int, ...]
    rewrite_peaks: tuple[int, ...]


def layer_fidelity(
    profiler: Profiler, facts: Sequence[Fact], *, seed: int, progress: Progress | None = None
) -> LayerFidelity:
    """Trace every prompt and rewrite, and every prompt once more, and compare.

    Raises:
        BadData: if there is no fact, two have one name, none has a rewrite, a prompt cannot be
            traced, or the model answers no prompt rightly.
    """
    facts, shown = check_names(tuple(facts)), progress or Silent()
    compared = pairs(facts, seed)
    used = sorted({pair.fact for pair in compared})
    shown.start(f"{profiler.name} of rewrites", sum(2 + len(facts[n].rewrites) for n in used))
    profiles = {number: _profiles(profiler, facts[number], shown) for number in used}
    first = [found[0] for found in profiles.values() if found[0] is not None]
    if not first:
        raise BadData(
            f"The model answers none of the {len(used)} facts rightly, so that there is nothing to "
            "trace; give facts that it knows."
        )
    means = _means(profiles, compared, len(facts), len(first[0]))
    rewrites = [each for found in profiles.values() for each in found[2:]]
    return LayerFidelity(
        locator=profiler.name,
        layers=len(first[0]),
        facts=len(first),
        facts_wrong=len(used) - len(first),
        prompts=len(used) + len(rewrites),
        wrong=sum(each is None for each in rewrites) + len(used) - len(first),
        **{name: _likeness(values, seed) for name, values in means.items()},
        modal_share=mean_interval(
            np.array([_modal(each) for each in profiles.values()]), seed=seed
        ),
        peaks=_histogram(first, len(first[0])),
        rewrite_peaks=_histogram([each for each in rewrites if each is not None], len(first[0])),
    )


def peak(profile: Profile) -> int:
    """The layer of the largest effect; of equal ones the lowest.

    Raises:
        BadData: if no layer has an effect.
    """
    if np.isnan(profile).all():
        raise BadData("A traced profile has no layer with an effect; widen the window.")
    return int(np.nanargmax(profile))


def compare(first: Profile | None, second: Profile | None) -> dict[str, float]:
    """Whether two profiles peak in one layer, how far apart, and their rank correlation."""
    if first is None or second is None:
        return dict.fromkeys(MEASURES, np.nan)
    apart = abs(peak(first) - peak(second))
    return {
        "agreement": float(apart == 0),
        "distance": float(apart),
        "spearman": spearman(first, second),
    }


def spearman(first: Profile, second: Profile) -> float:
    """The rank correlation of what both have; NaN where one is constant there."""
    both = ~np.isnan(first) & ~np.isnan(second)
    one, other = first[both], second[both]
    if len(one) < 2 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return np.nan
    return float(stats.spearmanr(one, other).statistic)


def _profiles(profiler: Profiler, fact: Fact, shown: Progress) -> list[Profile | None]:
    """The profiles of the prompt, of the prompt again, and of each rewrite."""
    found = []
    for prompt in (fact.prompt, fact.prompt, *fact.rewrites):
        found.append(profiler.profile(prompt))
        shown.advance(1, 1)
    return found


def _means(
    profiles: dict[int, list[Profile | None]], compared: Sequence[Pair], facts: int, layers: int
) -> dict[str, dict[str, Float64[np.ndarray, " facts"]]]:
    """For each arm, each fact's mean of each measure."""

    def rewrite(place: tuple[int, int] | None) -> Profile | None:
        return None if place is None else profiles[place[0]][2 + place[1]]

    others = {
        "rewrites": [rewrite((pair.fact, pair.rewrite)) for pair in compared],
        "same_prompt": [profiles[pair.fact][1] for pair in compared],
        "same_relation": [rewrite(pair.related) for pair in compared],
        "unrelated": [rewrite(pair.unrelated) for pair in compared],
    }
    own = [profiles[pair.fact][0] for pair in compared]
    found = {
        name: [compare(first, second) for first, second in zip(own, each, strict=True)]
        for name, each in others.items()
    }
    found["chance"] = [_chance(first, layers) for first in own]
    owners = [pair.fact for pair in compared]
    means = {
        name: {
            measure: by_fact(owners, [each[measure] for each in rows], facts)
            for measure in MEASURES
        }
        for name, rows in found.items()
    }
    means["margin"] = {
        measure: means["rewrites"][measure] - means["same_relation"][measure]
        for measure in MEASURES
    }
    return means


def _chance(profile: Profile | None, layers: int) -> dict[str, float]:
    """What a layer drawn uniformly gives on average."""
    if profile is None:
        return dict.fromkeys(MEASURES, np.nan)
    distances = np.abs(np.arange(layers) - peak(profile))
    return {"agreement": 1 / layers, "distance": float(distances.mean()), "spearman": np.nan}


def _modal(found: Sequence[Profile | None]) -> float:
    """The share of a fact's wordings in their commonest layer; NaN with fewer than two."""
    peaks = [peak(each) for each in (found[0], *found[2:]) if each is not None]
    return max(np.bincount(peaks)) / len(peaks) if len(peaks) > 1 else np.nan


def _histogram(profiles: Sequence[Profile], layers: int) -> tuple[int, ...]:
    counts = np.bincount([peak(each) for each in profiles], minlength=layers)
    return tuple(int(count) for count in counts)


def _likeness(values: dict[str, Float64[np.ndarray, " facts"]], seed: int) -> Likeness:
    return Likeness(**{name: mean_interval(each, seed=seed) for name, each in values.items()})
