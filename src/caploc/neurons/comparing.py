"""Does it depend on how neurons are scored? Other scores, other numbers of points, and controls.

Sets that are found again say little if neurons that are high on all text would be found again too.
So the same examples are scored by the size of activations, by the direct effect on logits and by
chance; neurons are located on text of no capability and on answers put to other questions; and the
number of points of the integral is varied.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from caploc.engine.encoding import Span
from caploc.errors import BadOption
from caploc.neurons.attribution import Attribution
from caploc.neurons.erasure import LAYERS, LOCATED, Eraser, Erasing
from caploc.neurons.finding import TaskNeurons
from caploc.neurons.study import NamedRow, NeuronLab, Row, ranged
from caploc.report.exhibits import NOTHING, Exhibit, Value
from caploc.stats.intervals import plain_value
from caploc.stats.sets import COMPARED, overlap_rates, rank_correlation, specific, within
from caploc.stats.threshold import best

SHARE = 0.01  # of all neurons, at which scores are compared whatever their spread
POINTS = (5, 10, 19, 40)
EXCHANGED, PLAIN = "answers exchanged", "plain text"


@dataclass(frozen=True)
class ScoreWay:
    """One score of one task's neurons, held against the study's own."""

    task: str
    method: str
    found: TaskNeurons
    same_best: float | None
    spearman: float | None
    lost: float | None
    lost_at_random: float | None


def compare_scores(
    lab: NeuronLab, tasks: Sequence[str], methods: Sequence[str], limit: int | None
) -> list[ScoreWay]:
    """Score every task in every way, and see what it loses without the best neurons of each.

    Of every score the best 1 % is taken, so that ways differ in nothing but their order.
    """
    ways = []
    for task in tasks:
        main = lab.found(task)
        for method in dict.fromkeys([lab.study.attribution.method, *methods]):
            finder = lab.finder(replace(lab.study.attribution, method=method))
            found = finder.find(task, lab.spans(task), lab.study.subsets, least=lab.study.least)
            found = replace(found, located=best(found.moments.mean, SHARE))
            eraser = Eraser(lab.bench, Erasing(limit=limit), found, lab.progress)
            erased = eraser.erase(lab.source(task), (LOCATED, LAYERS))
            drawn = [lost.logprob.mean for lost in erased.of_arm(LAYERS)]
            way = ScoreWay(
                task,
                method,
                found,
                overlap_rates(best(main.moments.mean, SHARE), found.located).largest,
                rank_correlation(main.moments.mean, found.moments.mean),
                plain_value(erased.located.logprob.mean),
                plain_value(float(np.mean(drawn))),
            )
            ways.append(way)
    return ways


def scores_exhibit(ways: Sequence[ScoreWay]) -> Exhibit:
    """Show how steady, how like the study's own, and how needed the neurons of each score are."""
    rows: list[NamedRow] = [
        {
            "task, score": f"{way.task}, {way.method}",
            "overlap within": ranged(within(way.found.subsets).rates[COMPARED]),
            "best 1 % shared with the study's": Value(way.same_best),
            "rank correlation": Value(way.spearman),
            "log-probability lost without its best 1 %": Value(way.lost, digits=4),
            "without random in layers": Value(way.lost_at_random, digits=4),
        }
        for way in ways
    ]
    note = (
        "Activation is the mean size of a neuron's activation and logit its direct effect on the "
        "gold tokens' logits: neither needs a gradient. A score can be steady and say nothing of "
        "what the task needs, so the last columns erase."
    )
    return Exhibit.of("scores", "Other ways to score neurons", rows, [note])


def points_exhibit(lab: NeuronLab, tasks: Sequence[str], examples: int) -> Exhibit:
    """Show how the neurons of integrated gradients depend on the number of points."""
    rows: list[Row] = []
    for task in tasks:
        spans = lab.spans(task)[:examples]
        asked = {
            f"S = {steps}": replace(lab.study.attribution, method="integrated", steps=steps)
            for steps in POINTS
        } | {"gradient": Attribution("gradient")}
        scores = {name: lab.finder(each).stretch(task, spans).mean for name, each in asked.items()}
        most = scores[f"S = {max(POINTS)}"]
        for name, mean in scores.items():
            same = overlap_rates(best(most, SHARE), best(mean, SHARE)).largest
            rows.append((f"{task}, {name}", Value(rank_correlation(most, mean)), Value(same)))
    return Exhibit(
        "points",
        "Points of the integral (S)",
        ("task, points", f"rank correlation with S = {max(POINTS)}", "best 1 % shared"),
        rows,
        [f"On {examples} examples. The paper's S is 19; gradient takes the last point alone."],
    )


def controls_exhibit(lab: NeuronLab, tasks: Sequence[str], generic: str | None) -> Exhibit:
    """Show what a task's neurons have in common with those of controls."""
    rows: list[NamedRow] = []
    general = {} if generic is None else {PLAIN: _control(lab, lab.spans(generic))}
    for task in tasks:
        arms = {EXCHANGED: _control(lab, exchange_answers(lab.spans(task))), **general}
        left = specific(lab.found(task).located, arms)
        plain_text = left.controls.get(PLAIN)
        rows.append(
            {
                "task": task,
                "neurons": str(left.located),
                f"also with {EXCHANGED}": Value(left.controls[EXCHANGED].reference),
                f"also on {PLAIN}": Value(plain_text.reference) if plain_text else NOTHING,
                "left": str(left.count),
                "share left": Value(left.share),
            }
        )
    note = (
        "Answers exchanged: the same prompts and answers, each answer put to another question. "
        f"Plain text: {generic or 'not asked'}. Shares are of the task's own neurons."
    )
    return Exhibit.of("controls", "Neurons that controls have too", rows, [note])


def _control(lab: NeuronLab, spans: Sequence[Span]) -> np.ndarray:
    """Find the neurons that the study's way finds on other examples."""
    finder = lab.finder()
    return finder.choose(finder.stretch("control", spans))


def exchange_answers(spans: Sequence[Span]) -> list[Span]:
    """Put to each prompt the answer of another, each answer once, and as few alike as can be.

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
