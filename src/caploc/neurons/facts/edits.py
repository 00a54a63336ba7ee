"""Does an edit work best where causal tracing points? Every layer is edited, not only that one.

For each fact and layer the rank-one edit of Meng et al. (2022) is made, and judged by their
measures: *efficacy*, P(new) > P(old) on the prompt; *generalization*, the same share of rewrites;
*specificity*, the share of neighbours whose own answer stays likelier than the new one; *score*,
their harmonic mean. That tracing does not tell where editing works is known from Hase et al.
(2023). Probabilities of answers of several tokens are geometric means over the tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from scipy import stats

from caploc.commonality import Interval, Result, mean_interval
from caploc.errors import BadData
from caploc.neurons.facts.editing import Editor, edited
from caploc.neurons.facts.fidelity import Profile, Profiler, peak, rank_correlation
from caploc.neurons.facts.prompts import Answers, Fact, FactPrompt, check_names
from caploc.neurons.proof import NeuronModel
from caploc.progress import Progress, Silent

MEASURES = ("efficacy", "generalization", "specificity", "score", "rise")
Table = Float64[np.ndarray, "facts layers"]


@dataclass(frozen=True)
class EditedLayer(Result):
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
class EditReliability(Result):
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
    layers, asker = sorted(editor.covariances), Answers(loaded)
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
    loaded: NeuronModel, asker: Answers, editor: Editor, fact: Fact
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


def _leads(asker: Answers, prompts: Sequence[FactPrompt]) -> Float64[np.ndarray, "prompts two"]:
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
        correlation=interval(list(map(rank_correlation, scores, effects))),
        rise_correlation=interval(list(map(rank_correlation, rises, effects))),
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
