"""Does it depend on how neurons are scored? Other scores, other numbers of points, and controls.

Sets that are found again say little if neurons that are high on all text would be found again too.
So the same examples are scored by the size of activations, by the direct effect on logits and by
chance; neurons are located on text of no capability and on answers put to other questions; and the
number of points of the integral is varied.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64
from scipy import stats

from caploc.commonality import COMPARED, best, rates, specific, within
from caploc.engine.encoding import Span
from caploc.errors import BadOption
from caploc.exhibits.exhibit import NOTHING, Exhibit, Value
from caploc.neurons.attribution import Attribution
from caploc.neurons.erasure import LAYERS, LOCATED, Erased, Eraser, Erasing
from caploc.neurons.exhibits.intervals import known, ranged
from caploc.neurons.finding import Found
from caploc.neurons.study import NeuronLab

Row = tuple[str | Value, ...]
SHARE = 0.01  # of all neurons, at which scores are compared whatever their spread
POINTS = (5, 10, 19, 40)


@dataclass(frozen=True)
class Way:
    """One score of one task's neurons, held against the study's own."""

    task: str
    method: str
    found: Found
    same_best: float | None
    spearman: float | None
    lost: float | None
    lost_at_random: float | None


def other_ways(
    lab: NeuronLab, tasks: Sequence[str], methods: Sequence[str], limit: int | None
) -> list[Way]:
    """Every task scored in every way, and what it loses without the best neurons of each."""
    ways = []
    for task in tasks:
        main = lab.found(task)
        spans = lab.source(task).spans(lab.bench.wording)
        for method in dict.fromkeys([lab.study.attribution.method, *methods]):
            asked = replace(lab.study.attribution, method=method)
            found = lab.finder(asked).find(task, spans, lab.study.subsets, least=lab.study.least)
            erased = erasure(lab, task, equal_size(found), limit)
            ways.append(weighed(erased, method, equal_size(found), equal_size(main)))
    return ways


def equal_size(found: Found) -> Found:
    """The same scores with the best 1 % chosen, so that ways differ in nothing but their order."""
    return replace(found, located=best(found.moments.mean, SHARE).chosen)


def erasure(lab: NeuronLab, task: str, found: Found, limit: int | None) -> Erased:
    """What the task loses without these neurons, and without random ones of the same layers."""
    eraser = Eraser(lab.bench, Erasing(limit=limit), found, lab.progress)
    return eraser.erase(lab.source(task), (LOCATED, LAYERS))


def weighed(erased: Erased, method: str, found: Found, main: Found) -> Way:
    """One way beside the study's own."""
    drawn = [lost.logprob.mean for lost in erased.arms if lost.arm == LAYERS]
    return Way(
        erased.judged,
        method,
        found,
        rates(main.located, found.located).largest,
        correlation(main.moments.mean, found.moments.mean),
        known(erased.located.logprob.mean),
        known(float(np.mean(drawn))),
    )


def correlation(
    first: Float64[np.ndarray, " neurons"], second: Float64[np.ndarray, " neurons"]
) -> float | None:
    """Spearman's rank correlation of two scores, None where one is constant."""
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    return float(stats.spearmanr(first, second).statistic)


def ways_exhibit(ways: Sequence[Way]) -> Exhibit:
    """How steady, how like the study's own, and how needed the neurons of each score are."""
    rows: list[Row] = [
        (
            f"{way.task}, {way.method}",
            ranged(within(way.found.subsets).rates[COMPARED]),
            Value(way.same_best),
            Value(way.spearman),
            Value(way.lost, digits=4),
            Value(way.lost_at_random, digits=4),
        )
        for way in ways
    ]
    return Exhibit(
        "scores",
        "Other ways to score neurons",
        (
            "task, score",
            "overlap within",
            "best 1 % shared with the study's",
            "rank correlation",
            "log-probability lost without its best 1 %",
            "without random in layers",
        ),
        rows,
        [
            "Activation is the mean size of a neuron's activation and logit its direct effect on "
            "the gold tokens' logits: neither needs a gradient. A score can be steady and say "
            "nothing of what the task needs, so the last columns erase."
        ],
    )


def points_exhibit(lab: NeuronLab, tasks: Sequence[str], examples: int) -> Exhibit:
    """How the neurons of integrated gradients depend on the number of points."""
    rows: list[Row] = []
    for task in tasks:
        spans = lab.source(task).spans(lab.bench.wording)[:examples]
        scores = {
            steps: lab.finder(replace(lab.study.attribution, method="integrated", steps=steps))
            .stretch(task, spans)
            .mean
            for steps in POINTS
        }
        most = scores[max(POINTS)]
        gradient = lab.finder(Attribution("gradient")).stretch(task, spans).mean
        for name, mean in [*((f"S = {s}", m) for s, m in scores.items()), ("gradient", gradient)]:
            same = rates(best(most, SHARE).chosen, best(mean, SHARE).chosen).largest
            rows.append((f"{task}, {name}", Value(correlation(most, mean)), Value(same)))
    return Exhibit(
        "points",
        "Points of the integral (S)",
        ("task, points", f"rank correlation with S = {max(POINTS)}", "best 1 % shared"),
        rows,
        [f"On {examples} examples. The paper's S is 19; gradient takes the last point alone."],
    )


def controls_exhibit(lab: NeuronLab, tasks: Sequence[str], generic: str | None) -> Exhibit:
    """What a task's neurons have in common with those of controls."""
    rows: list[Row] = []
    general = None
    if generic is not None:
        general = control(lab, lab.source(generic).spans(lab.bench.wording))
    for task in tasks:
        found = lab.found(task)
        spans = lab.source(task).spans(lab.bench.wording)
        arms: Mapping[str, np.ndarray] = {"answers exchanged": control(lab, exchanged(spans))}
        if general is not None:
            arms = {**arms, "plain text": general}
        left = specific(found.located, arms, lab.bench.neurons.grid)
        rows.append(
            (
                task,
                str(left.located),
                *(
                    Value(left.controls[name].rates.reference) if name in arms else NOTHING
                    for name in ("answers exchanged", "plain text")
                ),
                str(left.count),
                Value(left.share),
            )
        )
    return Exhibit(
        "controls",
        "Neurons that controls have too",
        (
            "task",
            "neurons",
            "also with answers exchanged",
            "also on plain text",
            "left",
            "share left",
        ),
        rows,
        [
            "Answers exchanged: the same prompts and answers, each answer put to another question. "
            f"Plain text: {generic or 'not asked'}. Shares are of the task's own neurons."
        ],
    )


def control(lab: NeuronLab, spans: Sequence[Span]) -> np.ndarray:
    """The neurons that the study's way finds on other examples."""
    finder = lab.finder()
    moments = finder.stretch("control", spans)
    chosen: np.ndarray = lab.study.rule.chosen(moments, lab.bench.neurons.grid)
    return chosen


def exchanged(spans: Sequence[Span]) -> list[Span]:
    """Each prompt with the answer of another, each answer once, and as few alike as can be.

    Answers may be few (letters): exchanged at random, many a prompt would get its own again.

    Raises:
        BadOption: if there are fewer than two.
    """
    if len(spans) < 2:
        raise BadOption(f"Answers can be exchanged among 2 items or more; got {len(spans)}.")
    order = sorted(range(len(spans)), key=lambda place: spans[place].continuation)
    most = max(Counter(span.continuation for span in spans).values())
    # Equal answers stand side by side: moved on by the longest such row, none meets itself.
    donors = dict(zip(order, np.roll(order, -min(most, len(spans) - 1)).tolist(), strict=True))
    found = []
    for place, span in enumerate(spans):
        prompt = span.inputs[: len(span.inputs) - len(span.continuation) + 1]
        answer = spans[donors[place]].continuation
        found.append(Span((*prompt, *answer[:-1]), answer))
    return found
