"""Is the evidence for a located fact specific to it? Each method's own test, with controls.

*Knowledge neurons.* Dai et al. (2022) set the located neurons' activations at the predicting
position to 0 (suppress) or twice their values (enhance) and watch the answer's probability. Here
the same is done to random neurons of the same layers and to those located for another fact, and
watched on the fact, on its rewrites and on unrelated facts. The arms and the specificity gain are
ours (the idea of re-running each method's protocol is that of Huang et al., ICLR 2025).

*Edits.* Does an edit work best where causal tracing points? Every layer is edited, not only that
one: for each fact and layer the rank-one edit of Meng et al. (2022) is made, and judged by their
measures: *efficacy*, P(new) > P(old) on the prompt; *generalization*, the same share of rewrites;
*specificity*, the share of neighbours whose own answer stays likelier than the new one; *score*,
their harmonic mean. That tracing does not tell where editing works is known from Hase et al.
(2023). Probabilities of answers of several tokens are geometric means over the tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64
from scipy import stats

from caploc.designs import generator
from caploc.errors import BadData, BadOption
from caploc.neurons.facts.editing import Editor, edited
from caploc.neurons.facts.fidelity import (
    Profile,
    Profiler,
    SetLocator,
    are_related,
    peak,
)
from caploc.neurons.facts.knowledge_neurons import (
    KnowledgeNeurons,
    Sets,
    scaled_probabilities,
)
from caploc.neurons.facts.prompts import Encoder, Fact, FactAnswers, FactPrompt, check_names
from caploc.neurons.proof import NeuronModel
from caploc.progress import Progress, Silent
from caploc.stats.chance import Specificity, layer_matched, specificity
from caploc.stats.intervals import Interval, JsonRecord, mean_interval
from caploc.stats.sets import rank_correlation

DRAWS = 20
UNRELATED = 5  # other facts' prompts watched for each fact
FACTORS = {"suppress": 0.0, "enhance": 2.0}
SIGNS = {"suppress": -1.0, "enhance": 1.0}
PLACES = ("fact", "rewrites", "unrelated")
MEASURES = ("efficacy", "generalization", "specificity", "score", "rise")
Changes = Float64[np.ndarray, "facts sets"]
Table = Float64[np.ndarray, "facts layers"]


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
    encoded = encoder.encode(prompt)
    probabilities = scaled_probabilities(loaded, encoded, sets, list(FACTORS.values()))
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


@dataclass(frozen=True)
class EditedLayer(JsonRecord):
    """What editing one layer does, mean over facts.

    `score` is the harmonic mean of a fact's three measures, averaged; `rise` the mean rise of
    `P(new) - P(old)` on prompt and rewrites. `with_effect` is the correlation (Pearson's) over
    facts of the score with the layer's IE, as Hase et al. (2023) ask; None where one is constant.
    """

    layer: int
    efficacy: Interval
    generalization: Interval
    specificity: Interval
    score: Interval
    rise: Interval
    effect: Interval
    with_effect: float | None


@dataclass(frozen=True)
class EditReliability(JsonRecord):
    """Whether edits succeed where tracing points.

    `correlation` is Spearman's between score and IE over a fact's layers, mean over facts (missing
    where a fact's layers all score alike), `rise_correlation` the same for the rise; `hit` the
    share of facts whose traced layer scores as well as the best, `hit_by_chance` that of a layer
    drawn uniformly. `excess` is the score at the traced layer less the mean of the other layers,
    `gain` the rise at the traced layer less the mean of the other layers', in their standard
    deviations (the other layers being every control there is; missing where they all rise alike).
    `skipped` facts lack a subject, a false answer, a rewrite or a neighbour, or the model answers
    them wrongly.
    """

    locator: str
    facts: int
    skipped: int
    layers: tuple[EditedLayer, ...]
    correlation: Interval
    rise_correlation: Interval
    hit: Interval
    hit_by_chance: Interval
    excess: Interval
    gain: Interval
    traced: tuple[int, ...]
    scores: Table
    effects: Table


def edit_reliability(
    loaded: NeuronModel,
    facts: Sequence[Fact],
    *,
    editor: Editor,
    profiler: Profiler,
    seed: int,
    progress: Progress | None = None,
) -> EditReliability:
    """Edit each fact at each of the editor's layers and hold success against the traced effects.

    Raises:
        BadData: if no fact can be used, or one does not fit the model's window.
    """
    facts, shown = check_names(facts), progress or Silent()
    layers, asker = sorted(editor.covariances), FactAnswers(loaded)
    shown.start("edits of facts", len(facts))
    profiles, tables = [], []
    for fact in facts:
        profile = profiler.profile(fact.prompt) if _can_be_edited(fact) else None
        if profile is not None:
            profiles.append(profile[layers])
            tables.append(_edit_all_layers(loaded, asker, editor, fact))
        shown.advance(1, len(layers))
    if not profiles:
        raise BadData(
            f"None of the {len(facts)} facts can be edited: each needs a subject, a false answer, "
            "a rewrite and a neighbour, and an answer that the model gives."
        )
    measured = dict(zip(MEASURES, np.array(tables).transpose(2, 0, 1), strict=True))
    return _summarize(profiler.name, layers, np.array(profiles), measured, len(facts), seed)


def _can_be_edited(fact: Fact) -> bool:
    """Ask whether a fact has everything that an edit of it is judged by."""
    prompt = fact.prompt
    given = prompt.subject is not None and prompt.other is not None
    probes = all(each.other is not None for each in (*fact.rewrites, *fact.neighbours))
    return bool(given and probes and fact.rewrites and fact.neighbours)


def _edit_all_layers(
    loaded: NeuronModel, asker: FactAnswers, editor: Editor, fact: Fact
) -> Float64[np.ndarray, "layers measures"]:
    """Measure the fact after the edit of each layer."""
    asked = [fact.prompt, *fact.rewrites]
    before = _leads(asker, asked)
    rows = []
    for edit in editor.edits(fact.prompt):
        with edited(loaded, edit):
            own = _leads(asker, asked)
            # of a neighbour the other answer is the fact's false one
            spared = _leads(asker, fact.neighbours)[:, 0] < 0
        won = own[:, 0] > 0
        shares = (float(won[0]), float(won[1:].mean()), float(spared.mean()))
        score = float(stats.hmean(shares)) if min(shares) > 0 else 0.0
        rows.append((*shares, score, float((own[:, 1] - before[:, 1]).mean())))
    return np.array(rows)


def _leads(asker: FactAnswers, prompts: Sequence[FactPrompt]) -> Float64[np.ndarray, "prompts two"]:
    """Tell how far the other answer is ahead of the target: in log-probability, in probability."""
    others = asker.log_probabilities([(each, str(each.other)) for each in prompts])
    targets = asker.log_probabilities([(each, each.target) for each in prompts])
    return np.stack([others - targets, np.exp(others) - np.exp(targets)], axis=1)


def _summarize(
    name: str, layers: list[int], effects: Table, measured: dict[str, Table], facts: int, seed: int
) -> EditReliability:
    def interval(values: Sequence[float] | Float64[np.ndarray, " facts"]) -> Interval:
        return mean_interval(np.asarray(values, dtype=float), seed=seed)

    scores, rises = measured["score"], measured["rise"]
    traced = [peak(each) for each in effects]
    best = scores == scores.max(axis=1, keepdims=True)
    return EditReliability(
        locator=name,
        facts=len(effects),
        skipped=facts - len(effects),
        layers=tuple(
            EditedLayer(
                layer=layer,
                **{key: interval(table[:, place]) for key, table in measured.items()},
                effect=interval(effects[:, place]),
                with_effect=_pearson(scores[:, place], effects[:, place]),
            )
            for place, layer in enumerate(layers)
        ),
        correlation=interval(list(map(_rho, scores, effects))),
        rise_correlation=interval(list(map(_rho, rises, effects))),
        hit=interval([float(row[place]) for row, place in zip(best, traced, strict=True)]),
        hit_by_chance=interval(best.mean(axis=1)),
        excess=interval(
            [row[n] - _others(row, n).mean() for row, n in zip(scores, traced, strict=True)]
        ),
        gain=interval([_gain(row, n) for row, n in zip(rises, traced, strict=True)]),
        traced=tuple(layers[place] for place in traced),
        scores=scores,
        effects=effects,
    )


def _rho(first: Profile, second: Profile) -> float:
    rho = rank_correlation(first, second)
    return np.nan if rho is None else rho


def _others(row: Profile, place: int) -> Float64[np.ndarray, " others"]:
    return np.delete(row, place) if len(row) > 1 else np.full(1, np.nan)


def _gain(row: Profile, place: int) -> float:
    """Tell how far one layer stands above the others, in their sd; NaN if they tie."""
    others = _others(row, place)
    spread = others.std(ddof=1) if len(others) > 1 else np.nan
    return float((row[place] - others.mean()) / spread) if spread > 0 else np.nan


def _pearson(
    first: Float64[np.ndarray, " facts"], second: Float64[np.ndarray, " facts"]
) -> float | None:
    """Correlate what both have (Pearson's); None where one is constant."""
    both = ~np.isnan(first) & ~np.isnan(second)
    one, other = first[both], second[both]
    if len(one) < 3 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    return float(stats.pearsonr(one, other).statistic)
