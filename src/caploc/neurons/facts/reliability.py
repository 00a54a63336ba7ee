"""Is the evidence for knowledge neurons specific to them? Their own test, with controls.

Dai et al. (2022) set the located neurons' activations at the predicting position to 0 (suppress) or
twice their values (enhance) and watch the answer's probability. Here the same is done to random
neurons of the same layers and to those located for another fact, and watched on the fact, on its
rewrites and on unrelated facts. The arms and the specificity gain are ours (the idea of re-running
each method's protocol is that of Huang et al., ICLR 2025).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float64

from caploc.commonality.draws import layer_matched
from caploc.commonality.intervals import Interval, mean_interval
from caploc.commonality.result import Result
from caploc.commonality.specificity import Specificity, specificity
from caploc.designs import generator
from caploc.errors import BadData, BadOption
from caploc.neurons.facts.copies import Copies, Gate
from caploc.neurons.facts.encoding import Encoder
from caploc.neurons.facts.facts import Fact, Prompt, check_names
from caploc.neurons.facts.knowledge_neurons import refine
from caploc.neurons.facts.locators import Locator, related
from caploc.neurons.loading import NeuronModel
from caploc.progress import Progress, Silent

DRAWS = 20
UNRELATED = 5  # other facts' prompts watched for each fact
FACTORS = {"suppress": 0.0, "enhance": 2.0}
PLACES = ("fact", "rewrites", "unrelated")
Sets = Bool[np.ndarray, "sets neurons"]
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
class Located(Result):
    """The neurons located for each fact, a row for each; `refined` as in `locate_facts`."""

    locator: str
    refined: bool
    sets: Bool[np.ndarray, "facts neurons"]


@dataclass(frozen=True)
class Reliability(Result):
    """Whether located neurons do what their method says of them.

    `size` is the mean number of neurons of a fact, `intact` the answer's mean probability on the
    facts' prompts; `empty` facts, for which no neurons were located, are left out. `conditions`
    says what holds: each is a statement about 95 % intervals of means over facts (see
    `conditions_of`), and the method is `reliable` if all of them hold.
    """

    locator: str
    refined: bool
    facts: int
    empty: int
    size: float
    draws: int
    intact: Interval
    suppress: Intervention
    enhance: Intervention
    conditions: dict[str, bool]

    @property
    def reliable(self) -> bool:
        """Whether every condition holds."""
        return all(self.conditions.values())

    def as_dict(self) -> dict[str, object]:
        """As files hold it, the verdict included."""
        return {**super().as_dict(), "reliable": self.reliable}


def locate_facts(
    locator: Locator,
    facts: Sequence[Fact],
    *,
    refined: bool = False,
    progress: Progress | None = None,
) -> Located:
    """Locate the neurons of each fact's prompt, or of its prompt and rewrites together.

    Raises:
        BadData: if there is no fact, two have one name, one cannot be located, or (`refined`) one
            has fewer than two rewrites.
    """
    facts, shown = check_names(tuple(facts)), progress or Silent()
    shown.start(locator.name, len(facts))
    found = []
    for fact in facts:
        prompts = [fact.prompt, *(fact.rewrites if refined else ())]
        found.append(np.stack([locator.locate(prompt) for prompt in prompts]))
        shown.advance(1, len(prompts))
    sets = refine(found).sets if refined else np.concatenate(found)
    return Located(locator.name, refined, sets)


def reliability(
    loaded: NeuronModel,
    facts: Sequence[Fact],
    located: Located,
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
    facts, shown = check_names(tuple(facts)), progress or Silent()
    if located.sets.shape != (len(facts), loaded.grid.size):
        raise BadOption(
            f"The located sets have shape {located.sets.shape}; {len(facts)} facts in "
            f"{loaded.grid.size:,} neurons need ({len(facts)}, {loaded.grid.size})."
        )
    kept = [number for number in range(len(facts)) if located.sets[number].any()]
    if len(kept) < 2:
        raise BadData(
            f"{located.locator} located neurons for {len(kept)} of {len(facts)} facts; two are "
            "needed to hold one against another."
        )
    sets = located.sets[kept]
    changes, intact = _changes(loaded, [facts[n] for n in kept], sets, (draws, seed), shown)
    found = {name: _intervention(name, changes, seed) for name in FACTORS}
    return Reliability(
        locator=located.locator,
        refined=located.refined,
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
    """What must hold of the intervals, for either intervention and on fact and rewrites alike.

    `works`: the located neurons change the probability the right way, beyond doubt; `beats_random`:
    and by more than random neurons; `beats_other_fact`: and by more than another fact's (intervals
    apart); `spares_unrelated`: they change it less on unrelated facts than on the fact.
    """
    signs = {"suppress": -1.0, "enhance": 1.0}
    conditions: dict[str, bool] = {}
    for name, sign in signs.items():
        for place in ("fact", "rewrites"):
            watched = getattr(found[name], place)
            where = f"{name}, {place}"
            conditions[f"{where}: works"] = _beyond(watched.located, sign) > 0
            conditions[f"{where}: beats_random"] = watched.gain.excess.low > 0
            other = _within(watched.other_fact, sign)
            conditions[f"{where}: beats_other_fact"] = _beyond(watched.located, sign) > other
        spared = _within(found[name].unrelated.located, sign)
        beyond = _beyond(found[name].fact.located, sign)
        conditions[f"{name}: spares_unrelated"] = spared < beyond
    return conditions


def _beyond(interval: Interval, sign: float) -> float:
    """The least effect that the interval allows; NaN (of which nothing holds) if missing."""
    return min(sign * interval.low, sign * interval.high)


def _within(interval: Interval, sign: float) -> float:
    """The largest effect that the interval allows."""
    return max(sign * interval.low, sign * interval.high)


def _changes(
    loaded: NeuronModel,
    facts: Sequence[Fact],
    located: Bool[np.ndarray, "facts neurons"],
    drawing: tuple[int, int],
    shown: Progress,
) -> tuple[dict[tuple[str, str], Changes], Float64[np.ndarray, " facts"]]:
    """The relative change for each intervention and place, and P of each fact's own prompt.

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
        prompts = {
            "fact": [fact.prompt],
            "rewrites": list(fact.rewrites),
            "unrelated": _unrelated(facts, number, random),
        }
        for place, asked in prompts.items():
            found = [changed(loaded, encoder, prompt, sets) for prompt in asked]
            if place == "fact":
                intact.append(found[0][0])
            for name, row in _averaged([each for _, each in found], len(sets)).items():
                rows[name, place].append(row)
        shown.advance(1, sum(map(len, prompts.values())))
    return {key: np.stack(each) for key, each in rows.items()}, np.array(intact)


def _averaged(
    found: Sequence[dict[str, Float64[np.ndarray, " sets"]]], sets: int
) -> dict[str, Float64[np.ndarray, " sets"]]:
    """The mean change over prompts; NaN where there is none."""
    if not found:
        return {name: np.full(sets, np.nan) for name in FACTORS}
    return {name: np.mean([each[name] for each in found], axis=0) for name in FACTORS}


def _unrelated(facts: Sequence[Fact], number: int, random: np.random.Generator) -> list[Prompt]:
    """Prompts of facts of other relations, drawn at random."""
    pool = [other for other in facts if related(facts[number], other) is False]
    order = random.permutation(len(pool))[:UNRELATED]
    return [pool[place].prompt for place in order]


def changed(
    loaded: NeuronModel, encoder: Encoder, prompt: Prompt, sets: Sets
) -> tuple[float, dict[str, Float64[np.ndarray, " sets"]]]:
    """The answer's probability, and its relative change with each set suppressed or enhanced."""
    copies = Copies(loaded, encoder.encode(prompt).first())
    probabilities = scaled_probabilities(copies, sets, list(FACTORS.values()))
    intact = probabilities[0]
    each = probabilities[1:].reshape(len(FACTORS), len(sets)) / intact - 1
    return float(intact), dict(zip(FACTORS, each, strict=True))


@torch.no_grad()
def scaled_probabilities(
    copies: Copies, sets: Sets, factors: Sequence[float]
) -> Float64[np.ndarray, " rows"]:
    """P of the answer's first token: intact, then for each factor with each set scaled by it."""
    number = 1 + len(sets) * len(factors)
    gates = list(_gates(copies, sets, factors, number))
    likely = copies.log_probabilities(number, gates)[:, 0]
    probabilities: Float64[np.ndarray, " rows"] = likely.double().exp().cpu().numpy()
    return probabilities


def _gates(copies: Copies, sets: Sets, factors: Sequence[float], number: int) -> Iterator[Gate]:
    """A gate for each layer in which some set has neurons."""
    for layer, columns in enumerate(copies.loaded.grid.layer_slices):
        chosen = sets[:, columns]
        if not chosen.any():
            continue
        scaled = [np.where(chosen, factor, 1.0) for factor in factors]
        values = np.concatenate([np.ones((1, chosen.shape[1])), *scaled]).astype(np.float32)
        on_device = torch.from_numpy(values)[:, None].to(copies.loaded.model.device)
        yield Gate(layer, slice(0, number), on_device)


def _intervention(name: str, changes: dict[tuple[str, str], Changes], seed: int) -> Intervention:
    sign = -1.0 if FACTORS[name] < 1 else 1.0
    return Intervention(
        factor=FACTORS[name],
        **{place: _watched(changes[name, place], sign, seed) for place in PLACES},
    )


def _watched(changes: Changes, sign: float, seed: int) -> Watched:
    """Columns: the located set, the other fact's, then the random ones."""
    located, other, random = changes[:, 0], changes[:, 1], changes[:, 2:]
    return Watched(
        located=mean_interval(located, seed=seed),
        random=mean_interval(random.mean(axis=1), seed=seed),
        other_fact=mean_interval(other, seed=seed),
        gain=specificity(sign * located, sign * random.T, seed=seed),
    )
