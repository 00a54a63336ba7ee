"""Is the evidence for knowledge neurons specific to them? Their own test, with controls.

Dai et al. (2022) set the located neurons' activations at the predicting position to 0 (suppress) or
twice their values (enhance) and watch the answer's probability. Here the same is done to random
neurons of the same layers and to those located for another fact, and watched on the fact, on its
rewrites and on unrelated facts. The arms and the specificity gain are ours (the idea of re-running
each method's protocol is that of Huang et al., ICLR 2025).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64

from caploc.commonality import (
    Interval,
    Result,
    Specificity,
    layer_matched,
    mean_interval,
    specificity,
)
from caploc.designs import generator
from caploc.errors import BadData, BadOption
from caploc.neurons.facts.fidelity import SetLocator, are_related
from caploc.neurons.facts.knowledge_neurons import (
    KnowledgeNeurons,
    PromptCopies,
    Sets,
    scaled_probabilities,
)
from caploc.neurons.facts.prompts import Encoder, Fact, FactPrompt, check_names
from caploc.neurons.proof import NeuronModel
from caploc.progress import Progress, Silent

DRAWS = 20
UNRELATED = 5  # other facts' prompts watched for each fact
FACTORS = {"suppress": 0.0, "enhance": 2.0}
SIGNS = {"suppress": -1.0, "enhance": 1.0}
PLACES = ("fact", "rewrites", "unrelated")
Changes = Float64[np.ndarray, "facts sets"]


@dataclass(frozen=True)
class Watched(Result):
    """What an intervention does to the gold answer's probability on one kind of prompt.

    Relative changes, `(P' - P) / P`, mean over facts: of the located neurons, of random ones (20
    sets a fact, averaged) and of those located for another fact. `gain` holds the located effect
    against the random ones, an effect being a fall where neurons are suppressed and a rise where
    they are enhanced.
    """

    located: Interval
    random: Interval
    other_fact: Interval
    gain: Specificity


@dataclass(frozen=True)
class Intervention(Result):
    """One intervention, on the facts themselves, on their rewrites and on unrelated facts."""

    factor: float
    fact: Watched
    rewrites: Watched
    unrelated: Watched


@dataclass(frozen=True)
class Reliability(Result):
    """Whether located neurons do what their method says of them.

    `size` is the mean number of neurons of a fact, `intact` the answer's mean probability on the
    facts' prompts; `empty` facts, for which no neurons were located, are left out. `conditions`
    says what holds: each is a statement about 95 % intervals of means over facts (see
    `conditions_of`), and the method is `reliable` if all of them hold.
    """

    locator: str
    facts: int
    empty: int
    size: float
    draws: int
    intact: Interval
    suppress: Intervention
    enhance: Intervention
    conditions: dict[str, bool]

    def as_dict(self) -> dict[str, object]:
        return super().as_dict() | {"reliable": all(self.conditions.values())}


def locate_facts(
    locator: SetLocator, facts: Sequence[Fact], *, progress: Progress | None = None
) -> Bool[np.ndarray, "facts units"]:
    """Locate the neurons of each fact's prompt, a row for each."""
    facts, shown = check_names(facts), progress or Silent()
    shown.start(locator.name, len(facts))
    found = []
    for fact in facts:
        found.append(locator.locate(fact.prompt))
        shown.advance(1, 1)
    return np.stack(found)


def reliability(
    loaded: NeuronModel,
    facts: Sequence[Fact],
    located: Sets,
    *,
    draws: int = DRAWS,
    seed: int,
    progress: Progress | None = None,
) -> Reliability:
    """Intervene on each fact's neurons, on random ones and on another fact's.

    The probability is that of the first token of the answer. Where it is close to 1 already, as in
    `intact`, nothing can be enhanced.

    Raises:
        BadOption: if the sets are not of these facts and of this model's neurons, or there are
            fewer than 5 draws.
        BadData: if fewer than two facts have neurons located.
    """
    facts = check_names(facts)
    if located.shape != (len(facts), loaded.grid.size):
        raise BadOption(
            f"The located sets have shape {located.shape}; {len(facts)} facts in "
            f"{loaded.grid.size:,} neurons need ({len(facts)}, {loaded.grid.size})."
        )
    kept = [number for number in range(len(facts)) if located[number].any()]
    if len(kept) < 2:
        raise BadData(
            f"{KnowledgeNeurons.name} are located for {len(kept)} of {len(facts)} facts; two are "
            "needed to hold one against another."
        )
    sets = located[kept]
    used = [facts[number] for number in kept]
    changes, intact = _changes(loaded, used, sets, (draws, seed), progress or Silent())
    found = {
        name: Intervention(
            factor=factor,
            **{place: _watched(changes[name, place], SIGNS[name], seed) for place in PLACES},
        )
        for name, factor in FACTORS.items()
    }
    return Reliability(
        locator=KnowledgeNeurons.name,
        facts=len(kept),
        empty=len(facts) - len(kept),
        size=float(sets.sum(axis=1).mean()),
        draws=draws,
        intact=mean_interval(intact, seed=seed),
        suppress=found["suppress"],
        enhance=found["enhance"],
        conditions=conditions_of(found),
    )


def conditions_of(found: dict[str, Intervention]) -> dict[str, bool]:
    """Say what holds of the intervals, for either intervention and on fact and rewrites alike.

    `works`: the located neurons change the probability the right way, beyond doubt; `beats_random`:
    and by more than random neurons; `beats_other_fact`: and by more than another fact's (intervals
    apart); `spares_unrelated`: they change it less on unrelated facts than on the fact.
    """
    conditions: dict[str, bool] = {}
    for name, sign in SIGNS.items():
        for place in ("fact", "rewrites"):
            watched = getattr(found[name], place)
            least, _ = _effects(watched.located, sign)
            where = f"{name}, {place}"
            conditions[f"{where}: works"] = least > 0
            conditions[f"{where}: beats_random"] = watched.gain.excess.low > 0
            conditions[f"{where}: beats_other_fact"] = least > _effects(watched.other_fact, sign)[1]
        _, spared = _effects(found[name].unrelated.located, sign)
        least, _ = _effects(found[name].fact.located, sign)
        conditions[f"{name}: spares_unrelated"] = spared < least
    return conditions


def _effects(interval: Interval, sign: float) -> tuple[float, float]:
    """Take the least and largest effect of an interval; NaN (of which nothing holds) if missing."""
    ends = sign * interval.low, sign * interval.high
    return min(ends), max(ends)


def _changes(
    loaded: NeuronModel,
    facts: Sequence[Fact],
    located: Sets,
    drawing: tuple[int, int],
    shown: Progress,
) -> tuple[dict[tuple[str, str], Changes], Float64[np.ndarray, " facts"]]:
    """Measure the relative change for each intervention and place, and P of each fact's prompt.

    Columns are the located set, the other fact's, then the random ones; `drawing` says how many of
    these, and their seed.
    """
    draws, seed = drawing
    random, encoder = generator(seed), Encoder(loaded)
    shown.start("interventions on neurons", len(facts))
    rows: dict[tuple[str, str], list[Float64[np.ndarray, " sets"]]] = {
        (name, place): [] for name in FACTORS for place in PLACES
    }
    intact = []
    for number, fact in enumerate(facts):
        others = [other for other in range(len(facts)) if other != number]
        other = others[int(random.integers(len(others)))]
        drawn = layer_matched(located[number], loaded.grid, draws, seed=seed + number)
        sets = np.stack([located[number], located[other], *drawn])
        pool = [each for each in facts if are_related(fact, each) is False]
        unrelated = [pool[place].prompt for place in random.permutation(len(pool))[:UNRELATED]]
        prompts = (fact.prompt,), fact.rewrites, unrelated
        for place, asked in zip(PLACES, prompts, strict=True):
            found = [relative_changes(loaded, encoder, prompt, sets) for prompt in asked]
            if place == "fact":
                intact.append(found[0][0])
            for name in FACTORS:
                missing = np.full(len(sets), np.nan)
                each = np.mean([c[name] for _, c in found], axis=0) if found else missing
                rows[name, place].append(each)
        shown.advance(1, sum(map(len, prompts)))
    return {key: np.stack(each) for key, each in rows.items()}, np.array(intact)


def relative_changes(
    loaded: NeuronModel, encoder: Encoder, prompt: FactPrompt, sets: Sets
) -> tuple[float, dict[str, Float64[np.ndarray, " sets"]]]:
    """Measure P of the answer, and its relative change with each set suppressed or enhanced."""
    copies = PromptCopies(loaded, encoder.encode(prompt))
    probabilities = scaled_probabilities(copies, sets, list(FACTORS.values()))
    intact = probabilities[0]
    each = probabilities[1:].reshape(len(FACTORS), len(sets)) / intact - 1
    return float(intact), dict(zip(FACTORS, each, strict=True))


def _watched(changes: Changes, sign: float, seed: int) -> Watched:
    """Sum up columns: the located set, the other fact's, then the random ones."""
    located, other, random = changes[:, 0], changes[:, 1], changes[:, 2:]
    return Watched(
        located=mean_interval(located, seed=seed),
        random=mean_interval(random.mean(axis=1), seed=seed),
        other_fact=mean_interval(other, seed=seed),
        gain=specificity(sign * located, sign * random.T, seed=seed),
    )
