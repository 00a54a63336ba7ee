"""Knowledge neurons (Dai et al. 2022): the neurons to which an answer owes its probability.

The score of neuron i of layer l for a prompt x and the first token y of its answer is the
integrated gradient of y's probability over the layer's activations a_l at the predicting position,
from 0 to their values, the other layers as they are:

    Attr_li = a_li / m  sum over k of dP_y(alpha_k a_l) / da_li

with m = 20 points, in the middles of equal parts (ours; Dai et al.: k / m for k = 0..m-1, here
`points="left"`). A layer's scores add up to P(a_l) - P(0).

*Reliability.* Dai et al. set the located neurons' activations at the predicting position to 0
(suppress) or twice their values (enhance) and watch the answer's probability. Here the same is done
to random neurons of the same layers and to those located for another fact, and watched on the fact,
on its rewrites and on unrelated facts. The arms and the specificity gain are ours (the idea of
re-running each method's protocol is that of Huang et al., ICLR 2025).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float64

from caploc.designs import generator
from caploc.engine.encoding import Span
from caploc.errors import BadData, BadOption
from caploc.lookup import pick
from caploc.neurons.attribution import POINTS, Attribution, Gates
from caploc.neurons.batches import Batch, gold_logprobs
from caploc.neurons.cutting import NeuronModel
from caploc.neurons.facts import Encoded, Encoder, Fact, FactPrompt, check_names
from caploc.neurons.fidelity import SetLocator, are_related
from caploc.neurons.sites import Chosen, NeuronGrid
from caploc.progress import Progress, Silent
from caploc.stats.chance import Specificity, layer_matched, specificity
from caploc.stats.intervals import Interval, JsonRecord, mean_interval

STEPS = 20
SHARE = 0.2  # of the largest score, to be chosen
DRAWS = 20
WATCHED = 5  # other facts' prompts watched for each fact
FACTORS = {"suppress": 0.0, "enhance": 2.0}
SIGNS = {"suppress": -1.0, "enhance": 1.0}
PLACES = ("fact", "rewrites", "unrelated")
Sets = Bool[np.ndarray, "sets neurons"]
Changes = Float64[np.ndarray, "facts sets"]


@dataclass(frozen=True)
class KnowledgeNeurons:
    """The locator: neurons that score at least `share` of the prompt's largest score.

    `share` is 0.2 in Dai et al.'s program; 0.3 is in use too.

    Raises:
        UnknownName: if there are no such points.
        BadOption: for a share outside (0, 1], or fewer than 1 step.
    """

    loaded: NeuronModel
    steps: int = STEPS
    points: str = "midpoint"
    share: float = SHARE

    name = "knowledge neurons"
    units = "neurons"

    def __post_init__(self) -> None:
        pick(POINTS, self.points, "rule for the points of an integral")
        if not 0 < self.share <= 1 or self.steps < 1:
            raise BadOption(
                f"The share of the largest score must be above 0 and at most 1, and the steps 1 or "
                f"more; got {self.share:g} and {self.steps}."
            )

    @property
    def grid(self) -> NeuronGrid:
        return self.loaded.grid

    @cached_property
    def encoder(self) -> Encoder:
        return Encoder(self.loaded)

    def score(self, prompt: FactPrompt) -> Float64[np.ndarray, " neurons"]:
        """Attribute the probability of the answer's first token to every neuron."""
        asked = Attribution("integrated", "probability", "last", self.steps, self.points)
        batch = first_token(self.loaded, self.encoder.encode(prompt))
        return asked.scores(self.loaded, batch)[0].cpu().numpy()

    def locate(self, prompt: FactPrompt) -> Chosen:
        """Choose the neurons of a prompt; none where no score is above 0."""
        scores = self.score(prompt)
        largest = scores.max()
        chosen: Chosen = (scores >= self.share * largest) & (largest > 0)
        return chosen


def first_token(loaded: NeuronModel, encoded: Encoded) -> Batch:
    """Make a batch of one prompt, of whose answer only the first token is to come."""
    one = encoded.first()
    return Batch.of([Span(one.tokens, one.answer)], loaded.model.device)


@torch.no_grad()
def scaled_probabilities(
    loaded: NeuronModel, encoded: Encoded, sets: Sets, factors: Sequence[float]
) -> Float64[np.ndarray, " rows"]:
    """Compute P of the answer's first token: intact, then for each factor with each set scaled.

    Neurons are scaled where that token is predicted, and nowhere else.
    """
    scaled = [np.where(sets, factor, 1.0) for factor in factors]
    values = np.concatenate([np.ones((1, sets.shape[1])), *scaled]).astype(np.float32)
    batch = first_token(loaded, encoded).repeated(len(values))
    on_device = torch.from_numpy(values).to(batch.tokens.device)
    gates = Gates(loaded.projections, on_device, positions=batch.last_of_prompt)
    with gates.applied():
        likely = gold_logprobs(loaded.model, batch)
    probabilities: Float64[np.ndarray, " rows"] = likely.double().exp().cpu().numpy()
    return probabilities


@dataclass(frozen=True)
class Watched(JsonRecord):
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
class Intervention(JsonRecord):
    """One intervention, on the facts themselves, on their rewrites and on unrelated facts."""

    factor: float
    fact: Watched
    rewrites: Watched
    unrelated: Watched


@dataclass(frozen=True)
class Reliability(JsonRecord):
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


def intervention_reliability(
    loaded: NeuronModel,
    facts: Sequence[Fact],
    located: Bool[np.ndarray, "_ _"],
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
    located: Bool[np.ndarray, "facts neurons"],
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
        unrelated = [pool[place].prompt for place in random.permutation(len(pool))[:WATCHED]]
        prompts = (fact.prompt,), fact.rewrites, unrelated
        for place, asked in zip(PLACES, prompts, strict=True):
            encoded = [encoder.encode(prompt) for prompt in asked]
            likely = [
                scaled_probabilities(loaded, each, sets, list(FACTORS.values())) for each in encoded
            ]
            if place == "fact":
                intact.append(likely[0][0])
            changes = [each[1:].reshape(len(FACTORS), -1) / each[0] - 1 for each in likely]
            mean = (
                np.mean(changes, axis=0) if changes else np.full((len(FACTORS), len(sets)), np.nan)
            )
            for name, row in zip(FACTORS, mean, strict=True):
                rows[name, place].append(row)
        shown.advance(1, sum(map(len, prompts)))
    return {key: np.stack(each) for key, each in rows.items()}, np.array(intact)


def _watched(changes: Changes, sign: float, seed: int) -> Watched:
    """Sum up columns: the located set, the other fact's, then the random ones."""
    located, other, random = changes[:, 0], changes[:, 1], changes[:, 2:]
    return Watched(
        located=mean_interval(located, seed=seed),
        random=mean_interval(random.mean(axis=1), seed=seed),
        other_fact=mean_interval(other, seed=seed),
        gain=specificity(sign * located, sign * random.T, seed=seed),
    )
