"""A capability's heads and its neurons at once: same layers, and more lost than the sum?

Heads (of a finished `caploc locate`) and neurons (of a `Finder`) are knocked out alone and both, on
the same examples. Of each example

    interaction = loss(both) - loss(heads) - loss(neurons)

is 0 if they add up, above 0 if each covers for the loss of the other, below 0 if they do the same
work or lie on one path. It depends on the scale: a metric such as accuracy cannot fall below its
floor, so that two large losses of it never add up; the verdict is therefore on the log-probability
of gold answers, which has no floor. Random neurons beside the located heads, and random heads
beside the located neurons, as many in each layer, tell what any would do. All of this is ours.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from caploc import designs
from caploc.commonality import Result, Specificity, layer_matched, specificity
from caploc.errors import BadData
from caploc.finished import FinishedRun
from caploc.heads import Head, HeadGrid, Mask
from caploc.models.loading import CutModel
from caploc.neurons.alignment import Alignment, Placed, align
from caploc.neurons.bench import NeuronBench
from caploc.neurons.conditions import (
    OUTCOMES,
    Conditions,
    Joining,
    Measured,
    Pairing,
    reads_own_layer,
)
from caploc.neurons.examples import Source
from caploc.neurons.finding import Found
from caploc.neurons.grid import Chosen
from caploc.neurons.interaction import Verdict, judge
from caploc.progress import Progress, Silent

LOCATED, RANDOM_NEURONS, RANDOM_HEADS = "located", "random neurons", "random heads"


@dataclass(frozen=True)
class LocatedHeads:
    """Heads, and the change of score that knocking out each head of the model alone causes.

    A head without an effect was not measured; below 0 it is needed.
    """

    heads: tuple[Head, ...]
    effects: Mapping[Head, float] = field(default_factory=dict)

    @classmethod
    def of(cls, run: FinishedRun, model: CutModel, most: int | None = None) -> "LocatedHeads":
        """The heads that a finished run chose in this model, the first `most` of them.

        Raises:
            BadData: if the run was of another model.
        """
        ran = run.result["model"]
        if ran["fingerprint"] != model.fingerprint:
            raise BadData(
                f"The heads in {run.folder} are of the model {ran['name']}, whose weights are not "
                f"those of {model.name}; give a run and neurons of one model."
            )
        effects = {Head.parse(each["head"]): each["effect"] for each in run.result["heads"]}
        return cls(
            tuple(Head.parse(name) for name in run.result["top"][:most]),
            {head: float(each) for head, each in effects.items() if each is not None},
        )

    def placed(self, grid: HeadGrid) -> Placed:
        """Where they lie, and what each head costs.

        Raises:
            UnknownName: if the model has no such head.
        """
        costs = np.full(grid.size, np.nan)
        for head, effect in self.effects.items():
            costs[grid.column(head)] = -effect
        return Placed(grid, grid.mask(self.heads), costs if self.effects else None)


@dataclass(frozen=True)
class Together(Result):
    """What a task loses without its heads, its neurons and both, and where they lie.

    `intact` is the task's own score. `pairings` hold the located ones first, then every draw.
    `specificity` holds, by arm and outcome, the located interaction against that of the arm's
    draws, both with their sign turned if the located mean is negative: more is more of the same
    kind. The arm of random heads is missing where a layer has too few others.
    """

    task: str
    heads: tuple[str, ...]
    neurons: tuple[str, ...]
    examples: int
    mode: str
    intact: float | None
    alignment: Alignment
    pairings: tuple[Pairing, ...]
    specificity: dict[str, dict[str, Specificity]]
    verdict: Verdict

    @property
    def located(self) -> Pairing:
        """The located heads and neurons."""
        return self.pairings[0]

    def drawn(self, arm: str) -> list[Pairing]:
        """The draws of an arm."""
        return [each for each in self.pairings if each.arm == arm]

    def as_dict(self) -> dict[str, Any]:
        """As files hold it; gains of single examples are left out."""
        told = {
            arm: {name: each.as_dict() | {"per_item": None} for name, each in outcomes.items()}
            for arm, outcomes in self.specificity.items()
        }
        return super().as_dict() | {"specificity": told}


def join(
    bench: NeuronBench,
    source: Source,
    heads: LocatedHeads,
    found: Found,
    asked: Joining | None = None,
    progress: Progress | None = None,
) -> Together:
    """Knock out a task's located heads and neurons, alone and together, and compare their layers.

    Raises:
        BadOption: if there is no head or no neuron, or `asked` means nothing.
        UnknownName: if the model has no such head.
    """
    asked = (asked or Joining()).check()
    placed, grid, seed = heads.placed(bench.engine.loaded.grid), bench.neurons.grid, asked.seed
    span, *_ = source.judged_spans(bench.wording, 1)
    own_layer = reads_own_layer(bench.engine.loaded, bench.neurons, span)
    scored = Placed(grid, found.located, found.moments.mean)
    alignment = align(placed, scored, same_layer=own_layer, seed=seed)
    conditions = Conditions.of(bench, source, asked, progress or Silent())
    pairs = drawn_pairs(placed, found.located, bench, asked)
    measured = {key: conditions.measured(*pair) for key, pair in pairs.items()}
    pairings = tuple(each.pairing(*key, seed) for key, each in measured.items())
    arms = [arm for arm in (RANDOM_NEURONS, RANDOM_HEADS) if (arm, 0) in pairs]
    drawn = {arm: [each.logprob for each in pairings if each.arm == arm] for arm in arms}
    return Together(
        task=source.name,
        heads=tuple(map(str, heads.heads)),
        neurons=tuple(map(str, grid.named(found.located))),
        examples=len(conditions.examples),
        mode=str(asked.mode),
        intact=conditions.score(placed.chosen & False, found.located & False),
        alignment=alignment,
        pairings=pairings,
        specificity={arm: specific(measured, arm, seed) for arm in arms},
        verdict=judge(pairings[0].metric, pairings[0].logprob, drawn, source.judging.chance),
    )


def drawn_pairs(
    heads: Placed, neurons: Chosen, bench: NeuronBench, asked: Joining
) -> dict[tuple[str, int], tuple[Mask, Chosen]]:
    """Heads and neurons of every arm and draw, the located ones first."""
    pairs = {(LOCATED, 0): (heads.chosen, neurons)}
    sets = layer_matched(neurons, bench.neurons.grid, asked.draws, seed=asked.seed)
    pairs |= {(RANDOM_NEURONS, n): (heads.chosen, each) for n, each in enumerate(sets)}
    masks = designs.matched(
        heads.chosen, heads.grid.layer_slices, asked.draws, seed=asked.seed + designs.CONTROLS
    )
    if (masks.sum(axis=1) == heads.chosen.sum()).all():
        pairs |= {(RANDOM_HEADS, n): (each, neurons) for n, each in enumerate(masks)}
    return pairs


def specific(
    measured: Mapping[tuple[str, int], Measured], arm: str, seed: int
) -> dict[str, Specificity]:
    """The located interaction against that of an arm's draws, by outcome."""
    found = {}
    for name in OUTCOMES:
        located = measured[LOCATED, 0].interactions(name)
        drawn = [each.interactions(name) for key, each in measured.items() if key[0] == arm]
        known = located[~np.isnan(located)]
        sign = -1.0 if known.sum() < 0 else 1.0
        found[name] = specificity(sign * located, sign * np.stack(drawn), seed=seed)
    return found
